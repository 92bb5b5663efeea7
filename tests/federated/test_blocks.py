"""Blocks: the parameters that share one second moment."""

import pytest
import torch
from torch import nn

from adamas.federated import Block, Blocks
from adamas.models import BertSizes, cnn, minilm, resnet8_gn

SMALL = BertSizes(words=50, positions=16, width=24, layers=2, heads=4, inner=40)


def coordinates(blocks):
    return {block.name: block.coordinates for block in blocks}


def test_weight_and_bias_of_a_layer_are_one_block():
    assert coordinates(Blocks.of(cnn((3, 8, 8), 10))) == {
        "0": 3 * 32 * 9 + 32,
        "1": 2 * 32,
        "4": 32 * 64 * 9 + 64,
        "5": 2 * 64,
        "8": 64 * 64 * 9 + 64,
        "9": 2 * 64,
        "12": 64 * 4 * 128 + 128,
        "14": 128 * 10 + 10,
    }


def test_query_key_and_value_are_split_by_head_and_frozen_parameters_have_no_block():
    blocks = coordinates(Blocks.of(minilm(None, classes=3, sizes=SMALL)))
    rows = 24 // 4 * 24 + 24 // 4  # of one head, with its share of the bias
    heads = {
        f"trained.blocks.0.{part} head {h}": rows for part in ("query", "key", "value") for h in range(4)
    }
    others = {
        "trained.blocks.0.output": 24 * 24 + 24,
        "trained.blocks.0.attention_norm": 48,
        "trained.blocks.0.up": 24 * 40 + 40,
        "trained.blocks.0.down": 40 * 24 + 24,
        "trained.blocks.0.output_norm": 48,
        "trained.classifier": 24 * 3 + 3,
    }
    assert blocks == heads | others


def test_the_joint_projection_of_torch_attention_is_split_into_query_key_and_value_by_head():
    model = nn.MultiheadAttention(8, 2)
    blocks = Blocks.of(model)
    assert [block.name for block in blocks] == [
        *(f"in_proj {part} head {h}" for part in ("query", "key", "value") for h in (0, 1)),
        "out_proj",
    ]
    values = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    values["in_proj_weight"][12:16] = 3.0  # rows of the second head's key
    values["in_proj_bias"][12:16] = 3.0
    assert blocks.means(values).tolist() == [0, 0, 0, 3, 0, 0, 0]


def test_the_joint_layer_of_timm_attention_is_split_into_query_key_and_value_by_head():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.num_heads = 3
            self.qkv, self.proj = nn.Linear(6, 18), nn.Linear(6, 6)

    assert coordinates(Blocks.of(Attention())) == {
        **{f"qkv {part} head {h}": 2 * 6 + 2 for part in ("query", "key", "value") for h in range(3)},
        "proj": 42,
    }


def test_each_parameter_outside_known_layers_is_its_own_block():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))
            self.layer = nn.Linear(2, 2, bias=False)
            self.shift = nn.Parameter(torch.ones(3))

    assert coordinates(Blocks.of(Odd())) == {"scale": 1, "shift": 3, "layer": 4}


def test_a_tied_weight_is_in_one_block():
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=False))
    model[1].weight = model[0].weight
    assert coordinates(Blocks.of(model)) == {"0": 20}


@pytest.mark.parametrize("model", [resnet8_gn((3, 8, 8), 10), minilm(None, sizes=SMALL)], ids=["cnn", "text"])
def test_means_invert_expanding(model):
    blocks = Blocks.of(model)
    numbers = torch.randn(len(blocks))
    expanded = blocks.expanded(numbers)
    shapes = {name: p.shape for name, p in model.named_parameters() if p.requires_grad}
    assert {name: value.shape for name, value in expanded.items()} == shapes
    torch.testing.assert_close(blocks.means(expanded), numbers)


def test_means_are_weighted_by_coordinates():
    blocks = Blocks.of(nn.Linear(3, 1))
    values = {"weight": torch.full((1, 3), 2.0), "bias": torch.full((1,), 6.0)}
    assert blocks.means(values).tolist() == [3.0]
    assert list(blocks) == [Block("model", 4)]


def test_blocks_can_be_given_by_index_and_name():
    model = nn.Linear(2, 3)
    index = {"weight": torch.tensor([[0], [1], [1]]), "bias": torch.tensor(1)}
    blocks = Blocks(model, index, ["first row", "rest"])
    assert coordinates(blocks) == {"first row": 2, "rest": 7}
    assert blocks.expanded(torch.tensor([1.0, 2.0]))["weight"].tolist() == [[1, 1], [2, 2], [2, 2]]
    assert len(Blocks.coordinates(model)) == 9


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({"weight": torch.tensor(0)}, "missing or unknown: bias"),
        ({"weight": torch.tensor(0), "bias": torch.tensor(0.0)}, r"\['bias'\] to hold whole numbers"),
        ({"weight": torch.tensor(0), "bias": torch.tensor(-1)}, r"\['bias'\] to hold whole numbers"),
        ({"weight": torch.tensor(0), "bias": torch.tensor([0, 1])}, r"broadcasts to \(3,\), got \(2,\)"),
        ({"weight": torch.tensor(0), "bias": torch.tensor(2)}, r"blocks without one: \[1\]"),
    ],
)
def test_bad_blocks_are_refused(index, message):
    with pytest.raises(ValueError, match=message):
        Blocks(nn.Linear(2, 3), index)


def test_expanding_the_wrong_number_of_values_is_refused():
    with pytest.raises(ValueError, match="Expected 1 numbers, one per block"):
        Blocks.of(nn.Linear(2, 3)).expanded(torch.zeros(2))
