"""Every function of `adamas.theory` refuses bad arguments by name."""

import math

import pytest
import torch

from adamas import theory

NOISE = {"noise_multiplier": 1.0, "clip_norm": 1.0, "batch_size": 10}
BAD_NOISE = [
    ({"noise_multiplier": -1.0}, ValueError),
    ({"noise_multiplier": math.nan}, ValueError),
    ({"noise_multiplier": "1"}, TypeError),
    ({"clip_norm": 0.0}, ValueError),
    ({"clip_norm": math.inf}, ValueError),
    ({"batch_size": 0}, ValueError),
    ({"batch_size": None}, TypeError),
    ({"step": 0}, ValueError),
    ({"step": 2.0}, TypeError),
]
BAD_BOUND = [
    *BAD_NOISE,
    ({"beta2": 1.0}, ValueError),
    ({"beta2": True}, TypeError),
    ({"alpha": 0.0}, ValueError),
    ({"alpha": 1.0}, ValueError),
]
BAD_KAPPA = [
    ({"step": 0}, ValueError),
    ({"step": True}, TypeError),
    ({"beta": 1.0}, ValueError),
    ({"beta": "0.9"}, TypeError),
]
BAD = [
    *((theory.prop3_bound, NOISE, *bad) for bad in [*BAD_BOUND, ({"constant": "table"}, ValueError)]),
    *((theory.prop4_bound, NOISE, *bad) for bad in BAD_BOUND),
    *(
        (theory.equivalent_sgdm_lr, NOISE | {"lr": 1.0}, *bad)
        for bad in [
            *BAD_NOISE,
            ({"noise_multiplier": 0.0}, ValueError),
            ({"lr": -1.0}, ValueError),
            ({"beta1": 1.0}, ValueError),
        ]
    ),
    *(
        (theory.automatic_floor, {"noise_variance": 1.0}, *bad)
        for bad in [
            ({"noise_variance": -1.0}, ValueError),
            ({"noise_variance": math.inf}, ValueError),
            ({"noise_variance": "1"}, TypeError),
            ({"noise_variance": torch.tensor([1.0, -1.0])}, ValueError),
            ({"noise_variance": torch.tensor([1.0, math.nan])}, ValueError),
            ({"noise_variance": torch.tensor([1.0, math.inf])}, ValueError),
            ({"step": 0}, ValueError),
            ({"beta2": 1.0}, ValueError),
            ({"alpha": 2.0}, ValueError),
        ]
    ),
    *((theory.macadam_excess, {"beta": 0.9}, *bad) for bad in BAD_KAPPA),
    *((theory.macadam_kappa, {"beta": 0.9}, *bad) for bad in [*BAD_KAPPA, ({"kind": "x"}, ValueError)]),
]


@pytest.mark.parametrize(("function", "good", "bad", "error"), BAD)
def test_bad_arguments_are_refused_by_name(function, good, bad, error):
    function(**({"step": 3} | good))
    with pytest.raises(error, match=next(iter(bad))):
        function(**({"step": 3} | good | bad))
