"""Options of the rules: a bad value is refused by name, a value at the edge of its range is accepted."""

import inspect
from typing import Any

import pytest
import torch
from torch import nn

from adamas import PrivateGradient
from adamas.rules import RULES
from tests.support.rule_setups import every_rule
from tests.support.rule_steps import make_rule, step

NAN, INF = float("nan"), float("inf")
# BAD has values of each argument that are refused, GOOD has values at the edge that are accepted.
BAD: dict[str, list[Any]] = {
    "lr": [-1e-3, NAN, INF, "fast", None, True],
    "momentum": [-0.1, 1.0, NAN, "heavy", None],
    "weight_decay": [-1e-3, NAN, INF, None],
    "betas": [(1.0, 0.9), (0.9, 1.0), (-0.1, 0.9), (0.9, NAN), (0.9,), 0.9, "ab", None],
    "eps": [-1e-8, NAN, INF, "small"],
    "eps_placement": ["under", None],
    "alpha": [-0.1, 1.0, NAN, None],
    "density": [0, -0.1, 1.01, NAN, None],
    "window": [0, -1, 1.5, None],
    "bits": [8, 0, "4", True],
    "bucket_size": [0, -1, 1.5, None],
    "rounding": ["up", None],
    "scope": ["layer", None],
    "window_correction": ["yes", None, 1],
    "h1": [0, -1.0, 1e-60, NAN, 1.0, None],  # 1.0 is above the default h2
    "h2": [0, -1.0, NAN, 1e-12, None],
    "b0": [0, -1.0, NAN, "auto"],
    "kappa": ["right", None],
    "noise_correction": ["off", None],
    "phi": ["none", None],
    "scale_eps": [0, -1.0, NAN, None],
    "lr2": [-1e-3, NAN, INF, None],
    "period": [0, -1, 1.5, None],
    "clip_ratio": [0, -1.0, NAN, INF, None],
    "decay": [-0.1, 1.0, NAN, None],
    "preconditioner": [{nn.Parameter(torch.zeros(1)): torch.ones(1)}],  # parameter of another model
    "floor": [0, 0.0, -1e-8, NAN, INF, "foo", None, True],
    "correction": [0.5, -1.0, NAN, INF, None],  # the default floor needs 1
}
GOOD: dict[str, list[Any]] = {
    "lr": [0.0, 1],
    "momentum": [0.0, 0.99],
    "weight_decay": [0.0],
    "betas": [(0.0, 0.0), [0.9, 0.99]],
    "eps": [0.0],
    "eps_placement": ["inside", "outside"],
    "alpha": [0.0, 0.999],
    "density": [1, 1e-9],
    "window": [1, 1000],
    "bits": [4, None],
    "bucket_size": [1, 100_000],
    "rounding": ["nearest", "stochastic"],
    "scope": ["block", "tensor", "global"],
    "window_correction": [True, False],
    "h1": [1e-6, 2e-38],
    "h2": [1e-9, 1.0],
    "b0": [None, 1e-6, 1],
    "kappa": ["exact", "paper"],
    "noise_correction": ["tracked", "paper"],
    "phi": ["exact", "paper"],
    "scale_eps": [1e-9, 1],
    "lr2": [0.0, 1],
    "period": [1, 10**6],
    "clip_ratio": [1e-3, 10],
    "decay": [0.0, 0.99],
    "preconditioner": [None, {}],
    "floor": ["auto", 1e-12, 1],
    "correction": [1],
}

# (rule, argument, repr of the value): values of BAD that the rule accepts, and of GOOD that it refuses.
OTHERWISE = {
    ("scale-then-privatize", "floor", "None"): "no correction",
    ("adadps", "eps", "0.0"): "the scale must be positive",
    ("dp2-rmsprop", "eps", "0.0"): "the scale must be positive",
    ("macadam", "betas", "(0.0, 0.0)"): "no spread to estimate",
    ("macadam-bc", "betas", "(0.0, 0.0)"): "no spread to estimate",
}


def values(table: dict[str, list[Any]], name: str, argument: str) -> list[Any]:
    return [value for value in table.get(argument, []) if (name, argument, repr(value)) not in OTHERWISE]


def arguments(name: str) -> list[str]:
    return [argument for argument in inspect.signature(RULES[name]).parameters if argument != "params"]


ARGUMENTS = [(name, argument) for name in RULES for argument in arguments(name)]


def test_every_argument_of_every_rule_has_bad_and_good_values():
    missing = {argument for _, argument in ARGUMENTS} - (BAD.keys() & GOOD.keys())
    assert not missing, f"add values to BAD and GOOD for {sorted(missing)}"


@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [(name, argument, value) for name, argument in ARGUMENTS for value in values(BAD, name, argument)],
)
def test_a_bad_hyperparameter_is_refused_by_name(name, argument, value):
    with pytest.raises((ValueError, TypeError), match=argument):
        make_rule(name, [nn.Parameter(torch.zeros(1))], **{argument: value})


@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [(name, argument, value) for name, argument in ARGUMENTS for value in values(GOOD, name, argument)],
)
def test_a_hyperparameter_at_the_edge_is_accepted(name, argument, value):
    p = nn.Parameter(torch.ones(2).double())
    rule = make_rule(name, [p], **{argument: value})
    step(rule, PrivateGradient({p: torch.ones(2).double()}, {p: 0.1}))
    assert p.isfinite().all()


@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [
        (name, argument, values(BAD, name, argument)[0])
        for name, argument in ARGUMENTS
        if argument != "preconditioner"  # an argument of the rule, not of a group
    ],
)
def test_a_bad_hyperparameter_of_a_group_is_refused_by_name_and_nothing_changes(name, argument, value):
    first, second = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    with pytest.raises((ValueError, TypeError), match=argument):
        make_rule(name, [{"params": [first]}, {"params": [second], argument: value}])
    rule = make_rule(name, [first])
    with pytest.raises((ValueError, TypeError), match=argument):
        rule.add_param_group({"params": [second], argument: value})
    assert len(rule.param_groups) == 1


@every_rule
def test_an_unknown_option_of_a_group_is_refused(name):
    p = nn.Parameter(torch.zeros(2))
    with pytest.raises(ValueError, match="learning_rate"):
        make_rule(name, [{"params": [p], "learning_rate": 0.1}])
    with pytest.raises(ValueError, match="amsgrad"):
        make_rule(name, [{"params": [p], "lr": 0.1, "amsgrad": True}])
    assert len(make_rule(name, [{"params": [p], "lr": 0.1, "initial_lr": 0.1}]).param_groups) == 1


@every_rule
def test_a_group_without_parameters_is_refused(name):
    first = nn.Parameter(torch.zeros(1))
    with pytest.raises(ValueError, match="params"):
        make_rule(name, [{"params": [first]}, {"params": []}])
    rule = make_rule(name, [first])
    with pytest.raises(ValueError, match="params"):
        rule.add_param_group({"params": []})
    assert len(rule.param_groups) == 1


@every_rule
def test_an_empty_parameter_list_is_refused(name):
    with pytest.raises(ValueError, match="empty parameter list"):
        make_rule(name, [])
