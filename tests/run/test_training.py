"""`make_private` and the run: what is accepted, what is released, what is recorded."""

import copy
import io
import math
import pickle
import warnings
from collections import UserDict

import dp_accounting
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import adamas
from adamas import Geometry, rules
from tests.support.small_runs import N, finish, loss, make_data, make_model, make_run

# --- the private step -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "reference"),
    [
        ("sgd", {"lr": 0.1, "momentum": 0.9}, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
        ("adam", {"lr": 0.01}, lambda p: torch.optim.Adam(p, lr=0.01)),
        (
            "adamw",
            {"lr": 0.01, "weight_decay": 0.1},
            lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
        ),
    ],
)
def test_without_noise_and_clipping_a_run_is_torch_optim_step_for_step(name, options, reference):
    data = make_data()
    data = TensorDataset(data.tensors[0].double(), data.tensors[1])
    model = make_model(dtype=torch.float64)
    twin = copy.deepcopy(model)
    rule = rules.RULES[name](model.parameters(), **options)
    run = make_run(model, rule, data, noise_multiplier=0, clip_norm=math.inf, batch_size=N, steps=5)
    optimizer = reference(twin.parameters())
    for _ in run:
        optimizer.zero_grad()
        loss(twin, data.tensors).mean().backward()
        optimizer.step()
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-14)
    assert run.epsilon() == math.inf


def test_a_stock_optimizer_gets_the_same_releases_as_the_rule():
    ours = finish(make_run())
    model = make_model()
    theirs = finish(make_run(model, torch.optim.Adam(model.parameters(), lr=0.01)))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_the_open_loop_is_the_closed_one():
    run = make_run()
    for batch in run.batches():
        release = run.privatize(batch)
        release.write_to(run.rule)
        run.rule.step()
    assert torch.equal(
        torch.nn.utils.parameters_to_vector(run.model.parameters()).detach(), finish(make_run())
    )
    assert run.steps_done == 6
    assert run.epsilon() == pytest.approx(
        adamas.calibrate.epsilon(noise_multiplier=1.0, sampling_rate=0.2, steps=6, delta=1e-3)
    )


def test_micro_batches_engines_and_workers_do_not_change_the_result():
    expected = finish(make_run())
    for changes in ({"micro_batch_size": 1}, {"micro_batch_size": 5}, {"engine": "loop"}, {"num_workers": 2}):
        torch.testing.assert_close(finish(make_run(**changes)), expected, rtol=1e-4, atol=1e-6)


def test_one_nan_example_is_as_if_it_were_not_there():
    data = make_data()
    broken = TensorDataset(data.tensors[0].clone(), data.tensors[1])
    broken.tensors[0][17] = math.nan

    def kept_loss(model, batch):
        return loss(model, batch) * (batch[0].isfinite().all(1)).to(batch[0].dtype)

    absent = TensorDataset(data.tensors[0].clone(), data.tensors[1])

    def absent_loss(model, batch):
        gone = (batch[0] == data.tensors[0][17]).all(1)
        return torch.where(gone, 0.0, loss(model, batch))

    model = make_model()
    run = adamas.make_private(
        model,
        rules.SGD(model.parameters(), lr=0.1),
        absent,
        absent_loss,
        batch_size=30,
        steps=5,
        noise_multiplier=0.5,
        delta=1e-3,
        seed=1,
    )
    expected = finish(run)
    model = make_model()
    result = finish(
        make_run(
            model,
            rules.SGD(model.parameters(), lr=0.1),
            broken,
            batch_size=30,
            steps=5,
            noise_multiplier=0.5,
            seed=1,
        )
    )
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-7)


def test_an_empty_batch_is_a_noise_only_step_and_counts():
    run = make_run(batch_size=1, steps=30, data=make_data(200), delta=1e-4)
    sizes = [len(run.loader.sampler.indices(step).indices) for step in range(30)]
    assert 0 in sizes
    empty = sizes.index(0)
    for step in run:
        moved = max(float(g.abs().max()) for g in step.release.mean.values())
        assert moved > 0
        if step.number == empty + 1:
            noise = torch.cat([g.flatten() for g in step.release.mean.values()])
            assert 0.5 < noise.std() < 1.6  # 34 values of standard deviation 1: z C / B with B = 1
    assert run.ledger.entries[0][1] == 30


def test_leaving_the_loop_within_a_logical_batch_leaks_nothing_into_the_next():
    class Interrupted(Exception):
        pass

    calls = 0

    def interrupted_loss(model, batch):
        nonlocal calls
        calls += 1
        if calls == interrupt_at:
            raise Interrupted
        return loss(model, batch)

    def run_with(interrupt):
        nonlocal calls, interrupt_at
        model = make_model()
        interrupt_at = -1
        run = adamas.make_private(
            model,
            rules.SGD(model.parameters(), lr=0.1),
            make_data(),
            interrupted_loss,
            batch_size=12,
            steps=4,
            noise_multiplier=1.0,
            delta=1e-3,
            seed=3,
            micro_batch_size=2,
        )
        calls, interrupt_at = 0, interrupt
        return run

    interrupt_at = -1
    undisturbed = finish(run_with(-1))
    run = run_with(3)
    with pytest.raises(Interrupted):
        finish(run)
    assert run.steps_done == 0
    assert run.ledger.entries == []
    assert run.noise.draws == 0
    assert torch.equal(finish(run), undisturbed)


def test_breaking_off_and_going_on_is_the_uninterrupted_run():
    expected = finish(make_run(num_workers=2))
    run = make_run(num_workers=2)
    for step in run:
        if step.number == 2:
            break
    for _ in run.batches():  # looked at, not released
        break
    assert run.steps_done == 2
    assert torch.equal(finish(run), expected)
    assert list(run) == []


def test_dropout_is_reproducible_and_leaves_the_global_generator_alone():
    def dropout_model():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 2))

    before = torch.get_rng_state()
    torch.manual_seed(5)
    a = finish(make_run(dropout_model()))
    torch.manual_seed(5)
    state = torch.get_rng_state()
    model = dropout_model()
    torch.manual_seed(5)
    b = finish(make_run(model))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(a, b)
    torch.set_rng_state(before)


# --- ledger and budget ----------------------------------------------------------------------------------


def test_the_ledger_of_a_run_is_exactly_its_steps():
    run = make_run()
    finish(run)
    event = dp_accounting.PoissonSampledDpEvent(0.2, dp_accounting.GaussianDpEvent(1.0))
    assert run.ledger.entries == [(event, 6)]


def test_two_releases_on_one_batch_are_one_sampled_event():
    run = make_run()
    for batch in run.batches():
        run.privatize(batch)
        run.privatize(batch)
    gaussian = dp_accounting.GaussianDpEvent(1.0)
    inner = dp_accounting.ComposedDpEvent([gaussian, gaussian])
    assert run.ledger.entries == [(dp_accounting.PoissonSampledDpEvent(0.2, inner), 6)]
    joint = adamas.calibrate.epsilon(noise_multiplier=2**-0.5, sampling_rate=0.2, steps=6, delta=1e-3)
    assert run.epsilon() == pytest.approx(joint)


def test_a_budget_is_never_exceeded():
    run = make_run(noise_multiplier=None, epsilon=2.0)
    finish(run)
    assert 1.98 < run.epsilon() <= 2.0

    run = make_run(noise_multiplier=None, epsilon=2.0, accountant="rdp")

    def twice_each():
        for batch in run.batches():
            run.privatize(batch)
            run.privatize(batch)

    with pytest.raises(RuntimeError, match="epsilon=2"):
        twice_each()
    assert run.epsilon() <= 2.0


@pytest.mark.slow
def test_other_events_in_the_ledger_and_a_resume_do_not_lift_the_budget():
    budget = {"noise_multiplier": None, "epsilon": 2.0, "accountant": "rdp", "steps": 15}
    run = make_run(**budget)
    run.ledger.record(dp_accounting.GaussianDpEvent(3.0))
    with pytest.raises(RuntimeError, match="epsilon=2"):
        finish(run)
    assert run.epsilon() <= 2.0

    run = make_run(**budget)
    batch = next(iter(run.batches()))
    run.privatize(batch)
    run.privatize(batch)
    resumed = make_run(**budget)
    resumed.load_state_dict(run.state_dict())
    with pytest.raises(RuntimeError, match="epsilon=2"):
        finish(resumed)
    assert resumed.epsilon() <= 2.0


def test_an_earlier_run_in_the_same_ledger_counts():
    run = make_run(noise_multiplier=None, epsilon=2.0, accountant="rdp", steps=3)
    run.ledger.record(run.loader.sampler.event({0: [run.noise_multiplier]}), count=3)
    with pytest.raises(RuntimeError, match="epsilon=2"):
        finish(run)
    assert run.epsilon() <= 2.0


def test_the_state_of_another_truncation_is_refused():
    truncated = {"sampling": "truncated-poisson", "steps": 2}
    run = make_run(max_batch_size=20, **truncated)
    finish(run)
    with pytest.raises(ValueError, match="max_batch_size"):
        make_run(max_batch_size=40, **truncated).load_state_dict(run.state_dict())


def test_a_batch_from_elsewhere_or_from_before_is_refused():
    run, other = make_run(), make_run()
    with pytest.raises(TypeError, match=r"run.batches\(\)"):
        run.privatize(make_data()[:3])
    with pytest.raises(TypeError, match=r"run.batches\(\)"):
        run.privatize(next(iter(other.batches())))
    batches = run.batches()
    first = next(batches)
    run.privatize(first)
    run.privatize(next(batches))
    with pytest.raises(RuntimeError, match="current batch"):
        run.privatize(first)


def test_shuffled_batches_cost_one_unsampled_gaussian_per_epoch():
    run = make_run(sampling="shuffled", steps=None, epochs=3, noise_multiplier=5.0)
    finish(run)
    assert run.steps == 15
    assert run.ledger.entries == [(dp_accounting.GaussianDpEvent(5.0), 3)]
    assert run.ledger.relation == dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    poisson = adamas.calibrate.epsilon(noise_multiplier=5.0, sampling_rate=0.2, steps=15, delta=1e-3)
    assert run.epsilon() > poisson


def test_truncated_batches_have_one_shape_and_padding_has_no_influence():
    shapes = set()

    def recording_loss(model, batch):
        shapes.add(batch[0].shape[0])
        return loss(model, batch)

    def trained(max_batch_size):
        model = make_model()
        run = adamas.make_private(
            model,
            rules.SGD(model.parameters(), lr=0.1),
            make_data(),
            recording_loss,
            batch_size=12,
            steps=4,
            noise_multiplier=1.0,
            delta=1e-3,
            seed=2,
            engine="loop",
            sampling="truncated-poisson",
            max_batch_size=max_batch_size,
        )
        return run, finish(run)

    run, a = trained(30)
    _, b = trained(50)
    torch.testing.assert_close(a, b)  # no batch had more than 30 examples: only the padding differs
    assert all(len(run.loader.sampler.indices(step).indices) == 30 for step in range(4))
    event = run.ledger.entries[0][0]
    assert isinstance(event, dp_accounting.dp_event.TruncatedSubsampledGaussianDpEvent)
    assert event.truncated_batch_size == 30
    with pytest.raises(adamas.UnsupportedError, match="accountant='pld'"):
        run.epsilon(accountant="rdp")


# --- seeds and state ------------------------------------------------------------------------------------


def test_a_seed_reproduces_and_no_seed_does_not():
    assert torch.equal(finish(make_run(seed=4)), finish(make_run(seed=4)))
    assert not torch.equal(finish(make_run(seed=4)), finish(make_run(seed=5)))
    assert not torch.equal(finish(make_run(seed=None)), finish(make_run(seed=None)))


def test_only_a_seeded_run_says_that_its_noise_can_be_removed():
    assert "seed" in make_run(seed=4).privacy_statement()
    assert "seed" not in make_run(seed=None).privacy_statement()


@pytest.mark.parametrize("name", rules.RULES)
@pytest.mark.parametrize("sampling", ["poisson", "shuffled"])
def test_a_resumed_run_is_bit_equal(name, sampling):
    def fresh():
        model = make_model()
        rule = rules.RULES[name](model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(rule, T_max=6)
        return make_run(model, rule, sampling=sampling, scheduler=scheduler, ema=0.9)

    whole = fresh()
    expected = finish(whole)
    run = fresh()
    for step in run:
        if step.number == 3:
            break
    file = io.BytesIO()
    torch.save(run.state_dict(), file)
    resumed = fresh()
    file.seek(0)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(finish(resumed), expected)
    assert resumed.ledger.entries == whole.ledger.entries
    for p, q in zip(resumed.ema_model.parameters(), whole.ema_model.parameters(), strict=True):
        assert torch.equal(p, q)


def test_going_back_in_a_run_is_refused_because_it_would_repeat_noise():
    run = make_run()
    start = copy.deepcopy(run.state_dict())
    finish(run)
    spent = run.epsilon()
    with pytest.raises(RuntimeError, match="released nothing"):
        run.load_state_dict(start)
    assert run.epsilon() == spent


def test_a_secret_seed_is_neither_copied_nor_pickled():
    run = make_run(seed=None)
    with pytest.raises(TypeError, match="secret seed"):
        pickle.dumps(run.noise)
    with pytest.raises(TypeError, match="secret seed"):
        copy.deepcopy(run.noise)
    assert pickle.loads(pickle.dumps(make_run(seed=3).noise)).seed.given == 3


def test_a_secret_seed_is_in_no_state():
    run = make_run(seed=None)
    finish(run)
    file = io.BytesIO()
    torch.save(run.state_dict(), file)
    secret = run.noise.seed._secret
    assert secret not in file.getvalue()
    assert str(int.from_bytes(secret, "big")).encode() not in file.getvalue()
    assert run.state_dict()["settings"]["seed"] is None


def test_a_shuffled_run_without_a_seed_resumes_at_epochs_only():
    run = make_run(seed=None, sampling="shuffled", steps=10)
    for step in run:
        if step.number == 3:
            break
    with pytest.raises(ValueError, match="seed="):
        make_run(seed=None, sampling="shuffled", steps=10).load_state_dict(run.state_dict())


def test_the_state_of_other_settings_is_refused_and_changes_nothing():
    state = make_run().state_dict()
    other = make_run(noise_multiplier=2.0)
    before = finish(make_run(noise_multiplier=2.0))
    with pytest.raises(ValueError, match="noise_multiplier"):
        other.load_state_dict(state)
    assert torch.equal(finish(other), before)


def test_a_scheduler_and_an_average_of_the_weights_follow_the_steps():
    model = make_model()
    rule = rules.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(rule, gamma=0.5)
    average = AveragedModel(model)
    run = make_run(model, rule, scheduler=scheduler, ema=average)
    seen = [torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone() for _ in run]
    assert scheduler.get_last_lr() == [0.5**6]
    mean = torch.stack(seen).mean(0)
    ours = torch.nn.utils.parameters_to_vector(run.ema_model.module.parameters())
    torch.testing.assert_close(ours, mean)


def test_a_rule_shapes_the_clipping_of_the_next_step():
    class Centered(rules.Rule):
        """A rule with feedback: the last release is the center, and the scale is 2."""

        def __init__(self, params):
            super().__init__(params, {"lr": 0.1})

        def geometry(self):
            center = {p: self.state[p]["last"] for p in self.trainable() if "last" in self.state[p]}
            return Geometry(center, dict.fromkeys(self.trainable(), 2.0))

        def _update(self, p, gradient, noise_variance, group, state):
            state["last"] = gradient.clone()
            p.add_(gradient, alpha=-group["lr"])

    model = make_model()
    rule = Centered(model.parameters())
    run = make_run(model, rule, clip_norm=0.5, noise_multiplier=3.0)
    releases = [step.release for step in run]
    for variance in releases[-1].noise_variance.values():
        assert variance == pytest.approx((2.0 * 0.5 * 3.0 / 12) ** 2)
    assert rule.geometry().center.keys() == set(model.parameters())


# --- what is refused ------------------------------------------------------------------------------------


class Stream(IterableDataset):
    def __iter__(self):
        yield from []


class NoLength:
    def __getitem__(self, index):
        return index


BAD = {
    "epsilon=0": ({"noise_multiplier": None, "epsilon": 0.0}, ValueError, "epsilon"),
    "epsilon<0": ({"noise_multiplier": None, "epsilon": -1.0}, ValueError, "epsilon"),
    "epsilon=nan": ({"noise_multiplier": None, "epsilon": math.nan}, ValueError, "epsilon"),
    "epsilon and sigma": ({"epsilon": 1.0}, ValueError, "exactly one of epsilon and noise_multiplier"),
    "neither": ({"noise_multiplier": None}, ValueError, "exactly one of epsilon and noise_multiplier"),
    "sigma<0": ({"noise_multiplier": -1.0}, ValueError, "noise_multiplier"),
    "delta=0": ({"delta": 0.0}, ValueError, "delta"),
    "delta=1": ({"delta": 1.0}, ValueError, "delta"),
    "delta>=1/N": ({"delta": 1 / N}, ValueError, "allow_large_delta"),
    "batch>N": ({"batch_size": N + 1}, ValueError, "batch_size"),
    "batch=0": ({"batch_size": 0}, ValueError, "batch_size"),
    "batch=1.5": ({"batch_size": 1.5}, TypeError, "batch_size"),
    "steps and epochs": ({"epochs": 1}, ValueError, "exactly one of epochs and steps"),
    "no steps": ({"steps": None}, ValueError, "exactly one of epochs and steps"),
    "steps=0": ({"steps": 0}, ValueError, "steps"),
    "clip=0": ({"clip_norm": 0.0}, ValueError, "clip_norm"),
    "clip=inf": ({"clip_norm": math.inf}, ValueError, "clip_norm"),
    "engine": ({"engine": "magic"}, ValueError, "engine"),
    "sampling": ({"sampling": "weighted"}, ValueError, "sampling"),
    "truncated without size": ({"sampling": "truncated-poisson"}, ValueError, "max_batch_size"),
    "accountant": ({"accountant": "guess"}, ValueError, "accountant"),
    "accountant that cannot": (
        {"accountant": "rdp", "sampling": "truncated-poisson", "max_batch_size": 20},
        adamas.UnsupportedError,
        "accountant='rdp'",
    ),
    "workers": ({"num_workers": -1}, ValueError, "num_workers=-1 >= 0"),
    "average of another model": ({"ema": AveragedModel(nn.Linear(3, 2))}, ValueError, "ema"),
    "micro": ({"micro_batch_size": 0}, ValueError, "micro_batch_size"),
    "seed": ({"seed": -1}, ValueError, "seed"),
    "seed kind": ({"seed": 0.5}, TypeError, "seed"),
    "ema": ({"ema": 1.5}, ValueError, "ema"),
    "stream": ({"data": Stream()}, TypeError, "map-style"),
    "loader": ({"data": DataLoader(make_data())}, TypeError, "loader.dataset"),
    "no length": ({"data": NoLength()}, TypeError, "__len__"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_at_construction_and_changes_nothing(case):
    changes, error, message = BAD[case]
    model = make_model()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(error, match=message):
        make_run(model, **changes)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(p.grad is None for p in model.parameters())
    assert model.training


def test_a_large_delta_can_be_confirmed():
    assert finish(make_run(delta=0.1, allow_large_delta=True)).isfinite().all()


def test_an_optimizer_that_asks_for_several_gradients_is_refused():
    model = make_model()
    with pytest.raises(TypeError, match="LBFGS"):
        make_run(model, torch.optim.LBFGS(model.parameters()))


def test_numpy_numbers_are_numbers():
    run = make_run(steps=np.int64(2), batch_size=np.int32(12), noise_multiplier=np.float32(1.5))
    assert finish(run).isfinite().all()
    assert run.epsilon() > 0


def test_a_tokenizers_batch_keeps_its_kind():
    class Encoding(UserDict):
        def __getattr__(self, name):
            return self.data[name]

    def collate(examples):
        return Encoding(
            x=torch.stack([x for x, _ in examples]), y=torch.tensor([int(y) for _, y in examples])
        )

    def loss_by_attribute(model, batch):
        return loss(model, (batch.x, batch["y"]))

    model = make_model()
    run = adamas.make_private(
        *(model, rules.SGD(model.parameters()), make_data(), loss_by_attribute),
        **{"batch_size": 10, "steps": 2, "noise_multiplier": 1.0, "delta": 1e-3, "collate_fn": collate},
    )
    assert finish(run).isfinite().all()


def test_no_trainable_parameter_is_refused():
    model = make_model().requires_grad_(False)
    with pytest.raises(ValueError, match="trainable parameter"):
        make_run(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_rule_on_other_parameters_is_refused_with_a_name():
    model, other = make_model(), make_model()
    with pytest.raises(ValueError, match=r"'0.weight'"):
        make_run(model, rules.SGD(other.parameters()))
    with pytest.raises(ValueError, match=r"'2.weight'"):
        make_run(model, rules.SGD(model[0].parameters()))
    with pytest.raises(ValueError, match="2 more"):
        make_run(model, rules.SGD([*model.parameters(), *other[0].parameters()]))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda model, batch: loss(model, batch).mean(),
        lambda model, batch: loss(model, batch).unsqueeze(1),
        lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
    ],
)
def test_a_loss_that_is_not_one_number_per_example_is_refused(wrong):
    model = make_model()
    with pytest.raises(adamas.UnsupportedError, match="reduction"):
        adamas.make_private(
            model,
            rules.SGD(model.parameters()),
            make_data(),
            wrong,
            batch_size=10,
            steps=1,
            noise_multiplier=1.0,
            delta=1e-3,
        )


def refuse(model, match, the_loss=loss, data=None):
    with pytest.raises(adamas.UnsupportedError, match=match):
        adamas.make_private(
            model,
            rules.SGD(model.parameters()),
            data or make_data(),
            the_loss,
            batch_size=10,
            steps=1,
            noise_multiplier=1.0,
            delta=1e-3,
        )


def test_batch_norm_is_refused_in_training_and_accepted_in_evaluation():
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    refuse(model, "1 is a BatchNorm1d.*GroupNorm")
    model[1].eval()
    run = make_run(model)
    finish(run)
    run = make_run(model)
    model.train()
    with pytest.raises(adamas.UnsupportedError, match="BatchNorm1d"):
        finish(run)


class CenteredOverTheBatch(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def forward(self, x):
        return self.layer(x - x.mean(0))


class ScaledByTheBatch(nn.Module):
    """A statistic over the batch through which no gradient flows."""

    def __init__(self, statistic):
        super().__init__()
        self.layer = nn.Linear(5, 2)
        self.statistic = statistic

    def forward(self, x):
        return self.layer(x) * self.statistic(x.detach()).mean()


def test_statistics_over_the_batch_are_refused():
    refuse(CenteredOverTheBatch(), "mixes the examples")
    refuse(ScaledByTheBatch(lambda x: x.mean(0).abs()), "mixes the examples")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the deviation of one example is NaN
        refuse(ScaledByTheBatch(lambda x: x.std(0)), "mixes the examples")


def test_a_forward_that_changes_state_is_refused_and_the_state_restored():
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(5, 4)), nn.Linear(4, 2))
    before = copy.deepcopy(model.state_dict())
    refuse(model, "buffer '0.parametrizations.weight.0._u'")
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_tensors_that_are_not_batch_first_are_refused():
    data = make_data()

    def time_first(examples):
        return torch.stack([x for x, _ in examples], dim=1), torch.tensor([int(y) for _, y in examples])

    model = make_model()
    with pytest.raises(ValueError, match="batch-first"):
        make_run(model, data=data, collate_fn=time_first)


def test_a_model_that_vmap_cannot_run_gets_the_loop_and_the_user_can_ask():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 2)

        def forward(self, x):
            return self.layer(x) if x.sum().item() > 0 else self.layer(-x)

    data = make_data()
    with pytest.raises(adamas.UnsupportedError, match="engine='loop'"):
        make_run(Branching(), data=TensorDataset(data.tensors[0].abs(), data.tensors[1]), engine="vmap")
    run = make_run(Branching(), data=TensorDataset(data.tensors[0].abs(), data.tensors[1]))
    assert run.engine == "loop"
    assert finish(run).isfinite().all()


def test_the_model_after_a_run_is_an_ordinary_module():
    model = make_model()
    keys, hooks = list(model.state_dict()), [dict(m.__dict__) for m in model.modules()]
    finish(make_run(model))
    assert list(model.state_dict()) == keys
    for module, before in zip(model.modules(), hooks, strict=True):
        assert module.__dict__.keys() == before.keys()
        assert not module._forward_hooks
        assert not module._backward_hooks
    model.zero_grad()
    loss(model, make_data().tensors).mean().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_progress_is_shown_only_when_asked(capsys):
    finish(make_run())
    assert capsys.readouterr().err == ""
    finish(make_run(progress=True))
    assert "6/6" in capsys.readouterr().err


# --- another rule in the middle of a run ------------------------------------------------------------------


def test_another_rule_takes_over_within_the_same_budget():
    run = make_run(epsilon=2.0, noise_multiplier=None)
    for step in run:
        if step.number == 3:
            break
    run.rule = rules.AdamBC(run.model.parameters())
    finish(run)
    assert run.steps_done == 6
    assert run.epsilon() <= 2.0
    assert run.rule.state[run.rule.trainable()[0]]["step"] == 3


def test_a_rule_over_other_parameters_is_refused():
    run = make_run()
    with pytest.raises(ValueError, match="hold the model's"):
        run.rule = rules.Adam(make_model().parameters())
    with pytest.raises(ValueError, match="hold the model's"):
        run.rule = rules.Adam(list(run.model.parameters())[:1])
    finish(run)


def test_a_scheduler_of_the_old_rule_is_refused():
    model = make_model()
    rule = rules.Adam(model.parameters(), lr=0.01)
    run = make_run(model, rule, scheduler=torch.optim.lr_scheduler.ExponentialLR(rule, 0.9))
    new = rules.SGD(model.parameters())
    with pytest.raises(ValueError, match="scheduler"):
        run.rule = new
    run.scheduler = None
    run.rule = new
    finish(run)


def test_what_trains_may_not_change_behind_the_rule():
    run = make_run()
    next(iter(run))
    spent = run.epsilon()
    run.model.register_parameter("extra", nn.Parameter(torch.zeros(1)))
    with pytest.raises(ValueError, match="extra"):
        next(iter(run))
    assert run.epsilon() == spent
