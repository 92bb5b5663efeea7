"""`explain` states the function, the formula and the cost of each parameter."""

import json
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import adamas
from adamas import Geometry, rules
from adamas.cli import main
from adamas.engines import Bookkeeping, trainable_parameters

N = 6


class Standardized(nn.Linear):
    def forward(self, x):
        w = self.weight - self.weight.mean(1, keepdim=True)
        return F.linear(x, w / w.norm(dim=1, keepdim=True), self.bias)


class Everything(nn.Module):
    """A model with at least one parameter for each formula."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 40)
        self.few = nn.Linear(40, 40)  # with 4 places, Gram matrices are smaller than the weight
        self.norm = nn.LayerNorm(40)
        self.many = nn.Linear(40, 2)  # the weight is smaller than Gram matrices
        self.exp = nn.Parameter(torch.randn(8, 9))
        self.standardized = Standardized(9, 5)
        self.out = nn.Linear(5, 3)
        self.unused = nn.Parameter(torch.zeros(7))

    def forward(self, ids):
        h = self.many(self.norm(self.few(self.table(ids)))).flatten(1)
        return self.out(self.standardized(h @ self.exp.exp()))


EXPECTED = {
    "table.weight": ("embedding", "sums over the touched rows"),
    "few.weight": ("linear", "Gram matrices of the places"),
    "few.bias": ("linear", "gradients in hand"),
    "norm.weight": ("layer_norm", "gradients in hand"),
    "many.weight": ("linear", "per-example gradients in chunks, kept"),
    "exp": ("linear", "Jacobian products in chunks"),
    "standardized.weight": ("linear", "closed form of normalised rows"),
    "out.weight": ("linear", "|input| |output gradient|"),
    "unused": ("", ""),
}


def loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def batch():
    random = torch.Generator().manual_seed(0)
    return torch.randint(0, 11, (N, 4), generator=random), torch.randint(0, 3, (N,), generator=random)


def everything():
    torch.manual_seed(0)
    return Everything()


def test_every_parameter_has_its_function_formula_and_costs():
    model = everything()
    explanation = Bookkeeping(model, loss, batch()).explain(
        Geometry.ball(trainable_parameters(model).values())
    )
    costs = {cost.parameter: cost for cost in explanation.costs}
    assert list(costs) == [name for name, _ in model.named_parameters()]
    assert {name: (costs[name].function, costs[name].formula) for name in EXPECTED} == EXPECTED
    for cost in explanation.costs:
        assert math.isfinite(cost.seconds)
        assert (cost.seconds > 0) == (cost.parameter != "unused")
        assert cost.size >= 0
    assert costs["out.bias"].size == 0  # it shares the output gradients of the weight
    assert costs["few.weight"].size == 4 * 2 * N * 4 * 40  # inputs and output gradients in float32
    assert costs["many.weight"].size == 4 * N * 2 * 40  # a gradient for each example
    assert explanation.rest > 0
    lines = str(explanation).splitlines()
    assert len(lines) == 2 + len(costs) + 1
    shares = [float(line.split("%")[0].split()[-1]) for line in lines[2:]]
    assert sum(shares) == pytest.approx(100, abs=2)


def test_a_scale_per_coordinate_needs_other_formulas():
    model = everything()
    scale = {p: torch.ones_like(p) for p in model.parameters()}
    explanation = Bookkeeping(model, loss, batch()).explain(Geometry(None, scale))
    formulas = {cost.parameter: cost.formula for cost in explanation.costs}
    assert formulas["few.weight"] == "per-example gradients in chunks"
    assert formulas["many.weight"] == "per-example gradients in chunks, kept"
    assert formulas["out.weight"] == "two matrix products"
    assert formulas["standardized.weight"] == "Jacobian products in chunks"


def made(model, **options):
    data = TensorDataset(*batch())
    rule = rules.Adam(model.parameters())
    settings = {"batch_size": 4, "steps": 2, "noise_multiplier": 1.0, "delta": 1e-3, "seed": 0}
    return adamas.make_private(model, rule, data, loss, **(settings | options))


def test_explaining_a_run_changes_nothing():
    runs = [made(everything()) for _ in range(2)]
    state = torch.get_rng_state()
    assert runs[0].explain().examples == 4
    assert runs[0].explain().engine == "bookkeeping"
    assert torch.equal(torch.get_rng_state(), state)
    assert not runs[0].ledger.entries
    assert all(p.grad is None for p in runs[0].model.parameters())
    for run in runs:
        for _ in run:
            pass
    for p, q in zip(runs[0].model.parameters(), runs[1].model.parameters(), strict=True):
        assert torch.equal(p, q)


def test_a_run_is_explained_for_one_micro_batch():
    assert made(everything(), micro_batch_size=3).explain().examples == 3


def test_a_refusal_is_explained():
    class Reads(Everything):
        def forward(self, ids):
            return super().forward(ids) * (2.0 if bool((ids >= 0).all()) else 1.0)

    explanation = made(Reads()).explain()
    assert explanation.engine == "loop"
    assert "reads values of the batch" in explanation.refusal
    assert "reads values of the batch" in str(explanation)
    assert not explanation.costs


def test_the_chosen_engine_is_named():
    text = str(made(everything(), engine="loop").explain())
    assert text.startswith("the run uses engine loop; with engine bookkeeping")


def test_the_command_prints_a_table_or_json(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["explain", "--batch-size", "16"])
    assert stop.value.code == 0
    assert "|input| |output gradient|" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["explain", "--batch-size", "16", "--model", "linear", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["engine"] == "bookkeeping"
    assert [cost["function"] for cost in answer["costs"]] == ["linear", "linear"]
