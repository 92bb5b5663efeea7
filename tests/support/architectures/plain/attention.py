"""Attention: torch's layers, and attention written by hand."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.support.architectures.batches import present
from tests.support.architectures.plain.parts import (
    head,
    masked_mean,
    param,
    plain,
    sequence,
    square,
)
from tests.support.architectures.registry import T, register


def attended(batch_first: bool, m: Any, x: Tensor, mask: Tensor) -> Tensor:
    h = x if batch_first else x.transpose(0, 1)
    out, _ = m.attention(h, h, h, key_padding_mask=~mask)
    h = m.norm(h + out)
    return m.head(masked_mean(h if batch_first else h.transpose(0, 1), mask))


def attention_parts(batch_first: bool) -> Callable[[], dict[str, Any]]:
    return lambda: dict(
        attention=nn.MultiheadAttention(8, 2, batch_first=batch_first), norm=nn.LayerNorm(8), head=head()
    )


def biased_attention() -> dict[str, Any]:
    attention = nn.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True, add_zero_attn=True)
    return dict(attention=attention, norm=nn.LayerNorm(8), head=head())


def encoder_decoder(m: Any, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    causal = torch.ones(T, T, dtype=torch.bool).triu(1)
    memory = m.encoder(x, src_key_padding_mask=~mask)
    h = m.decoder(y, memory, tgt_mask=causal, memory_key_padding_mask=~mask)
    return m.head(h.mean(1))


def encoder_decoder_time_first(m: Any, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    x, y = x.transpose(0, 1), y.transpose(0, 1)
    memory = m.encoder(x, src_key_padding_mask=~mask)
    return m.head(m.decoder(y, memory, memory_key_padding_mask=~mask).mean(0))


def transformer_parts(batch_first: bool) -> Callable[[], dict[str, Any]]:
    def parts() -> dict[str, Any]:
        options: dict[str, Any] = dict(dropout=0.0, batch_first=batch_first)
        return dict(
            encoder=nn.TransformerEncoder(
                nn.TransformerEncoderLayer(8, 2, 12, **options), 1, enable_nested_tensor=False
            ),
            decoder=nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 12, **options), 1),
            head=head(),
        )

    return parts


def split_heads(x: Tensor, heads: int = 2) -> Tensor:
    return x.unflatten(2, (heads, -1))


def einsum_attention(m: Any, x: Tensor, mask: Tensor) -> Tensor:
    q, k, v = (split_heads(each) for each in m.qkv(x).chunk(3, 2))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / 2
    scores = scores.masked_fill(~mask[:, None, None], float("-inf"))
    out = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).flatten(2)
    return m.head(masked_mean(x + m.out(out), mask))


def einsum_weights(m: Any, x: Tensor) -> Tensor:
    """Projects with einsum, by weights for each head."""
    q, k, v = (torch.einsum("btd,dhk->bhtk", x, w) for w in (m.q, m.k, m.v))
    out = (q @ k.transpose(2, 3)).softmax(-1) @ v
    return m.head(torch.einsum("bhtk,hkd->btd", out, m.o).mean(1))


def folded_attention(m: Any, x: Tensor, mask: Tensor) -> Tensor:
    """Folds the heads into the batch, as fairseq and others do."""
    b, t, d = x.shape
    q, k, v = (
        each.view(b, t, 2, d // 2).transpose(1, 2).reshape(b * 2, t, d // 2) for each in m.qkv(x).chunk(3, 2)
    )
    hidden = (~mask).repeat_interleave(2, 0).unsqueeze(1)
    scores = torch.bmm(q, k.transpose(1, 2)).masked_fill(hidden, -1e9)
    out = torch.bmm(scores.softmax(-1), v).view(b, 2, t, d // 2).transpose(1, 2).reshape(b, t, d)
    return m.head(masked_mean(x + m.out(out), mask))


def rotary_attention(m: Any, x: Tensor) -> Tensor:
    q, k, v = (split_heads(each).transpose(1, 2) for each in m.qkv(x).chunk(3, 2))
    angles = torch.outer(torch.arange(x.shape[1], dtype=x.dtype), torch.tensor([1.0, 0.1], dtype=x.dtype))
    cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)

    def rotate(t: Tensor) -> Tensor:
        a, b = t.chunk(2, -1)
        return t * cos + torch.cat([-b, a], -1) * sin

    out = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
    return m.head(m.out(out.transpose(1, 2).flatten(2)).mean(1))


def relative_attention(m: Any, x: Tensor) -> Tensor:
    """Looks up a learned bias for each distance and head, and passes it as the mask."""
    q, k, v = (split_heads(each).transpose(1, 2) for each in m.qkv(x).chunk(3, 2))
    place = torch.arange(x.shape[1])
    bias = m.bias(place[None] - place[:, None] + T).permute(2, 0, 1).unsqueeze(0)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    return m.head(m.out(out.transpose(1, 2).flatten(2)).mean(1))


def qkv_parts() -> dict[str, Any]:
    return dict(qkv=nn.Linear(8, 24), out=nn.Linear(8, 8), head=head())


def window_attention(m: Any, x: Tensor) -> Tensor:
    """Folds shifted windows into the batch, and attends within them with a learned bias."""
    b, t, d = x.shape
    h = x.roll(-1, 1).view(b * t // 3, 3, d)
    q, k, v = (split_heads(each).transpose(1, 2) for each in m.qkv(h).chunk(3, 2))
    scores = q @ k.transpose(2, 3) + m.bias
    h = m.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
    return m.head((x + h.view(b, t, d).roll(1, 1)).mean(1))


def latent_queries(m: Any, x: Tensor) -> Tensor:
    """Attends from learned queries, repeated for each example."""
    q = m.query.expand(len(x), -1, -1)
    out = F.scaled_dot_product_attention(q, m.k(x), m.v(x))
    return m.head((out + q).flatten(1))


def class_token(m: Any, x: Tensor) -> Tensor:
    h = torch.cat([m.token.repeat(len(x), 1, 1), x], 1) + m.places
    return m.head(torch.tanh(m.first(h))[:, 0])


def head_parts() -> dict[str, Any]:
    return dict(q=param(8, 2, 4), k=param(8, 2, 4), v=param(8, 2, 4), o=param(2, 4, 8), head=head())


def query_parts() -> dict[str, Any]:
    return dict(query=param(1, 2, 8), k=square(), v=square(), head=head(16))


def token_parts() -> dict[str, Any]:
    return dict(token=param(1, 1, 8), places=param(T + 1, 8), first=square(), head=head())


def register_attention() -> None:
    """Adds attention layers, transformers and attention written by hand."""
    for first in (True, False):
        order = "batch first" if first else "time first"
        register(
            f"multi-head attention, {order}",
            plain(partial(attended, first), attention_parts(first), sequence, present),
        )
    register(
        "multi-head attention, biases", plain(partial(attended, True), biased_attention, sequence, present)
    )
    register(
        "transformer with decoder",
        plain(encoder_decoder, transformer_parts(True), sequence, sequence, present),
    )
    register(
        "transformer with decoder, time first",
        plain(encoder_decoder_time_first, transformer_parts(False), sequence, sequence, present),
    )
    register("einsum attention", plain(einsum_attention, qkv_parts, sequence, present))
    register("einsum with weights for each head", plain(einsum_weights, head_parts, sequence))
    register("heads folded with the batch", plain(folded_attention, qkv_parts, sequence, present))
    register("rotary attention", plain(rotary_attention, qkv_parts, sequence))
    register(
        "relative position bias",
        plain(relative_attention, lambda: qkv_parts() | dict(bias=nn.Embedding(2 * T + 1, 2)), sequence),
    )
    register(
        "window attention", plain(window_attention, lambda: qkv_parts() | dict(bias=param(2, 3, 3)), sequence)
    )
    register("learned queries", plain(latent_queries, query_parts, sequence))
    register("class token", plain(class_token, token_parts, sequence))
