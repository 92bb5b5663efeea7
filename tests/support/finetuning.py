"""Small models, data and runs for the tests of fine-tuning."""

import os

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import adamas
from adamas import rules

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before the first import of transformers

N, D, CLASSES = 60, 6, 3
FALSE_ALARM = 1e-6  # of each statistical test, over seeds; the seed of a test is fixed


def data(n=N, d=D, dtype=torch.float64):
    g = torch.Generator().manual_seed(1)
    return TensorDataset(
        torch.randn(n, d, generator=g, dtype=dtype), torch.randint(CLASSES, (n,), generator=g)
    )


def mlp(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(D, 10), nn.ReLU(), nn.LayerNorm(10), nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, CLASSES)
    ).double()


def classification(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def private(model, rule=None, **options):
    settings = {"batch_size": 12, "steps": 5, "noise_multiplier": 0.0, "delta": 1e-4, "seed": 3} | options
    return adamas.make_private(
        model, rule or rules.SGD(model.parameters(), lr=0.5), data(), classification, **settings
    )


def per_example(model, batch, loss=classification):
    """Computes the gradients of each example with `torch.func`: (n, *shape) for each trainable parameter."""
    params = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    rest = {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}
    rest |= dict(model.named_buffers())

    def one(params, *example):
        single = tuple(part.unsqueeze(0) for part in example)
        return loss(lambda *x: torch.func.functional_call(model, (params, rest), x), single).sum()

    return torch.func.vmap(torch.func.grad(one), (None, *[0] * len(batch)))(params, *batch)


def norms_of(gradients):
    return torch.stack([g.flatten(1).square().sum(1) for g in gradients.values()]).sum(0).sqrt()


def small_bert():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=8, num_labels=CLASSES, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(config)


def small_gpt2():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=30, n_positions=8, n_embd=16, n_layer=3, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=0, eos_token_id=0, use_cache=False,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(config)


def trainable_names(model):
    return {name for name, p in model.named_parameters() if p.requires_grad}
