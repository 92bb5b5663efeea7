"""Selections by name: the selected parameters train privately, and the others stay unchanged."""

import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import adamas
from adamas import finetune, rules
from adamas.engines import ENGINES, Bookkeeping, trainable_parameters
from adamas.finetune import select
from adamas.geometry import Geometry
from tests.support.finetuning import (
    CLASSES,
    N,
    classification,
    data,
    mlp,
    norms_of,
    per_example,
    private,
    small_bert,
    small_gpt2,
    trainable_names,
)

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")

# --- selections -----------------------------------------------------------------------------------------


def test_a_pattern_takes_parameters_and_whole_modules():
    model = mlp()
    chosen = select(model, ["3", "0.b*"])
    assert chosen.names == ("0.bias", "3.weight", "3.bias")
    assert trainable_names(model) == set(chosen.names)
    assert (chosen.trainable, chosen.total) == (10 + 80 + 8, 6 * 10 + 10 + 20 + 80 + 8 + 24 + 3)
    wider = select(model, "5.weight", freeze_rest=False)
    assert set(wider.names) == {*chosen.names, "5.weight"}


def test_a_module_does_not_match_others_whose_number_begins_with_its_own():
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


def test_bitfit_does_not_select_a_module_named_bias():
    model = nn.ModuleDict({"position_bias": nn.Embedding(4, 2), "head": nn.Linear(2, 2)})
    assert finetune.bitfit(model).names == ("head.weight", "head.bias")


def test_head_and_last_block_are_found_in_bert_and_gpt2():
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


def test_tied_weights_are_selected_by_either_name_and_shown():
    model = small_gpt2()
    for name in ("lm_head.weight", "transformer.wte.weight"):
        chosen = select(model, name)
        assert chosen.names == ("transformer.wte.weight",)
        assert chosen.trainable == 30 * 16
        assert chosen.tied == {"transformer.wte.weight": ("lm_head.weight",)}
        assert "transformer.wte.weight (tied to lm_head.weight)" in str(chosen)
        assert model.lm_head.weight.requires_grad
    assert finetune.head(model).names == ("transformer.wte.weight",)


def test_the_head_is_the_outermost_module_with_a_usual_name():
    inner = nn.ModuleDict({"fc": nn.Linear(3, 3), "out": nn.Linear(3, 3)})
    model = nn.ModuleDict({"body": inner, "score": nn.Linear(3, 2), "last": nn.Linear(3, 2)})
    assert finetune.head(model).names == ("score.weight", "score.bias")
    assert finetune.head(model, "body.fc").names == ("body.fc.weight", "body.fc.bias")
    two = nn.ModuleDict(
        {"a": nn.ModuleDict({"fc": nn.Linear(2, 2)}), "b": nn.ModuleDict({"fc": nn.Linear(2, 2)})}
    )
    with pytest.raises(ValueError, match=r"each of 'a.fc', 'b.fc' could be it. Name it with head="):
        finetune.bitfit(two)
    with pytest.raises(ValueError, match="patterns="):
        finetune.head(nn.Sequential(nn.Conv2d(1, 1, 1)))


def test_of_equally_long_lists_of_blocks_the_last_is_used():
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


def test_a_long_selection_is_printed_in_brief():
    text = str(finetune.bitfit(small_bert()))
    assert text.count("\n") == 13
    assert "more in .names" in text
    assert "%" in text.splitlines()[0]


# --- privacy of a selection -----------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_norms_and_sums_cover_the_selected_parameters_only(engine):
    model, batch = mlp(), data().tensors
    whole = norms_of(per_example(model, batch))
    finetune.bitfit(model)
    gradients = per_example(model, batch)
    assert set(gradients) == {"0.bias", "2.bias", "3.bias", "5.weight", "5.bias"}
    params = trainable_parameters(model)
    built = ENGINES[engine](model, classification, batch)
    norms = built.norms(Geometry.ball(params.values()))
    assert torch.allclose(norms, norms_of(gradients), rtol=1e-9)
    assert (norms < 0.99 * whole).all()  # the norms of the whole model are larger
    sums = built.weighted_sum(1 / norms.clamp(min=1))
    assert set(sums) == set(params.values())
    for name, p in params.items():
        expected = torch.einsum("i,i...->...", 1 / norms.clamp(min=1), gradients[name])
        assert torch.allclose(sums[p], expected, rtol=1e-9, atol=1e-12)


def test_removing_an_example_moves_the_sum_of_a_selection_by_at_most_one():
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


def test_training_keeps_frozen_parameters_bit_for_bit():
    model = mlp()
    finetune.bitfit(model)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    chosen = trainable_names(model)
    run = private(model, rules.AdamBC(model.parameters(), lr=0.1), noise_multiplier=1.0)
    for step in run:
        assert set(step.release.mean) == set(trainable_parameters(model).values())
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert changed == chosen


def test_bert_trains_its_biases():
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
