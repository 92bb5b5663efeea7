"""A small BERT in files like those of published weights."""

import pytest
import torch

from tests.support.small_models import SMALL


@pytest.fixture
def published(tmp_path):
    """Saves a BERT with random weights by `transformers`, and returns the model and its folder."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=SMALL.words,
        max_position_embeddings=SMALL.positions,
        hidden_size=SMALL.width,
        num_hidden_layers=SMALL.layers,
        num_attention_heads=SMALL.heads,
        intermediate_size=SMALL.inner,
    )
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.2 * torch.randn_like(p)
    model.save_pretrained(tmp_path)
    return model, tmp_path
