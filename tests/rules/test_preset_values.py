"""Presets have the values that the papers state, and their notes name the others."""

import pytest

from adamas.data import DATASETS
from adamas.models import MODELS
from adamas.rules.presets import preset
from tests.support.published_settings import ALL, METHODS, NOT_STATED, OPEN, STATED


@pytest.mark.parametrize(("name", "method"), STATED)
def test_the_values_are_those_that_the_paper_states(name, method):
    found = preset(name, method)
    options, training = STATED[name, method]
    assert {key: found.options.get(key, "missing") for key in options} == options
    assert {key: found.training.get(key, "missing") for key in training} == training


@pytest.mark.parametrize(("name", "method"), NOT_STATED)
def test_the_notes_name_values_that_no_paper_states(name, method):
    found = preset(name, method)
    expected = NOT_STATED[name, method]
    assert {key: (found.options | found.training)[key] for key in expected} == expected
    assert any(text in found.notes for text in ("code's", "The paper gives"))


@pytest.mark.parametrize(("name", "method"), ALL)
def test_delta_is_1e_5_except_on_imagenet(name, method):
    delta = preset(name, method).training.get("delta")
    if "delta" not in OPEN.get(name, set()):
        assert delta == (8e-7 if name == "dp-microadam/imagenet" else 1e-5)


def test_sgd_has_neither_momentum_nor_weight_decay():
    for name, method in ALL:
        if method == "sgd":
            options = preset(name, method).options
            assert options.get("momentum", 0.0) == options.get("weight_decay", 0.0) == 0.0


@pytest.mark.parametrize(("data", "steps"), [("cifar10", 50 * 11), ("cifar100", 90 * 11)])
def test_the_notes_name_the_other_length_of_the_fine_tuning(data, steps):
    # Table 7 has 50 and 90 epochs of ceil(45000/4096) = 11 steps. The preset follows Table 10, which differs.
    found = preset(f"dp-microadam/{data}-deit-base")
    assert str(steps) in found.notes
    assert found.training["steps"] != steps


@pytest.mark.parametrize(("name", "searched"), [("dp-adamw/qnli-eps3", ("lr", "weight_decay", "clip_norm"))])
def test_the_notes_name_the_range_of_a_search_without_a_result(name, searched):
    for method in METHODS[name]:
        found = preset(name, method)
        for key in searched:
            assert key not in found.options | found.training
            assert f"{key} in" in found.notes


def test_the_models_are_those_of_the_papers():
    assert preset("dp-macadam/mnist-sigma0.5").model in MODELS
    assert preset("dp-macadam/mnist-sigma0.5").data in DATASETS
    assert preset("dp-microadam/imagenet").model == "wrn-16-4"
    assert preset("dp-microadam/imagenet", "sgd").model == "nf-resnet-50"
    assert preset("dp-adambc/cifar10").model == preset("dp-adamw/cifar10-eps1").model
    # DP-MacAdam's model is only "similar": it has 582,346 parameters.
    assert preset("dp-macadam/cifar10-sigma0.5").model != preset("dp-adambc/cifar10").model


def test_macadam_takes_the_steps_behind_its_published_epsilons():
    # 5 ceil(60000/256) = 1175 and 5 ceil(50000/512) = 490.
    for name, n, steps in [("mnist", 60_000, 1175), ("cifar10", 50_000, 490)]:
        training = preset(f"dp-macadam/{name}-sigma0.5").training
        assert training["epochs"] * -(-n // training["batch_size"]) == steps
