"""`adamas check` on sabotaged runs: each kind of defect is caught by a row, and a sound run by none.

The run is made by `make_private` and then changed as a faulty integration would change it. Where the defect
is the user's own, `make_private` or a release may refuse it: that is caught, too.
"""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset, default_collate

import adamas
import adamas.check
import adamas.privatize
from adamas import rules
from adamas.check import CHECKS, FAIL, PASS, check
from adamas.engines import ENGINES, Loop
from adamas.sampling import Draw, Poisson, Shuffled

N, B = 400, 40
REFUSED = "a run that can be made"

RATE, SIZES, ANEW = "sampling as stated", "batch sizes as stated", "batches drawn anew"
SENSITIVITY, LARGE = "sensitivity in the geometry", "large example"
MIXED, GRADIENTS, STATE = "examples mixed by a layer", "gradients as autograd's", "state between batches"
TENSORS, ROWS = "batch of tensors", "row for each example"
REAL, MINE = "real parameters", "parameters of the model only"


def loss(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y, reduction="none")


def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 6, generator=generator)
    return TensorDataset(x, (x[:, 0] + x[:, 1] > 0).long())


class Examples(Dataset):
    """The same, one by one, so that collate_fn has something to do."""

    def __init__(self):
        self.x, self.y = data().tensors

    def __len__(self):
        return N

    def __getitem__(self, index):
        return self.x[index], self.y[index]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 2)
        self.frozen = nn.Parameter(torch.ones(8), requires_grad=False)
        self.register_buffer("seen", torch.zeros(6))
        self.kept = torch.zeros(6)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)) * self.frozen)


def made(loss=loss, model=Model, dataset=None, **changes):
    settings = {"batch_size": B, "steps": 12, "noise_multiplier": 1.0, "delta": 1e-3, "accountant": "rdp"}
    torch.manual_seed(0)
    model = model()
    rule = rules.Adam(model.parameters(), lr=0.01)
    return adamas.make_private(model, rule, dataset or data(), loss, **({"seed": 5} | settings | changes))


def rows_of(monkeypatch, make_run, *names):
    """The rows of these names, and nothing more is replayed."""
    monkeypatch.setattr(adamas.check, "CHECKS", [one for one in CHECKS if one.name in names])
    return {row.name: row for row in check(make_run)}


def assert_caught(monkeypatch, make_run, *names):
    rows = rows_of(monkeypatch, make_run, *names)
    if REFUSED in rows:
        assert rows[REFUSED].verdict == FAIL
        return
    assert {name: row.verdict for name, row in rows.items()} == dict.fromkeys(names, FAIL), rows
    assert all(row.seen and row.remedy for row in rows.values())


# --- sound runs -----------------------------------------------------------------------------------------


def sound():
    return made()


def sound_and_odd():
    """Padded texts of several lengths, random values in collate_fn, micro-batches, a count of calls."""

    class Texts(Dataset):
        def __len__(self):
            return N

        def __getitem__(self, index):
            return torch.arange(1, 2 + index % 7, dtype=torch.float32) * (1 + index % 5), index % 2

    def collate(examples):
        x = nn.utils.rnn.pad_sequence([x for x, _ in examples], batch_first=True)
        x = F.pad(x, (0, 7 - x.shape[1]))
        return x + 0.01 * torch.randn_like(x), torch.tensor([y for _, y in examples])

    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.calls = nn.Linear(7, 2), 0

        def forward(self, x):
            self.calls += 1
            return self.linear(F.dropout(x, 0.2))

    return made(model=Counting, dataset=Texts(), collate_fn=collate, micro_batch_size=16, engine="vmap")


def sound_and_extreme():
    """Examples whose gradients vanish beside others that are huge."""
    x, y = data().tensors
    x = x.clone()
    x[::3] *= 30
    return made(dataset=TensorDataset(x, y))


@pytest.mark.audits
@pytest.mark.parametrize("make_run", [sound, sound_and_odd, sound_and_extreme])
def test_a_sound_run_is_caught_by_no_row(make_run):
    rows = check(make_run)
    assert len(rows) == len(CHECKS)
    assert [row for row in rows if row.verdict == FAIL] == []


# --- how batches are drawn and loaded -------------------------------------------------------------------


def of_indices(indices, **settings):
    def make_run():
        run = made(**settings)
        run.loader.sampler.indices = lambda step: Draw(indices(run, step))
        return run

    return make_run


def of_draws(change, **settings):
    def make_run():
        run = made(**settings)
        original = run.loader.draw
        run.loader.draw = lambda step: change(original, step)
        return run

    return make_run


def generator(run, step):
    return run.noise.seed.generator("sabotage", step)


def fixed_size(run, step):
    return generator(run, step).choice(N, B, replace=False)


def shuffled(run, step):
    return Shuffled(N, B, run.noise.seed).indices(step).indices


def shuffled_with_random_sizes(run, step):
    epoch, place = divmod(step, N // B - 2)
    order = generator(run, epoch).permutation(N)
    cuts = np.cumsum([0, *generator(run, 10**6 + epoch).binomial(N, B / N, N // B - 2)])
    return order[cuts[place] : cuts[place + 1]]


def shuffled_once(run, step):
    return Shuffled(N, B, run.noise.seed).indices(step % (N // B)).indices


def higher_rate(run, step):
    return np.flatnonzero(generator(run, step).random(N) < 1.05 * B / N)


def neighbours(run, step):
    size = generator(run, step).binomial(N, B / N)
    return (int(generator(run, 10**6 + step).random() * N) + np.arange(size)) % N


def half_of_the_data(run, step):
    return np.flatnonzero(generator(run, step).random(N // 2) < 2 * B / N)


def one_example_always(run, step):
    drawn = Poisson(N, B, run.noise.seed).indices(step).indices
    return np.unique([*drawn[drawn != drawn.max(initial=0)], 7]) if len(drawn) else drawn


def with_replacement(run, step):
    return generator(run, step).integers(0, N, generator(run, 10**6 + step).binomial(N, B / N))


def each_batch_twice():
    run = made()
    original = run.loader.batches

    def batches(first, end):
        for batch in original(first, end):
            yield batch
            yield batch

    run.loader.batches = batches
    return run


def overlapping_micro_batches():
    run = made(micro_batch_size=16)

    def chunks(draw):
        return [(draw.indices[i : i + 17], 0) for i in range(0, len(draw.indices), 16)]

    run.loader.chunks = chunks
    return run


def padding_that_counts():
    run = made(sampling="truncated-poisson", max_batch_size=60, accountant="pld", steps=2)
    original = run.loader.chunks
    run.loader.chunks = lambda draw: [(indices, 0) for indices, _ in original(draw)]
    return run


def a_higher_rate_of_truncated_batches():
    run = made(sampling="truncated-poisson", max_batch_size=50, accountant="pld", steps=2)

    def indices(step):
        chosen = higher_rate(run, step)[:50]
        return Draw(
            np.concatenate([chosen, np.zeros(50 - len(chosen), dtype=chosen.dtype)]), 50 - len(chosen)
        )

    run.loader.sampler.indices = indices
    return run


def an_epoch_with_a_batch_twice():
    run = made(sampling="shuffled", steps=5)
    original = run.loader.draw
    run.loader.draw = lambda step: original(step - step % 2)
    return run


def workers_that_load_others():
    run = made(num_workers=1)
    original = run.loader._prefetch

    def prefetch(first, end):
        return ([(data[0] + 1) % N] for data in original(first, end))

    run.loader._prefetch = prefetch
    return run


DRAWN = {
    "fixed-size batches as Poisson": (of_indices(fixed_size), [SIZES]),
    "shuffled batches as Poisson": (of_indices(shuffled), [SIZES, ANEW]),
    "shuffled batches of random sizes as Poisson": (of_indices(shuffled_with_random_sizes), [ANEW]),
    "one permutation for all epochs": (of_indices(shuffled_once), [SIZES, ANEW]),
    "a rate 5% too high": (of_indices(higher_rate), [RATE]),
    "neighbours that come together": (of_indices(neighbours), [ANEW]),
    "half of the data at twice the rate": (of_indices(half_of_the_data), [RATE, ANEW]),
    "one example in all batches": (of_indices(one_example_always), [RATE]),
    "examples drawn with replacement": (of_indices(with_replacement), [RATE]),
    "each draw for two steps": (of_draws(lambda draw, step: draw(step // 2)), [ANEW]),
    "50 draws again and again": (of_draws(lambda draw, step: draw(step % 50)), [ANEW]),
    "each batch twice in a row": (each_batch_twice, [ANEW]),
    "micro-batches that overlap": (overlapping_micro_batches, [RATE]),
    "padding that counts": (padding_that_counts, [RATE]),
    "truncated batches at a rate 5% too high": (a_higher_rate_of_truncated_batches, [RATE]),
    "workers that load other examples": (workers_that_load_others, [RATE]),
    "an epoch with a batch twice": (an_epoch_with_a_batch_twice, [RATE]),
}


def test_workers_that_load_what_was_drawn_pass(monkeypatch):
    assert rows_of(monkeypatch, lambda: made(num_workers=1), RATE)[RATE].verdict == PASS


@pytest.mark.audits
@pytest.mark.parametrize("kind", DRAWN)
def test_batches_that_are_not_drawn_as_stated_are_caught(monkeypatch, kind):
    make_run, names = DRAWN[kind]
    assert_caught(monkeypatch, make_run, *names)


# --- clipping -------------------------------------------------------------------------------------------


def mined(norms):
    """Only the 16 largest gradients count."""
    weights = norms.clamp(min=1.0).reciprocal()
    return torch.where(norms >= norms.sort().values[-16:][0], weights, torch.zeros_like(weights))


def by_the_mean(norms):
    return torch.ones_like(norms) / norms.mean().clamp(min=1.0)


def by_the_largest(norms):
    return torch.ones_like(norms) / norms.max().clamp(min=1.0)


def of_large_batches_only(norms):
    """Leaves batches alone that are larger than those of a quick test."""
    return torch.ones_like(norms) if len(norms) > 20 else norms.clamp(min=1.0).reciprocal()


@pytest.mark.audits
@pytest.mark.parametrize("weights", [mined, by_the_mean, by_the_largest, of_large_batches_only])
def test_clipping_that_depends_on_the_batch_is_caught(monkeypatch, weights):
    monkeypatch.setattr(adamas.privatize, "clip_weights", weights)
    assert_caught(monkeypatch, sound, SENSITIVITY)


class WithoutBiases(Loop):
    """Forgets a part of the gradient in the norm."""

    def norms(self, geometry):
        squares = torch.zeros(len(self._chunks), dtype=torch.float64)
        for index in range(len(self._chunks)):
            for p, g in self._chunk(index).items():
                if p.dim() > 1:
                    squares[index] += geometry.squared_norms(p, g)[0]
        return squares.sqrt()


class Shifted(Loop):
    """Gives each example the norm of the one before it."""

    def norms(self, geometry):
        return super().norms(geometry).roll(1)


class Swapping(Loop):
    """Gives an example of a large batch the gradient of another one."""

    def weighted_sum(self, weights, out=None, *, accumulate=False):
        swapped = weights.flip(0) if len(weights) > 20 else weights
        return super().weighted_sum(swapped, out, accumulate=accumulate)


class Cancelling(Loop):
    """Takes norms of sums over two times by products of float32 numbers, which cancel."""

    def norms(self, geometry):
        x = self._batch[0]  # (n, 2, d); the loss is a difference of the two times
        gram = torch.einsum("ntd,nsd->nts", x, x)
        signs = torch.tensor([1.0, -1.0])
        return (torch.einsum("nts,t,s->n", gram, signs, signs).clamp(min=0) * 100).double().sqrt()


@pytest.mark.audits
@pytest.mark.parametrize(
    ("engine", "names"),
    [
        (WithoutBiases, [GRADIENTS, SENSITIVITY]),
        (Shifted, [GRADIENTS, SENSITIVITY]),
        (Swapping, [GRADIENTS]),
    ],
)
def test_an_engine_that_is_wrong_on_a_whole_batch_is_caught(monkeypatch, engine, names):
    monkeypatch.setitem(ENGINES, "loop", engine)
    assert_caught(monkeypatch, lambda: made(engine="loop"), *names)


def differences():
    """A model that reads the difference of two times."""

    class Difference(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 1, bias=False)

        def forward(self, x):
            return self.linear(x[:, 0]).sub(self.linear(x[:, 1])).squeeze(1) * 10

    x = torch.randn(N, 2, 6, generator=torch.Generator().manual_seed(1))
    return made(lambda model, batch: model(batch[0]), Difference, TensorDataset(x), engine="loop")


def test_norms_that_cancel_are_caught(monkeypatch):
    assert rows_of(monkeypatch, differences, LARGE)[LARGE].verdict == PASS
    monkeypatch.setitem(ENGINES, "loop", Cancelling)
    assert rows_of(monkeypatch, differences, GRADIENTS)[GRADIENTS].verdict == PASS
    assert_caught(monkeypatch, differences, LARGE)


# --- models and losses that mix examples ----------------------------------------------------------------


def hard_examples(model, batch):
    losses = loss(model, batch)
    if len(losses) <= 16:
        return losses
    return losses * (losses >= losses.detach().sort().values[-16])


def batch_statistics(model, batch):
    x, y = batch
    return loss(model, (x - x.mean(0) if len(x) > 7 else x, y))


def classes_together(model, batch):
    x, y = batch
    hidden = model.first(x)
    same = (y[:, None] == y[None]).to(x) / len(y)
    return loss(model, batch) + (hidden - same @ hidden.detach()).square().mean(1) * (len(y) > 3)


def capacity(model, batch):
    _, y = batch
    place = (y == 1).cumsum(0)
    return loss(model, batch) * ((y == 0) | (place <= 8))


def neighbours_in_the_batch(model, batch):
    x, y = batch
    return loss(model, (x + (x.roll(1, 0) if len(x) > 30 else 0 * x), y))


class Centered(torch.autograd.Function):
    """Mixes examples on the way back only."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient - gradient.mean(0) if len(gradient) > 3 else gradient


def backward_function(model, batch):
    x, y = batch
    hidden = Centered.apply(torch.tanh(model.first(x)))
    return F.cross_entropy(model.last(hidden), y, reduction="none")


def backward_hook(model, batch):
    x, y = batch
    hidden = torch.tanh(model.first(x))
    if hidden.requires_grad and len(x) > 3:
        hidden.register_hook(lambda gradient: gradient - gradient.mean(0))
    return F.cross_entropy(model.last(hidden), y, reduction="none")


MIXING = {
    "hard-example mining": hard_examples,
    "batch statistics from 8 examples on": batch_statistics,
    "a term that pulls classes together": classes_together,
    "a capacity": capacity,
    "the neighbour in batches of more than 30": neighbours_in_the_batch,
    "an autograd function that mixes": backward_function,
    "a hook that mixes": backward_hook,
}


@pytest.mark.parametrize("kind", MIXING)
def test_a_loss_that_mixes_examples_is_caught(monkeypatch, kind):
    assert_caught(monkeypatch, lambda: made(MIXING[kind], engine="vmap"), MIXED)


@pytest.mark.audits
@pytest.mark.filterwarnings("ignore:engine='auto' takes")
@pytest.mark.parametrize("kind", MIXING)
def test_a_loss_that_mixes_examples_has_no_influence_or_is_caught(monkeypatch, kind):
    """Whatever engine the run takes: either nothing is wrong with its releases, or a row says what is."""
    rows = rows_of(monkeypatch, lambda: made(MIXING[kind]), SENSITIVITY, MIXED)
    assert FAIL in {row.verdict for row in rows.values()}


# --- state ----------------------------------------------------------------------------------------------


def leaking(write, least=21):
    def forward(model, batch):
        if len(batch[0]) >= least:
            with torch.no_grad():
                write(model, batch[0])
        return loss(model, batch)

    return forward


def warmed_up(model, x):
    model.calls = getattr(model, "calls", 0) + 1
    if model.calls > 3:
        model.seen.add_(x.mean(0))


class Remembering(nn.Module):
    """A loss with a memory of its own."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, model, batch):
        losses = loss(model, batch)
        with torch.no_grad():
            self.mean.mul_(0.9).add_(losses.mean())
        return losses


WRITES = {
    "a buffer": leaking(lambda model, x: model.seen.add_(x.mean(0))),
    "a buffer, by its data": leaking(lambda model, x: model.seen.data.copy_(x[0])),
    "a buffer that is exchanged": leaking(lambda model, x: setattr(model, "seen", x[0].clone())),
    "a buffer after a warm-up": leaking(warmed_up, 1),
    "a frozen parameter": leaking(lambda model, x: model.frozen.mul_(1 + x.mean() / 100)),
    "a trainable parameter": leaking(lambda model, x: model.last.bias.add_(x.mean() / 100)),
    "an attribute": leaking(lambda model, x: setattr(model, "kept", x[0].clone())),
    "a number": leaking(lambda model, x: setattr(model, "mean", float(x.mean()))),
    "a list": leaking(lambda model, x: setattr(model, "history", [*getattr(model, "history", []), x[0]])),
    "the loss": Remembering,
}


@pytest.mark.parametrize("engine", ["loop", "bookkeeping"])
@pytest.mark.parametrize("kind", WRITES)
def test_a_forward_that_leaves_something_behind_is_caught(monkeypatch, kind, engine):
    """By engine loop each example is alone, so that the run itself never meets the large batch."""

    def make_run():
        write = WRITES[kind]
        return made(write() if isinstance(write, type) else write, engine=engine)

    assert_caught(monkeypatch, make_run, STATE)


# --- batches --------------------------------------------------------------------------------------------


def with_texts(examples):
    x, y = default_collate(examples)
    return x, y, [str(float(value)) for value in x[:, 0]]


def texts_of_large_batches(examples):
    return with_texts(examples) if len(examples) > 20 else (*default_collate(examples), None)


def repeated(examples):
    return default_collate([examples[i // 2 * 2] for i in range(len(examples))])


def mixed_up(examples):
    x, y = default_collate(examples)
    return x.lerp(x[torch.randperm(len(x))], 0.3), y


def centered(examples):
    x, y = default_collate(examples)
    return x - x.mean(0), y


def sorted_rows(examples):
    return default_collate(sorted(examples, key=lambda example: float(example[0][0])))


def of_large_batches(examples):
    return centered(examples) if len(examples) > 20 else default_collate(examples)


def padded_by_others(examples):
    """The rest of a row shows the longest one."""
    x, y = default_collate(examples)
    longest = 1 + (x[:, 0].abs() * 10).long() % 6
    row = x[longest.argmax()]
    return torch.where(torch.arange(6) < longest[:, None], x, row), y


def unseeded(examples):
    x, y = default_collate(examples)
    return x.lerp(x.flip(0), float(np.random.default_rng().uniform())), y


COLLATED = {
    "texts beside tensors": (with_texts, TENSORS),
    "texts in large batches": (texts_of_large_batches, TENSORS),
    "every other example twice": (repeated, ROWS),
    "mixup": (mixed_up, ROWS),
    "mixup with other random values": (unseeded, ROWS),
    "the batch's mean subtracted": (centered, ROWS),
    "the same, from 21 examples on": (of_large_batches, ROWS),
    "sorted rows": (sorted_rows, ROWS),
    "padding made of another example": (padded_by_others, ROWS),
}


@pytest.mark.parametrize("kind", COLLATED)
def test_a_collate_function_that_mixes_is_caught(monkeypatch, kind):
    """Put in place after the run was made, which may refuse it."""
    collate, name = COLLATED[kind]

    def make_run():
        run = made(lambda model, batch: loss(model, batch[:2]), dataset=Examples())
        run.loader.collate_fn = collate
        return run

    assert_caught(monkeypatch, make_run, name)


# --- parameters -----------------------------------------------------------------------------------------


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 2, dtype=torch.complex64))

    def forward(self, x):
        return (x.to(torch.complex64) @ self.weight).abs()


def test_complex_parameters_are_caught(monkeypatch):
    def make_run():
        try:
            return made(model=Complex)
        except (TypeError, ValueError):  # then put in place afterwards
            run = made()
            run.model.weight = nn.Parameter(torch.randn(6, 2, dtype=torch.complex64))
            return run

    assert_caught(monkeypatch, make_run, REAL)


def test_parameters_of_the_loss_are_caught(monkeypatch):
    temperature = nn.Parameter(torch.ones(()))

    def scaled(model, batch):
        return loss(model, batch) * temperature

    def make_run():
        run = made()
        run.loss = scaled
        return run

    assert_caught(monkeypatch, make_run, MINE)
    assert_caught(monkeypatch, lambda: made(scaled, engine="loop"), MINE)
    temperature.requires_grad_(False)
    assert rows_of(monkeypatch, make_run, MINE)[MINE].verdict == PASS
