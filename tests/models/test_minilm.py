"""MiniLM equals BERT of `transformers`, with weights from files, and ignores padding."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adamas.models import (
    Staged,
    minilm,
)
from adamas.models.bert import _visible
from tests.support.one_by_one import close
from tests.support.small_models import CLASSES, SMALL, texts


def vectors(model: Staged, ids: Tensor) -> Tensor:
    """Returns the output of the last block."""
    hidden, present = model.frozen(ids)
    for block in model.trained.blocks:
        hidden = block(hidden, _visible(present, hidden.dtype))
    return hidden


def expected_logits(model: Staged, last: Tensor, ids: Tensor) -> Tensor:
    means = torch.stack([v[i != 0].mean(0) for v, i in zip(last, ids, strict=True)])
    return model.trained.classifier(means)


@pytest.mark.parametrize("blocks", [0, 1, 3])
def test_minilm_equals_bert(published, blocks):
    reference, folder = published
    model = minilm(folder, CLASSES, blocks_trained=blocks)
    ids = texts()
    with torch.no_grad():
        last = reference(input_ids=ids, attention_mask=(ids != 0).long()).last_hidden_state
        assert float((vectors(model, ids) - last)[ids != 0].abs().max()) < 1e-5
        assert float((model(ids) - expected_logits(model, last, ids)).abs().max()) < 1e-5


@pytest.mark.data
def test_minilm_with_its_published_weights_equals_bert():
    transformers = pytest.importorskip("transformers")
    from adamas import data

    folder = data.minilm_files()
    reference = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    model = minilm(folder)
    ids = texts(6, 40, 30522)
    with torch.no_grad():
        last = reference(input_ids=ids, attention_mask=(ids != 0).long()).last_hidden_state
        assert float((vectors(model, ids) - last)[ids != 0].abs().max()) < 1e-5
        assert float((model(ids) - expected_logits(model, last, ids)).abs().max()) < 1e-5


@torch.no_grad()
def test_padding_does_not_change_the_output():
    model = minilm(None, CLASSES, sizes=SMALL).double()
    ids = texts()
    longer = F.pad(ids, (0, 5))
    close(model(longer), model(ids), 1e-12)
    assert torch.isfinite(model(torch.zeros_like(ids))).all()


@torch.no_grad()
def test_the_trained_part_takes_vectors_in_half_precision():
    model = minilm(None, CLASSES, sizes=SMALL)
    hidden, present = model.frozen(texts())
    logits = model.trained(hidden, present)
    assert model.trained(hidden.half(), present).dtype == torch.float32
    assert float((model.trained(hidden.half(), present) - logits).abs().max()) < 1e-2


def test_a_staged_model_keeps_its_frozen_part_in_evaluation_mode():
    model = Staged(nn.Sequential(nn.Linear(2, 2), nn.Dropout()), nn.Linear(2, 2)).train()
    assert model.training
    assert model.trained.training
    assert not any(m.training for m in model.frozen.modules())
