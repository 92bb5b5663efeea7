"""Models have their published sizes, run on the fast engine, and refuse bad shapes and options."""

import json

import pytest
import torch
from torch import nn

from adamas import Geometry
from adamas.engines import ENGINES, trainable_parameters
from adamas.models import (
    MODELS,
    BertSizes,
    cnn,
    minilm,
    resnet8_gn,
    wide_resnet,
)
from tests.support.one_by_one import ball, close, some_weights
from tests.support.small_models import CLASSES, SMALL, TINY, N, count, every_model, loss, make_private, tiny

# --- counts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "classes", "expected"),
    [
        ("mlp", (1, 28, 28), 10, 795_010),
        ("linear", (1, 28, 28), 10, 7_850),
        ("tanh-cnn", (1, 28, 28), 10, 26_010),
        ("cnn", (3, 32, 32), 10, 582_346),
        ("cnn5", (3, 32, 32), 10, 411_466),
        ("wrn-16-4", (3, 32, 32), 10, 2_753_818),
        ("wrn-16-4", (3, 32, 32), 1000, 3_008_248),
        ("resnet8-gn", (3, 32, 32), 10, 78_042),
        ("resnet18-gn", (3, 32, 32), 10, 11_173_962),
        ("scattering", (3, 32, 32), 10, 155_530),
        ("scattering", (1, 28, 28), 10, 39_700),
    ],
)
def test_the_number_of_parameters_is_as_published(name, shape, classes, expected):
    model = MODELS[name](shape, classes)
    assert count(model) == expected
    assert model(torch.randn(2, *shape)).shape == (2, classes)


def test_tanh_cnn_can_have_group_norms():
    model = MODELS["tanh-cnn"]((3, 32, 32), 10, groups=4)
    norms = [module for module in model.modules() if isinstance(module, nn.GroupNorm)]
    assert [(norm.num_groups, norm.num_channels) for norm in norms] == [(4, 16), (4, 32)]
    assert count(model) == count(MODELS["tanh-cnn"]((3, 32, 32), 10)) + 2 * (16 + 32)
    with pytest.raises(ValueError, match="groups=3"):
        MODELS["tanh-cnn"]((3, 32, 32), 10, groups=3)


def test_the_number_of_parameters_of_minilm_follows_from_its_sizes():
    model = MODELS["minilm"]((16,), 3)
    block = 4 * (384 * 384 + 384) + 2 * 384 * 1536 + 1536 + 384 + 4 * 384
    assert count(model.frozen) == (30522 + 512 + 2) * 384 + 2 * 384 + 5 * block
    assert count(model.trained) == block + 384 * 3 + 3
    assert sum(p.numel() for p in trainable_parameters(model).values()) == count(model.trained)


@pytest.mark.parametrize("blocks", [0, 1, 2, 3])
def test_the_last_blocks_are_trained_and_the_others_frozen(blocks):
    model = minilm(None, sizes=SMALL, blocks_trained=blocks)
    assert [len(part.blocks) for part in (model.frozen, model.trained)] == [3 - blocks, blocks]
    assert not any(p.requires_grad for p in model.frozen.parameters())
    assert all(p.requires_grad for p in model.trained.parameters())


# --- engines --------------------------------------------------------------------------------------------


def test_every_model_is_tested():
    assert TINY.keys() == MODELS.keys()


@pytest.mark.slow
@every_model
def test_the_fast_engine_equals_the_loop(name):
    model, batch = tiny(name)
    params = list(trainable_parameters(model).values())
    scale = {p: 0.5 + torch.rand_like(p) for p in params}
    weights = some_weights(N)
    slow, fast = (ENGINES[engine](model, loss, batch) for engine in ("loop", "bookkeeping"))
    for geometry in (ball(model, 0.8), Geometry(None, scale)):
        torch.testing.assert_close(fast.norms(geometry), slow.norms(geometry), rtol=1e-9, atol=0)
    sums, expected = fast.weighted_sum(weights), slow.weighted_sum(weights)
    assert set(sums) == set(expected) == set(params)
    for parameter, p in model.named_parameters():
        if p.requires_grad:
            size = float(expected[p].abs().max())
            assert size > 1e-8 or parameter.endswith("key.bias"), (
                f"the gradient of {parameter} is 0, which tests nothing"
            )
            assert float((sums[p] - expected[p]).abs().max()) <= 1e-9 * (size + 1e-3), parameter


@pytest.mark.slow
@every_model
def test_a_run_uses_the_fast_engine_with_closed_formulas(name):
    model, batch = tiny(name, torch.float32)
    run = make_private(model, *batch)
    assert run.engine == "bookkeeping"
    formulas = {cost.parameter: cost.formula for cost in run.explain().costs}
    assert formulas.keys() == {key for key, p in model.named_parameters() if p.requires_grad}
    assert all(formula and "Jacobian" not in formula for formula in formulas.values()), formulas
    if name == "wrn-16-4":
        standardised = [key for key, p in model.named_parameters() if p.dim() == 4]
        assert len(standardised) == 16
        assert {formulas[key] for key in standardised} == {"closed form of normalised rows"}


def test_the_trained_stage_has_the_gradients_of_the_whole_model():
    whole, (ids, y) = tiny("minilm")
    hidden, present = whole.frozen(ids)
    params = list(whole.trained.parameters())
    norms, sums = [], []
    for model, batch in ((whole, (ids, y)), (whole.trained, (hidden, present, y))):
        engine = ENGINES["bookkeeping"](model, loss, batch)
        norms.append(engine.norms(Geometry.ball(params)))
        sums.append(engine.weighted_sum(some_weights(N)))
    close(norms[1], norms[0])
    for p in params:
        close(sums[1][p], sums[0][p])


def test_the_trained_stage_alone_runs_on_the_fast_engine():
    whole, (ids, y) = tiny("minilm", torch.float32)
    assert make_private(whole.trained, *whole.frozen(ids), y).engine == "bookkeeping"


def test_low_rank_adapters_of_peft_run_on_the_fast_engine():
    peft = pytest.importorskip("peft")
    whole, (ids, y) = tiny("minilm")
    hidden, present = whole.frozen(ids)
    config = peft.LoraConfig(
        r=3, lora_alpha=3, target_modules=["query", "value"], modules_to_save=["classifier"]
    )
    model = peft.get_peft_model(whole.trained, config)
    params = trainable_parameters(model)
    assert sum(p.numel() for p in params.values()) == 2 * (2 * 3 * SMALL.width) + (SMALL.width + 1) * CLASSES
    with torch.no_grad():
        for p in params.values():  # including the factors that start at 0
            p += 0.1 * torch.randn_like(p)
    batch, weights = (hidden, present, y), some_weights(N)
    slow, fast = (ENGINES[engine](model, loss, batch) for engine in ("loop", "bookkeeping"))
    close(fast.norms(ball(model)), slow.norms(ball(model)))
    sums = slow.weighted_sum(weights)
    for p, value in fast.weighted_sum(weights).items():
        close(value, sums[p])
    formulas = {cost.formula for cost in fast.explain(ball(model)).costs}
    assert not any("Jacobian" in formula for formula in formulas)


# --- refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "smallest"),
    [
        ("cnn", (1, 3, 8), "4x4"),
        ("cnn5", (1, 8, 8), "10x10"),
        ("wrn-16-4", (3, 8, 3), "4x4"),
        ("resnet8-gn", (784,), "4x4"),
        ("resnet18-gn", (3, 7, 8), "8x8"),
    ],
)
def test_images_that_are_too_small_are_refused(name, shape, smallest):
    with pytest.raises(ValueError, match=rf"input_shape=.*channels, height, width.*{smallest}.*{name}"):
        MODELS[name](shape, 10)


@pytest.mark.parametrize(
    ("name", "smallest"), [("tanh-cnn", 14), ("cnn", 4), ("cnn5", 10), ("wrn-16-4", 4), ("resnet8-gn", 4)]
)
def test_the_smallest_images_are_accepted(name, smallest):
    model = MODELS[name]((1, smallest, smallest), 10)
    assert torch.isfinite(model(torch.randn(2, 1, smallest, smallest))).all()


@every_model
def test_counts_of_zero_are_refused(name):
    shape, options = TINY[name]
    with pytest.raises(ValueError, match="classes=0"):
        MODELS[name](shape, 0, **options)
    with pytest.raises(ValueError, match=r"input_shape\[0\]=0"):
        MODELS[name]((0, *shape[1:]), 10, **options)
    with pytest.raises(ValueError, match="input_shape"):
        MODELS[name]((), 10, **options)


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match=r"groups=3 .* 32, 64"):
        cnn((3, 32, 32), 10, groups=3)
    with pytest.raises(ValueError, match="activation='gelu'"):
        cnn((3, 32, 32), 10, activation="gelu")
    with pytest.raises(ValueError, match="pooling='mean'"):
        cnn((3, 32, 32), 10, pooling="mean")
    with pytest.raises(ValueError, match="depth=18 to be 6k"):
        wide_resnet((3, 32, 32), 10, depth=18)
    with pytest.raises(ValueError, match=r"groups=2 .* 7"):
        resnet8_gn((3, 32, 32), 10, width=7)


def test_bad_options_of_minilm_are_refused(published):
    _, folder = published
    with pytest.raises(ValueError, match=r"input_shape=\(1, 8\) to be \(tokens,\)"):
        MODELS["minilm"]((1, 8), 2, sizes=SMALL)
    with pytest.raises(ValueError, match=r"input_shape=\(17,\) .* at most 16"):
        MODELS["minilm"]((17,), 2, sizes=SMALL)
    with pytest.raises(ValueError, match="blocks_trained=4 to be at most 3"):
        minilm(None, sizes=SMALL, blocks_trained=4)
    with pytest.raises(ValueError, match="initialization='zero'"):
        minilm(None, sizes=SMALL, initialization="zero")
    with pytest.raises(ValueError, match="weights or sizes"):
        minilm(folder, sizes=SMALL)
    with pytest.raises(ValueError, match="heads=5 to divide width=384"):
        BertSizes(heads=5)
    with pytest.raises(ValueError, match=r"at most 16.*Cut longer texts"):
        minilm(None, sizes=SMALL)(torch.ones(2, 17, dtype=torch.long))


def test_missing_files_and_those_of_another_model_are_refused(published, tmp_path_factory):
    _, folder = published
    with pytest.raises(FileNotFoundError, match=r"config.json.*minilm_files\(\)"):
        minilm(tmp_path_factory.mktemp("empty"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 41}))
    with pytest.raises(
        ValueError, match=r"encoder.layer.0.intermediate.dense.weight.*found shape \(40, 24\)"
    ):
        minilm(folder)
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 4}))
    with pytest.raises(ValueError, match=r"encoder.layer.3.*found none"):
        minilm(folder)
    (folder / "config.json").write_text(json.dumps(config | {"hidden_act": "relu"}))
    with pytest.raises(ValueError, match=r"hidden_act='gelu' in config\.json, found 'relu'"):
        minilm(folder)
