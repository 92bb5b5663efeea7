"""Fine-tuning of a part: selections by name, kept rows, SPARTA; against plain per-example gradients."""

import copy
import math
import os
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
from adamas.engines import ENGINES, Bookkeeping, Loop, trainable_parameters
from adamas.finetune import KeptRows, keep_rows, merge_rows, row_scores, row_weights, select, sparta, top_rows
from adamas.geometry import Geometry

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before the first import of transformers

N, D, CLASSES = 60, 6, 3
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
FALSE_ALARM = 1e-6  # of each statistical test; seeds are fixed, so that it is a statement about the design


def data(n=N, d=D, dtype=torch.float64):
    g = torch.Generator().manual_seed(1)
    return TensorDataset(
        torch.randn(n, d, generator=g, dtype=dtype), torch.randint(CLASSES, (n,), generator=g)
    )


def mlp(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(D, 10), nn.ReLU(), nn.LayerNorm(10), nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, CLASSES)
    ).double()


def classification(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def private(model, rule=None, **options):
    settings = {"batch_size": 12, "steps": 5, "noise_multiplier": 0.0, "delta": 1e-4, "seed": 3} | options
    return adamas.make_private(
        model, rule or rules.SGD(model.parameters(), lr=0.5), data(), classification, **settings
    )


def per_example(model, batch, loss=classification):
    """Gradients by `torch.func`, for every trainable parameter: (n, *shape)."""
    params = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    rest = {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}
    rest |= dict(model.named_buffers())

    def one(params, *example):
        single = tuple(part.unsqueeze(0) for part in example)
        return loss(lambda *x: torch.func.functional_call(model, (params, rest), x), single).sum()

    return torch.func.vmap(torch.func.grad(one), (None, *[0] * len(batch)))(params, *batch)


def norms_of(gradients):
    return torch.stack([g.flatten(1).square().sum(1) for g in gradients.values()]).sum(0).sqrt()


def small_bert():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=8, num_labels=CLASSES, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(config)


def small_gpt2():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=30, n_positions=8, n_embd=16, n_layer=3, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=0, eos_token_id=0, use_cache=False,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(config)


# --- selections -----------------------------------------------------------------------------------------


def trainable_names(model):
    return {name for name, p in model.named_parameters() if p.requires_grad}


def test_a_pattern_takes_parameters_and_whole_modules():
    model = mlp()
    chosen = select(model, ["3", "0.b*"])
    assert chosen.names == ("0.bias", "3.weight", "3.bias")
    assert trainable_names(model) == set(chosen.names)
    assert (chosen.trainable, chosen.total) == (10 + 80 + 8, 6 * 10 + 10 + 20 + 80 + 8 + 24 + 3)
    wider = select(model, "5.weight", freeze_rest=False)
    assert set(wider.names) == {*chosen.names, "5.weight"}


def test_a_module_is_not_taken_for_another_whose_number_begins_alike():
    model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(12)])
    assert select(model, "1").names == ("1.weight", "1.bias")


def test_bitfit_of_bert_trains_every_bias_and_the_classifier():
    model = small_bert()
    names = {name for name, _ in model.named_parameters()}
    chosen = finetune.bitfit(model)
    biases = {name for name in names if re.fullmatch(r".*bias", name)}
    assert set(chosen.names) == biases | {"classifier.weight"} == trainable_names(model)
    assert chosen.trainable == sum(p.numel() for p in model.parameters() if p.requires_grad)
    with_norms = finetune.bitfit(model, norms=True)
    norms = {name for name in names if "LayerNorm.weight" in name}
    assert len(norms) == 7
    assert set(with_norms.names) == set(chosen.names) | norms
    assert set(finetune.bitfit(model, head=()).names) == biases


def test_bitfit_does_not_take_a_module_that_is_called_bias():
    model = nn.ModuleDict({"position_bias": nn.Embedding(4, 2), "head": nn.Linear(2, 2)})
    assert finetune.bitfit(model).names == ("head.weight", "head.bias")


def test_head_and_last_block_of_bert_and_gpt2():
    bert, gpt2 = small_bert(), small_gpt2()
    assert finetune.head(bert).names == ("classifier.weight", "classifier.bias")
    block = finetune.last_block(bert, also="bert.pooler")
    prefixes = {".".join(name.split(".")[:4]) for name in block.names}
    assert prefixes == {
        "bert.encoder.layer.2", "bert.pooler.dense.weight", "bert.pooler.dense.bias",
        "classifier.weight", "classifier.bias",
    }  # fmt: skip
    names = finetune.last_block(gpt2, head=(), blocks=2).names
    assert {".".join(name.split(".")[:3]) for name in names} == {"transformer.h.1", "transformer.h.2"}
    assert len(names) == 24


def test_tied_weights_are_selected_by_either_name_and_said():
    model = small_gpt2()
    for name in ("lm_head.weight", "transformer.wte.weight"):
        chosen = select(model, name)
        assert chosen.names == ("transformer.wte.weight",)
        assert chosen.trainable == 30 * 16
        assert chosen.tied == {"transformer.wte.weight": ("lm_head.weight",)}
        assert "transformer.wte.weight (tied to lm_head.weight)" in str(chosen)
        assert model.lm_head.weight.requires_grad
    assert finetune.head(model).names == ("transformer.wte.weight",)


def test_the_outermost_usual_name_is_the_head():
    inner = nn.ModuleDict({"fc": nn.Linear(3, 3), "out": nn.Linear(3, 3)})
    model = nn.ModuleDict({"body": inner, "score": nn.Linear(3, 2), "last": nn.Linear(3, 2)})
    assert finetune.head(model).names == ("score.weight", "score.bias")
    assert finetune.head(model, "body.fc").names == ("body.fc.weight", "body.fc.bias")
    two = nn.ModuleDict(
        {"a": nn.ModuleDict({"fc": nn.Linear(2, 2)}), "b": nn.ModuleDict({"fc": nn.Linear(2, 2)})}
    )
    with pytest.raises(ValueError, match=r"'a.fc', 'b.fc' all could be it. Say which with head="):
        finetune.bitfit(two)
    with pytest.raises(ValueError, match="patterns="):
        finetune.head(nn.Sequential(nn.Conv2d(1, 1, 1)))


def test_of_equally_long_lists_the_last_has_the_last_block():
    def block():
        return nn.Sequential(nn.Conv2d(2, 2, 1), nn.ReLU())

    model = nn.ModuleDict(
        {f"layer{i}": nn.Sequential(block(), block()) for i in (1, 2)} | {"fc": nn.Linear(2, 2)}
    )
    assert finetune.last_block(model, head=()).names == ("layer2.1.0.weight", "layer2.1.0.bias")
    inner = nn.ModuleList([nn.ModuleList([block(), block()]) for _ in range(2)])
    assert finetune.last_block(nn.ModuleDict({"h": inner, "fc": nn.Linear(2, 2)}), head=()).names == (
        "h.1.0.0.weight", "h.1.0.0.bias", "h.1.1.0.weight", "h.1.1.0.bias",
    )  # fmt: skip
    with pytest.raises(ValueError, match="blocks=3 between 1 and 2"):
        finetune.last_block(model, blocks=3)
    with pytest.raises(ValueError, match="select"):
        finetune.last_block(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))


def test_a_pattern_that_matches_nothing_is_refused_with_near_names():
    model = small_bert()
    before = [p.requires_grad for p in model.parameters()]
    with pytest.raises(ValueError, match=r"'clasifier'.*Near names: 'classifier"):
        select(model, ["bert", "clasifier"])
    assert [p.requires_grad for p in model.parameters()] == before
    with pytest.raises(ValueError, match="none"):
        select(model, [])
    with pytest.raises(TypeError, match="patterns"):
        select(model, [3])
    with pytest.raises(ValueError, match="no parameter's name ends in 'bias'"):
        finetune.bitfit(nn.Sequential(nn.Linear(2, 2, bias=False)), head=())


def test_a_long_selection_prints_shortly():
    text = str(finetune.bitfit(small_bert()))
    assert text.count("\n") == 13
    assert "more in .names" in text
    assert "%" in text.splitlines()[0]


# --- privacy of a selection -----------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_norms_and_sums_run_over_the_selected_parameters_only(engine):
    model, batch = mlp(), data().tensors
    whole = norms_of(per_example(model, batch))
    finetune.bitfit(model)
    gradients = per_example(model, batch)
    assert set(gradients) == {"0.bias", "2.bias", "3.bias", "5.weight", "5.bias"}
    params = trainable_parameters(model)
    built = ENGINES[engine](model, classification, batch)
    norms = built.norms(Geometry.ball(params.values()))
    assert torch.allclose(norms, norms_of(gradients), rtol=1e-9)
    assert (norms < 0.99 * whole).all()  # the whole model's norms would be others
    sums = built.weighted_sum(1 / norms.clamp(min=1))
    assert set(sums) == set(params.values())
    for name, p in params.items():
        expected = torch.einsum("i,i...->...", 1 / norms.clamp(min=1), gradients[name])
        assert torch.allclose(sums[p], expected, rtol=1e-9, atol=1e-12)


def test_removing_an_example_moves_the_sum_of_a_selection_by_one_at_most():
    model, batch = mlp(), data().tensors
    finetune.last_block(nn.Sequential(model, nn.Identity()), head="0.5")
    params = list(trainable_parameters(model).values())
    ball = Geometry.ball(params, 0.05)  # most examples are clipped

    def vector(rows):
        total = adamas.clipped_sum(Bookkeeping(model, classification, [part[rows] for part in batch]), ball)
        return torch.cat([total[p].flatten() for p in params])

    everybody = torch.arange(N)
    lengths = [float((vector(everybody) - vector(everybody[everybody != i])).norm()) for i in range(N)]
    assert max(lengths) <= 1 + 1e-6
    assert max(lengths) > 0.999


def test_training_leaves_frozen_parameters_bit_for_bit():
    model = mlp()
    finetune.bitfit(model)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    chosen = trainable_names(model)
    run = private(model, rules.AdamBC(model.parameters(), lr=0.1), noise_multiplier=1.0)
    for step in run:
        assert set(step.release.mean) == set(trainable_parameters(model).values())
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert changed == chosen


def test_bert_trains_by_its_biases():
    model = small_bert().train()
    finetune.bitfit(model)
    ids = torch.randint(1, 30, (20, 6), generator=torch.Generator().manual_seed(0))

    def loss(model, batch):
        return F.cross_entropy(model(input_ids=batch[0]).logits, batch[1], reduction="none")

    run = adamas.make_private(
        model, rules.SGD(model.parameters(), lr=0.1), TensorDataset(ids, ids[:, 0] % CLASSES), loss,
        batch_size=5, steps=2, noise_multiplier=1.0, delta=1e-3, seed=0,
    )  # fmt: skip
    assert run.engine == "bookkeeping"
    frozen = {name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad}
    assert len(list(run)) == 2
    assert all(torch.equal(p, frozen[name]) for name, p in model.named_parameters() if name in frozen)


# --- kept rows ------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """Reads the weight of its output layer instead of calling it."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.fc(self.attention(x, x, x, need_weights=False)[0].mean(1))


class Twice(nn.Module):
    """One layer in two places."""

    def __init__(self):
        super().__init__()
        self.first = self.second = nn.Linear(8, 8)
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.fc(self.second(torch.tanh(self.first(x))))


class Transposed(nn.Module):
    def __init__(self):
        super().__init__()
        utils = pytest.importorskip("transformers.pytorch_utils")
        self.up = utils.Conv1D(9, 8)  # 9 outputs of 8 inputs
        self.fc = nn.Linear(9, CLASSES)

    def forward(self, x):
        return self.fc(torch.tanh(self.up(x)).mean(1))


def linear_and_time(*shape):
    model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 8), nn.Flatten(), nn.LazyLinear(CLASSES))
    model(torch.randn(2, *shape, 8))
    return model


def convolutions():
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, stride=2, padding=1, padding_mode="circular"), nn.Tanh(),
        nn.Conv2d(6, 4, 2, bias=False), nn.Flatten(), nn.LazyLinear(CLASSES),
    )  # fmt: skip


CASES = {
    "linear": (linear_and_time, (8,), {"0.weight": [0, 5, 11], "2.weight": [3]}),
    "linear with time": (lambda: linear_and_time(5), (5, 8), {"0.weight": [0, 5, 11], "2.weight": [3]}),
    "convolutions": (convolutions, (2, 8, 8), {"0.weight": [1, 4], "2.weight": [0, 3]}),
    "attention": (Attention, (5, 8), {"attention.out_proj.weight": [2, 7]}),
    "one layer twice": (Twice, (8,), {"first.weight": [1, 2, 6]}),
    "transposed": (Transposed, (5, 8), {"up.weight": [0, 8]}),
}


def case(name):
    build, shape, rows = CASES[name]
    torch.manual_seed(0)
    model = build()
    model(torch.randn(2, *shape))  # lazy layers
    model = model.double()
    return model, (torch.randn(7, *shape, dtype=torch.float64), torch.randint(CLASSES, (7,))), rows


def in_rows(model, name, values):
    """Output units first; the only layer here that has them last is the transposed one."""
    return values.transpose(-1, -2) if name == "up.weight" else values


@pytest.mark.parametrize("name", CASES)
def test_kept_rows_have_the_gradients_of_the_rows_of_the_whole_weight(name):
    model, batch, rows = case(name)
    dense = copy.deepcopy(model)
    with torch.no_grad():
        for weight, kept in rows.items():  # the same learned rows in both
            added = torch.randn_like(in_rows(dense, weight, dense.get_parameter(weight))[kept])
            in_rows(dense, weight, dense.get_parameter(weight))[kept] += added
        expected_output = dense(batch[0])
    chosen = keep_rows(model, rows)
    with torch.no_grad():
        assert torch.equal(model(batch[0]), case(name)[0](batch[0])) or name == "attention"
        for weight, kept in rows.items():
            wrapper = model.get_submodule(weight.rpartition(".")[0])
            change = dense.get_parameter(weight) - wrapper.base.weight
            wrapper.new.copy_(in_rows(dense, weight, change)[kept])
            assert torch.allclose(wrapper.weight, dense.get_parameter(weight), atol=1e-14)
        assert torch.allclose(model(batch[0]), expected_output, rtol=1e-10, atol=1e-12)

    gradients = per_example(dense, batch)
    for weight, kept in rows.items():
        gradients[weight] = in_rows(dense, weight, gradients[weight])[:, kept]
    renamed = {}
    for weight, gradient in gradients.items():
        path = weight.rpartition(".")[0]
        if weight in rows:
            renamed[f"{path}.new"] = gradient
        elif f"{path}.weight" in rows:
            renamed[f"{path}.base.bias"] = gradient
        else:
            renamed[weight] = gradient
    assert set(renamed) == set(chosen.names)
    params = trainable_parameters(model)
    ball = Geometry.ball(params.values())
    weights = torch.rand(7, dtype=torch.float64)
    for kind in (Bookkeeping, Loop):
        engine = kind(model, classification, batch)
        assert torch.allclose(engine.norms(ball), norms_of(renamed), rtol=1e-9)
        sums = engine.weighted_sum(weights)
        for key, gradient in renamed.items():
            expected = torch.einsum("i,i...->...", weights, gradient)
            assert torch.allclose(sums[params[key]], expected, rtol=1e-9, atol=1e-12), key


@pytest.mark.parametrize("name", CASES)
def test_merging_gives_back_the_layers_the_names_and_the_other_rows(name):
    model, batch, rows = case(name)
    before, layers = copy.deepcopy(model.state_dict()), [type(m) for m in model.modules()]
    keep_rows(model, rows)
    assert set(model.state_dict()) != set(before)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, KeptRows):
                module.new.normal_(generator=torch.Generator().manual_seed(5))
    output = model(batch[0])
    merge_rows(model)
    after = model.state_dict()
    assert list(after) == list(before)
    assert [type(m) for m in model.modules()] == layers
    assert torch.allclose(model(batch[0]), output, rtol=1e-10, atol=1e-12)
    for key, value in before.items():
        changed = (in_rows(model, key, after[key]) != in_rows(model, key, value)).flatten(1).any(1) \
            if key in rows else (after[key] != value)  # fmt: skip
        aliases = {"second.weight": "first.weight"}
        expected = rows.get(key, rows.get(aliases.get(key, ""), []))
        if key in rows:
            assert changed.nonzero().flatten().tolist() == expected
        elif key not in aliases:
            assert not changed.any(), key
    assert not any(p.requires_grad for key, p in model.named_parameters() if key in rows)


def test_the_fast_engine_has_closed_formulas_for_kept_rows():
    model = mlp().float()
    finetune.bitfit(model)
    keep_rows(model, {"0.weight": [1, 2], "3.weight": [0]})
    run = adamas.make_private(
        model, rules.SGD(model.parameters(), lr=0.1), data(dtype=torch.float32), classification,
        batch_size=12, steps=1, noise_multiplier=1.0, delta=1e-4,
    )  # fmt: skip
    explained = run.explain()
    assert run.engine == "bookkeeping"
    assert explained.refusal is None
    costs = {cost.parameter: cost for cost in explained.costs}
    assert costs["0.new"].shape == (2, D)
    assert costs["3.new"].shape == (1, 10)
    assert costs["0.new"].formula == costs["3.new"].formula == "|input| |output gradient|"


def test_no_kept_row_freezes_the_weight_and_leaves_the_layer():
    model = mlp()
    chosen = keep_rows(model, {"0.weight": [], "3.weight": torch.tensor([4])})
    assert type(model[0]) is nn.Linear
    assert isinstance(model[3], KeptRows)
    assert not KeptRows(nn.Linear(2, 3), torch.tensor([1])).base.weight.requires_grad
    assert "0.weight" not in chosen.names
    assert "0.bias" in chosen.names
    assert model[3].base.bias.requires_grad
    assert model[3].bias is model[3].base.bias


def test_row_weights_are_those_of_plain_layers_without_the_head():
    assert row_weights(mlp()) == ["0.weight", "3.weight"]
    assert row_weights(mlp(), head="0") == ["3.weight", "5.weight"]
    assert row_weights(nn.Sequential(nn.Conv2d(4, 4, 1, groups=2), nn.Linear(2, 2))) == []
    gpt2 = row_weights(small_gpt2())
    assert len(gpt2) == 3 * 4
    assert all(name.startswith("transformer.h.") for name in gpt2)
    bert = row_weights(small_bert())
    assert len(bert) == 3 * 6 + 1
    assert "bert.pooler.dense.weight" in bert
    assert "classifier.weight" not in bert


def test_rows_that_cannot_be_kept_are_refused_and_nothing_changes():
    model = nn.Sequential(nn.Embedding(5, 4), nn.Conv1d(4, 4, 1, groups=2), nn.LSTM(4, 4), nn.Linear(4, 5))
    for name, reason in {
        "0.weight": "Embedding", "1.weight": "groups", "2.weight_ih_l0": "LSTM", "3.bias": "'bias' of Linear",
    }.items():  # fmt: skip
        with pytest.raises(UnsupportedError, match=reason):
            keep_rows(model, {"3.weight": [0], name: [0]})
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    with pytest.raises(UnsupportedError, match="tied"):
        keep_rows(tied, {"0.weight": [0]})
    for rows, kind, words in [
        ({"3.weight": [5]}, ValueError, "from 0 to 4"),
        ({"3.weight": [-1]}, ValueError, "from 0 to 4"),
        ({"3.weight": [1, 1]}, ValueError, "once"),
        ({"3.weight": [0.5]}, TypeError, "whole numbers"),
        ({"3.weight": torch.ones(5, dtype=torch.bool)}, TypeError, "whole numbers"),
        ({"3.wight": [0]}, ValueError, "'3.weight'"),
        ({"3": [0]}, ValueError, "'3.weight'"),
    ]:
        with pytest.raises(kind, match=words):
            keep_rows(model, rows)
    with pytest.raises(UnsupportedError, match="the model itself"):
        keep_rows(nn.Linear(2, 2), {"weight": [0]})
    assert not any(isinstance(m, KeptRows) for m in model.modules())
    assert all(p.requires_grad for p in model.parameters())
    keep_rows(model, {"3.weight": [0]})
    with pytest.raises(ValueError, match="merge_rows"):
        keep_rows(model, {"3.base.weight": [1]})


# --- scores ---------------------------------------------------------------------------------------------


def test_scores_are_sums_of_magnitudes_of_clipped_sums():
    model = mlp()
    finetune.bitfit(model, norms=True)
    clip, before = 0.3, copy.deepcopy(model.state_dict())
    scores = row_scores(private(model, clip_norm=clip), steps=4)
    assert set(scores) == {"0.weight", "3.weight"}
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert "0.weight" not in trainable_names(model)

    expected = {"0.weight": torch.zeros(10), "3.weight": torch.zeros(8)}
    for p in model.parameters():
        p.requires_grad_(True)  # biases, norms, head and both weights: everything
    for _, batch in zip(range(4), private(mlp()).batches(), strict=False):  # the same seed, the same batches
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


def test_the_noise_of_a_score_is_that_of_its_columns_and_steps():
    """Dead units have no gradient, so that their scores before the cut at 0 are noise alone.

    Half of the scores are 0 and the others half-normal; Kolmogorov-Smirnov with a false-alarm rate of 1e-6
    accepts sqrt(columns * steps) z / B and rejects 2/3 and 3/2 of it.
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
def test_top_rows_against_a_sort(within):
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


def test_top_rows_of_nothing_and_of_equals():
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


def test_scoring_needs_no_rule_that_holds_the_weights_and_puts_everything_back():
    model = mlp()
    finetune.head(model)
    rule = rules.AdamBC([p for p in model.parameters() if p.requires_grad], lr=0.1)
    run = private(model, rule)
    row_scores(run, "3.weight", steps=2)
    assert run.rule is rule
    assert run.steps_done == 2
    assert trainable_names(model) == {"5.weight", "5.bias"}
    assert not rule.state
    next(iter(run))  # goes on
    assert run.steps_done == 3
    with pytest.raises(ValueError, match="steps=3 <= 2"):
        row_scores(run, steps=3)
    with pytest.raises(ValueError, match=r"'2.weight'"):
        row_scores(run, ["3.weight", "2"])
    with pytest.raises(ValueError, match="besides its head"):
        row_scores(private(nn.Sequential(nn.Linear(D, CLASSES)).double()))


def test_a_refused_release_leaves_the_model_and_the_run_as_they_were():
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
    assert len(list(run)) == 0  # nothing is left to spend


def test_the_third_phase_trains_the_rows_that_the_scores_name():
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
    """Four units of forty are alive, with scores beyond 13 standard deviations of a dead unit's: a wrong row
    is kept with a chance below 1e-6.
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


def test_a_release_beyond_the_budget_is_refused_in_the_mask_phase_too():
    model = mlp()
    finetune.head(model)
    run = private(model, noise_multiplier=None, epsilon=1.0, steps=3, accountant="rdp")
    batch = next(iter(run.batches()))
    run.privatize(batch, absolute=True)
    with pytest.raises(RuntimeError, match="exceed epsilon=1"):
        run.privatize(batch, absolute=True)


def test_gpt2_goes_through_the_whole_recipe():
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
def test_sparta_refuses_at_once_what_it_could_not_finish(options, words):
    run = private(mlp())
    with pytest.raises(ValueError, match=re.escape(words)):
        sparta(run, sgd, **({"head_steps": 1, "mask_steps": 1} | options))
    assert run.ledger.entries == []


def test_sparta_refuses_a_run_that_began_or_has_parts_that_cannot_follow():
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


def test_the_code_of_the_page_runs():
    text = (Path(__file__).parents[2] / "docs/finetuning.md").read_text()
    names: dict[str, Tensor] = {}
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(block, names)
    assert 3.8 < names["spent"] <= 4.0
    assert names["run"].steps_done == 60
