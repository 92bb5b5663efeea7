"""SPARTA: private scores of rows, and three phases within one run."""

import copy
import math
import re
from pathlib import Path

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import adamas
from adamas import UnsupportedError, finetune, rules
from adamas.finetune import KeptRows, merge_rows, row_scores, select, sparta, top_rows
from tests.support.finetuning import (
    CLASSES,
    FALSE_ALARM,
    D,
    N,
    classification,
    mlp,
    norms_of,
    per_example,
    private,
    small_gpt2,
    trainable_names,
)

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")

# --- scores ---------------------------------------------------------------------------------------------


def test_scores_are_sums_of_absolute_values_of_clipped_sums():
    model = mlp()
    finetune.bitfit(model, norms=True)
    clip, before = 0.3, copy.deepcopy(model.state_dict())
    scores = row_scores(private(model, clip_norm=clip), steps=4)
    assert set(scores) == {"0.weight", "3.weight"}
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert "0.weight" not in trainable_names(model)

    expected = {"0.weight": torch.zeros(10), "3.weight": torch.zeros(8)}
    for p in model.parameters():
        p.requires_grad_(True)  # biases, norms, head and both weights
    for _, batch in zip(
        range(4), private(mlp()).batches(), strict=False
    ):  # the same seed gives the same batches
        total = {name: 0.0 for name in expected}
        for rows, padding in batch:
            assert padding == 0
            gradients = per_example(model, rows)
            factors = (clip / norms_of(gradients)).clamp(max=1)
            for name in expected:
                total[name] += torch.einsum("i,i...->...", factors, gradients[name])
        for name in expected:
            expected[name] = expected[name] + total[name].abs().sum(1) / 12
    for name in expected:
        assert torch.allclose(scores[name], expected[name], rtol=1e-9)


def test_the_noise_of_a_score_grows_with_columns_and_steps_at_false_alarm_rate_1e_6():
    """Dead units have no gradient, so that their scores are noise, clamped at 0.

    Half of the scores are 0 and the others half-normal. A Kolmogorov-Smirnov test with a false-alarm rate of
    1e-6 accepts the deviation sqrt(columns * steps) z / B and rejects 2/3 and 3/2 of it.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(D, 3000), nn.ReLU(), nn.Linear(3000, CLASSES)).double()
    with torch.no_grad():
        model[0].bias.fill_(-1e3)
    finetune.head(model)
    scores = row_scores(private(model, noise_multiplier=2.0), steps=3)["0.weight"].numpy()
    assert stats.binomtest(int((scores == 0).sum()), 3000).pvalue > FALSE_ALARM
    std = math.sqrt(D * 3) * 2.0 / 12
    positive = scores[scores > 0]
    assert stats.kstest(positive, stats.halfnorm(scale=std).cdf).pvalue > FALSE_ALARM
    for factor in (2 / 3, 3 / 2):
        assert stats.kstest(positive, stats.halfnorm(scale=factor * std).cdf).pvalue < FALSE_ALARM


@pytest.mark.parametrize("within", ["weight", "model"])
def test_top_rows_match_a_sort(within):
    g = torch.Generator().manual_seed(2)
    scores = {name: torch.rand(n, generator=g) for name, n in {"a": 11, "b": 30, "c": 4}.items()}
    scores["b"] *= 3
    rows = top_rows(scores, 0.2, within=within)
    if within == "weight":
        for name, score in scores.items():
            best = np.argsort(-score.numpy())[: round(0.2 * len(score))]
            assert rows[name].tolist() == sorted(best.tolist())
    else:
        threshold = np.sort(np.concatenate([s.numpy() for s in scores.values()]))[-9]
        for name, score in scores.items():
            assert rows[name].tolist() == np.flatnonzero(score.numpy() >= threshold).tolist()
        assert sum(map(len, rows.values())) == 9


def test_top_rows_of_equal_scores_are_the_first_and_bad_arguments_are_refused():
    assert top_rows({"a": torch.zeros(3)}, 0.01) == {"a": torch.tensor([0])}
    assert top_rows({"a": torch.zeros(10)}, 0.3)["a"].tolist() == [0, 1, 2]
    assert top_rows({"a": torch.ones(3)}, 1.0)["a"].tolist() == [0, 1, 2]
    for share in (0.0, 1.5, math.nan):
        with pytest.raises(ValueError, match="share"):
            top_rows({"a": torch.ones(3)}, share)
    with pytest.raises(ValueError, match="within"):
        top_rows({"a": torch.ones(3)}, within="layer")
    with pytest.raises(ValueError, match="scores"):
        top_rows({})


def test_scoring_restores_the_run_and_works_without_the_weights_in_the_rule():
    model = mlp()
    finetune.head(model)
    rule = rules.AdamBC([p for p in model.parameters() if p.requires_grad], lr=0.1)
    run = private(model, rule)
    row_scores(run, "3.weight", steps=2)
    assert run.rule is rule
    assert run.steps_done == 2
    assert trainable_names(model) == {"5.weight", "5.bias"}
    assert not rule.state
    next(iter(run))  # the run continues
    assert run.steps_done == 3
    with pytest.raises(ValueError, match="steps=3 <= 2"):
        row_scores(run, steps=3)
    with pytest.raises(ValueError, match=r"'2.weight'"):
        row_scores(run, ["3.weight", "2"])
    with pytest.raises(ValueError, match="besides its head"):
        row_scores(private(nn.Sequential(nn.Linear(D, CLASSES)).double()))


def test_a_refused_release_leaves_model_and_run_unchanged():
    model = mlp()
    finetune.head(model)
    run = private(model)
    run.loss = lambda model, batch: classification(model, batch).mean()
    rule = run.rule
    with pytest.raises(UnsupportedError):
        row_scores(run)
    assert run.rule is rule
    assert trainable_names(model) == {"5.weight", "5.bias"}
    assert run.ledger.entries == []


# --- the whole recipe -----------------------------------------------------------------------------------


def sgd(model):
    return rules.SGD(model.parameters(), lr=0.5, momentum=0.9)


def test_three_phases_are_one_composition_within_the_budget():
    model = mlp()
    finetune.bitfit(model)
    run = private(model, sgd(model), noise_multiplier=None, epsilon=2.0, steps=20)
    first, steps = run.rule, []
    before = {}
    for step in sparta(run, sgd, head_steps=6, mask_steps=4, share=0.25):
        steps.append(step.number)
        if step.number == 6:
            before = copy.deepcopy(model.state_dict())
        if step.number == 11:
            assert run.rule is not first
            assert {m.new.shape for m in model.modules() if isinstance(m, KeptRows)} == {(2, D), (2, 10)}
    assert steps == [*range(1, 7), *range(11, 21)]
    event = dp_accounting.PoissonSampledDpEvent(12 / N, dp_accounting.GaussianDpEvent(run.noise_multiplier))
    assert run.ledger.entries == [(event, 20)]
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(event, 20)
    assert run.epsilon() == pytest.approx(accountant.get_epsilon(1e-4), abs=1e-9)
    assert 1.9 < run.epsilon() <= 2.0
    merge_rows(model)
    for name in ("0.weight", "3.weight"):
        rows = (model.state_dict()[name] != before[name]).all(1)
        assert int(rows.sum()) == 2
        assert torch.equal(model.state_dict()[name][~rows], before[name][~rows])
    assert len(list(run)) == 0  # no step is left


def test_the_third_phase_trains_the_rows_with_the_top_scores():
    def scored(seed):
        model = mlp()
        finetune.bitfit(model)
        run = private(model, sgd(model), noise_multiplier=1.0, steps=9, seed=seed)
        return model, run

    _model, run = scored(7)
    for _, _ in zip(range(3), run, strict=False):
        pass
    expected = top_rows(row_scores(run, steps=3), 0.4, within="model")
    twin, run = scored(7)
    for _ in sparta(run, sgd, head_steps=3, mask_steps=3, share=0.4, within="model"):
        pass
    kept = {name: getattr(twin.get_submodule(name[0]), "rows", torch.tensor([])) for name in expected}
    assert {name: rows.tolist() for name, rows in kept.items()} == {
        n: r.tolist() for n, r in expected.items()
    }
    assert sum(map(len, expected.values())) == round(0.4 * 18)


def test_the_mask_finds_the_rows_that_carry_gradients():
    """Four of forty units are alive. Their scores exceed 13 standard deviations of a dead unit's score.

    A wrong row is kept with probability below 1e-6.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(D, 40), nn.ReLU(), nn.Linear(40, CLASSES)).double()
    alive = [3, 17, 21, 38]
    with torch.no_grad():
        model[0].bias.fill_(-1e3)
        model[0].bias[alive] = 3.0
        model[2].weight.mul_(3)
    finetune.head(model)
    run = private(model, noise_multiplier=0.02, steps=30)
    scores = row_scores(run, "0.weight")["0.weight"]
    std = math.sqrt(D * 30) * 0.02 / 12
    assert float(scores[alive].min()) > 13 * std
    assert top_rows({"0.weight": scores}, 0.1)["0.weight"].tolist() == alive


@pytest.mark.slow
def test_a_scoring_release_beyond_the_budget_is_refused():
    model = mlp()
    finetune.head(model)
    run = private(model, noise_multiplier=None, epsilon=1.0, steps=3, accountant="rdp")
    batch = next(iter(run.batches()))
    run.privatize(batch, absolute=True)
    with pytest.raises(RuntimeError, match="exceed epsilon=1"):
        run.privatize(batch, absolute=True)


def test_gpt2_trains_through_all_phases():
    model = small_gpt2()
    keys = list(model.state_dict())
    select(model, ["*bias", "transformer.ln_f"])
    ids = torch.randint(1, 30, (30, 6), generator=torch.Generator().manual_seed(0))

    def loss(model, batch):
        logits = model(input_ids=batch[0]).logits
        return F.cross_entropy(logits[:, :-1].transpose(1, 2), batch[0][:, 1:], reduction="none").mean(1)

    run = adamas.make_private(
        model,
        sgd(model),
        TensorDataset(ids),
        loss,
        batch_size=6,
        steps=4,
        noise_multiplier=1.0,
        delta=1e-3,
        seed=0,
    )
    weights = "transformer.h.2.*.weight"
    with pytest.raises(ValueError, match=r"ln_1\.weight"):
        sparta(run, sgd, head_steps=1, mask_steps=1, weights=weights)
    weights = ["transformer.h.2.attn.c_attn", "transformer.h.2.mlp.c_*.weight"]
    with pytest.raises(ValueError, match="bias"):
        sparta(run, sgd, head_steps=1, mask_steps=1, weights=weights)
    weights[0] += ".weight"
    for _ in sparta(run, sgd, head_steps=1, mask_steps=1, weights=weights):
        pass
    kept = {name: m.new.shape for name, m in model.named_modules() if isinstance(m, KeptRows)}
    assert kept == {
        "transformer.h.2.attn.c_attn": (10, 16), "transformer.h.2.mlp.c_fc": (13, 16),
        "transformer.h.2.mlp.c_proj": (3, 64),
    }  # fmt: skip
    merge_rows(model)
    assert list(model.state_dict()) == keys
    assert run.steps_done == 4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"head_steps": 0}, "head_steps=0"),
        ({"mask_steps": 0}, "mask_steps=0"),
        ({"head_steps": 3, "mask_steps": 2}, "leave some of the run's 5"),
        ({"share": 0.0}, "share=0.0"),
        ({"within": "row"}, "within='row'"),
        ({"weights": "nothing"}, "'nothing'"),
    ],
)
def test_bad_options_are_refused_before_anything_is_released(options, words):
    run = private(mlp())
    with pytest.raises(ValueError, match=re.escape(words)):
        sparta(run, sgd, **({"head_steps": 1, "mask_steps": 1} | options))
    assert run.ledger.entries == []


def test_sparta_refuses_a_run_that_has_begun_or_has_an_ema_or_scheduler():
    run = private(mlp())
    next(iter(run))
    with pytest.raises(ValueError, match="not begun"):
        sparta(run, sgd, head_steps=1, mask_steps=1)
    with pytest.raises(ValueError, match="ema="):
        sparta(private(mlp(), ema=0.9), sgd, head_steps=1, mask_steps=1)
    model = mlp()
    rule = sgd(model)
    scheduler = torch.optim.lr_scheduler.ConstantLR(rule)
    with pytest.raises(ValueError, match="scheduler="):
        sparta(private(model, rule, scheduler=scheduler), sgd, head_steps=1, mask_steps=1)
    run = private(mlp())
    with pytest.raises(ValueError, match=r"hold the model's parameter '0.new'"):
        list(sparta(run, lambda model: rules.SGD([model[5].weight]), head_steps=1, mask_steps=1))


@pytest.mark.slow
def test_the_code_on_the_page_of_finetuning_runs():
    text = (Path(__file__).parents[2] / "docs/finetuning.md").read_text()
    names: dict[str, Tensor] = {}
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(block, names)
    assert 3.8 < names["spent"] <= 4.0
    assert names["run"].steps_done == 60
