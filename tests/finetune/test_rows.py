"""Kept rows have the outputs and gradients of plain layers, and merge back into them."""

import copy

import pytest
import torch
from torch import nn

import adamas
from adamas import UnsupportedError, finetune, rules
from adamas.engines import Bookkeeping, Loop, trainable_parameters
from adamas.finetune import KeptRows, keep_rows, merge_rows, row_weights
from adamas.geometry import Geometry
from tests.support.finetuning import (
    CLASSES,
    D,
    classification,
    data,
    mlp,
    norms_of,
    per_example,
    small_bert,
    small_gpt2,
)

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")


class Attention(nn.Module):
    """Reads the weight of its output layer instead of calling it."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.fc(self.attention(x, x, x, need_weights=False)[0].mean(1))


class Twice(nn.Module):
    """Uses one layer in two places."""

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
        self.up = utils.Conv1D(9, 8)  # 8 inputs, 9 outputs
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
    """Puts output units first; only the transposed layer has them last."""
    return values.transpose(-1, -2) if name == "up.weight" else values


@pytest.mark.parametrize("name", CASES)
def test_kept_rows_have_the_gradients_of_these_rows_in_the_whole_weight(name):
    model, batch, rows = case(name)
    dense = copy.deepcopy(model)
    with torch.no_grad():
        for weight, kept in rows.items():  # give both models the same learned rows
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
def test_merging_restores_the_layers_the_names_and_the_other_rows(name):
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


def test_the_fast_engine_has_a_closed_formula_for_kept_rows():
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


def test_a_layer_without_kept_rows_is_unchanged_with_a_frozen_weight():
    model = mlp()
    chosen = keep_rows(model, {"0.weight": [], "3.weight": torch.tensor([4])})
    assert type(model[0]) is nn.Linear
    assert isinstance(model[3], KeptRows)
    assert not KeptRows(nn.Linear(2, 3), torch.tensor([1])).base.weight.requires_grad
    assert "0.weight" not in chosen.names
    assert "0.bias" in chosen.names
    assert model[3].base.bias.requires_grad
    assert model[3].bias is model[3].base.bias


@pytest.mark.slow
def test_row_weights_are_those_of_plain_layers_except_the_head():
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
