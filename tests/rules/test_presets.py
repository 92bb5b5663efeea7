"""Every preset is listed and described, and its rule and `make_private` accept it."""

import copy
import inspect
import pickle

import pytest
from torch import nn

import adamas
from adamas.rules import RULES, presets
from adamas.rules.presets import PRESETS, Preset, preset
from tests.support.published_settings import ALL, METHODS, OPEN, OWN


def test_all_experiments_are_listed():
    assert set(PRESETS) == set(METHODS)
    assert len(PRESETS) == len(set(PRESETS))


@pytest.mark.parametrize("name", METHODS)
def test_the_default_method_is_the_one_that_the_paper_introduces(name):
    own = OWN[name.split("/")[0]]
    assert preset(name).rule == own
    assert preset(name) == preset(name, own)


@pytest.mark.parametrize(("name", "method"), ALL)
def test_every_preset_names_its_data_model_and_source(name, method):
    found = preset(name, method)
    assert (found.name, found.rule) == (name, method)
    assert found.data in name.split("/")[1]
    assert found.model
    assert any(word in found.source for word in ("Table", "Appendix", "Section"))
    assert found.notes.endswith(".")


@pytest.mark.parametrize("name", METHODS)
def test_a_method_that_the_paper_did_not_run_is_refused_and_the_others_are_listed(name):
    for method in {"rmsprop", *OWN.values(), "sgd"} - set(METHODS[name]):
        with pytest.raises(ValueError, match=f"method='{method}'") as error:
            preset(name, method)
        assert all(repr(known) in str(error.value) for known in METHODS[name])


def test_an_unknown_name_is_refused_and_the_known_ones_are_listed():
    with pytest.raises(ValueError, match="name='dp-adambc/mnist'") as error:
        preset("dp-adambc/mnist")
    assert all(repr(name) in str(error.value) for name in PRESETS)


def test_corrected_must_be_a_bool():
    with pytest.raises(TypeError, match="corrected='no'"):
        preset("dp-adambc/cifar10", corrected="no")


def test_a_preset_is_frozen_and_shares_nothing_with_the_next():
    first = preset("dp-macadam/mnist-sigma0.5")
    with pytest.raises(AttributeError):
        first.rule = "sgd"
    first.options["lr"] = 7.0
    first.training["delta"] = 0.5
    assert preset("dp-macadam/mnist-sigma0.5").options["lr"] == 1e-3
    assert preset("dp-macadam/mnist-sigma0.6").training["delta"] == 1e-5
    second = preset("dp-macadam/mnist-sigma0.5")
    assert copy.deepcopy(second) == pickle.loads(pickle.dumps(second)) == second
    assert isinstance(second, Preset)


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize(("name", "method"), ALL)
def test_the_rule_accepts_the_options(name, method, corrected):
    found = preset(name, method, corrected=corrected)
    known = inspect.signature(RULES[method]).parameters
    assert set(found.options) <= set(known) - {"params"}
    model = nn.Linear(3, 2)
    rule = found.make_rule(model.parameters())
    assert type(rule) is RULES[method]
    for option, value in found.options.items():
        assert rule.param_groups[0][option] == value


@pytest.mark.parametrize(("name", "method"), ALL)
def test_make_private_accepts_the_training(name, method):
    training = preset(name, method).training
    assert set(training) <= set(inspect.signature(adamas.make_private).parameters)
    missing = {argument for argument in ("clip_norm", "batch_size", "delta") if argument not in training}
    budget, length = ("epsilon", "noise_multiplier"), ("epochs", "steps")
    assert sum(argument in training for argument in budget) <= 1
    assert sum(argument in training for argument in length) <= 1
    missing |= set() if any(argument in training for argument in budget) else {"noise"}
    missing |= set() if any(argument in training for argument in length) else {"steps"}
    assert missing == OPEN.get(name, set())


@pytest.mark.parametrize("name", OPEN)
def test_the_notes_name_what_the_paper_does_not_state(name):
    notes = preset(name).notes
    words = {
        "steps": ("no number of steps", "nor a number of steps", "nor steps", "until epsilon"),
        "noise": ("noise multiplier",),
        "clip_norm": ("clip_norm in {", "clip norm"),
        "batch_size": ("nor batch size",),
        "delta": ("nor delta",),
    }
    for missing in OPEN[name]:
        assert any(text in notes for text in words[missing]), missing


PUBLISHED_FORMS = {
    "adamw": {"eps_placement": "inside"},
    "micro-adam": {"bits": None, "scope": "tensor"},
    "macadam": {"kappa": "paper", "noise_correction": "paper"},
    "macadam-bc": {"kappa": "paper", "noise_correction": "paper", "phi": "paper"},
}


@pytest.mark.parametrize(("name", "method"), ALL)
def test_corrected_removes_the_published_forms_and_nothing_else(name, method):
    published, corrected = preset(name, method), preset(name, method, corrected=True)
    forms = PUBLISHED_FORMS.get(method, {})
    assert published.options == corrected.options | forms
    assert not set(forms) & set(corrected.options)
    assert published.training == corrected.training


@pytest.mark.parametrize("method", PUBLISHED_FORMS)
def test_the_published_forms_are_not_the_defaults(method):
    defaults = inspect.signature(RULES[method]).parameters
    for option, value in PUBLISHED_FORMS[method].items():
        assert defaults[option].default != value


def test_the_package_exports_the_presets():
    assert presets.preset is adamas.rules.preset
    assert presets.PRESETS is adamas.rules.PRESETS
    assert presets.Preset is adamas.rules.Preset
