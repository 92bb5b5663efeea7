"""Models in plain torch: folded batches, packed sequences, experts, attention by hand, graphs."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from tests.support.architectures.registry import CLASSES, Built, T, register
from tests.support.architectures.texts import labels, lengths, plain_classified, present
from tests.support.through import Through

# --- models in plain torch ----------------------------------------------------------------------------


def plain(
    forward: Callable[..., Tensor], parts: Callable[[], dict[str, Any]], *inputs: Callable[[int], Tensor]
) -> Callable[[int], Built]:
    """A classifier that is a function of parts and inputs."""

    def build(n: int) -> Built:
        return Through(forward, **parts()), plain_classified, (*(x(n) for x in inputs), labels(n))

    return build


def param(*shape: int) -> nn.Parameter:
    return nn.Parameter(0.3 * torch.randn(shape))


def sequence(n: int) -> Tensor:
    return torch.randn(n, T, 8)


def head(width: int = 8) -> nn.Linear:
    return nn.Linear(width, CLASSES)


def masked_mean(h: Tensor, mask: Tensor) -> Tensor:
    kept = mask.to(h.dtype).unsqueeze(2)
    return (h * kept).sum(1) / kept.sum(1)


def frames(m: Any, x: Tensor) -> Tensor:
    """A video: frames folded into the batch, and their mean over time."""
    h = x.flatten(0, 1)
    h = F.relu(m.norm(m.first(h)))
    h = F.relu(m.second(h)).mean((2, 3))
    return m.head(h.unflatten(0, (len(x), -1)).mean(1))


def frames_reshaped(m: Any, x: Tensor) -> Tensor:
    """The same with sizes that are read and multiplied in Python."""
    b, t, c, height, width = x.shape
    h = F.relu(m.norm(m.first(x.reshape(b * t, c, height, width))))
    h = F.relu(m.second(h)).mean((2, 3))
    return m.head(h.view(b, t, -1).mean(1))


def frames_time_first(m: Any, x: Tensor) -> Tensor:
    """The same with time before the examples in the folded axis."""
    h = F.relu(m.norm(m.first(x.transpose(0, 1).flatten(0, 1))))
    h = F.relu(m.second(h)).mean((2, 3))
    return m.head(h.unflatten(0, (x.shape[1], len(x))).mean(0))


def video_parts() -> dict[str, Any]:
    return dict(
        first=nn.Conv2d(3, 8, 3, padding=1), norm=nn.GroupNorm(2, 8), second=nn.Conv2d(8, 8, 3), head=head()
    )


def video(n: int) -> Tensor:
    return torch.randn(n, 3, 3, 6, 6)


def time_major(m: Any, x: Tensor) -> Tensor:
    out, _ = m.rnn(x.transpose(0, 1))
    return m.head(out.mean(0))


def time_major_last(m: Any, x: Tensor) -> Tensor:
    _, h = m.rnn(x.transpose(0, 1))
    h = h[0] if isinstance(h, tuple) else h
    return m.head(h[-1])


def packed(m: Any, x: Tensor, sizes: Tensor) -> Tensor:
    """Sequences of different lengths, packed in any order; the final state and the outputs."""
    pack = pack_padded_sequence(x, sizes, batch_first=True, enforce_sorted=False)
    out, h = m.rnn(pack)
    h = h[0] if isinstance(h, tuple) else h
    whole, _ = pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])
    return m.head(torch.cat([*h, whole.sum(1)], 1))


def packed_sorted(m: Any, x: Tensor, sizes: Tensor) -> Tensor:
    """Sequences that the model sorts by length, and sorts back."""
    order = sizes.argsort(descending=True)
    pack = pack_padded_sequence(x[order], sizes[order], batch_first=True)
    out, h = m.rnn(pack)
    h = h[0] if isinstance(h, tuple) else h
    whole, _ = pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])
    back = order.argsort()
    return m.head(torch.cat([*h, whole.sum(1)], 1)[back])


def packed_list(m: Any, x: Tensor, sizes: Tensor) -> Tensor:
    """Lengths read as numbers, as many tutorials do."""
    pack = pack_padded_sequence(x, sizes.tolist(), batch_first=True, enforce_sorted=False)
    out, _ = m.rnn(pack)
    whole, _ = pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])
    return m.head(whole.sum(1))


def recurrent(kind: Any, heads: int, **options: Any) -> Callable[[], dict[str, Any]]:
    return lambda: dict(rnn=kind(8, 6, **options), head=head(6 * heads))


def token_mlp(experts: int = 4) -> dict[str, Any]:
    return dict(
        gate=nn.Linear(8, experts),
        experts=nn.ModuleList(
            nn.Sequential(nn.Linear(8, 10), nn.GELU(), nn.Linear(10, 8)) for _ in range(experts)
        ),
        head=head(),
    )


def soft_mixture(m: Any, x: Tensor) -> Tensor:
    """All experts for all tokens, weighted by the gates."""
    gates = m.gate(x).softmax(-1)
    mixed = torch.stack([expert(x) for expert in m.experts], -1)
    return m.head((x + (mixed * gates.unsqueeze(-2)).sum(-1)).mean(1))


def top_mixture(m: Any, x: Tensor) -> Tensor:
    """All experts for all tokens, of which the best two have weights."""
    gates, best = m.gate(x).topk(2, -1)
    weights = (F.one_hot(best, len(m.experts)).to(x.dtype) * gates.softmax(-1).unsqueeze(-1)).sum(-2)
    mixed = torch.stack([expert(x) for expert in m.experts], -1)
    return m.head((x + (mixed * weights.unsqueeze(-2)).sum(-1)).mean(1))


def routed_mixture(m: Any, x: Tensor) -> Tensor:
    """Each expert on the tokens of the whole batch that chose it, added back at their places."""
    tokens = x.reshape(-1, x.shape[-1])
    gates, best = m.gate(tokens).topk(2, -1)
    gates = gates.softmax(-1)
    out = torch.zeros_like(tokens)
    for i, expert in enumerate(m.experts):
        rows, places = torch.where(best == i)
        out = out.index_add(0, rows, expert(tokens[rows]) * gates[rows, places].unsqueeze(1))
    return m.head((tokens + out).view_as(x).mean(1))


def masked_mixture(m: Any, x: Tensor) -> Tensor:
    """The same with boolean masks and assignment."""
    tokens = x.flatten(0, 1)
    gates, best = m.gate(tokens).softmax(-1).max(-1)
    out = torch.zeros_like(tokens)
    for i, expert in enumerate(m.experts):
        mask = best == i
        if mask.any():
            out[mask] = gates[mask].unsqueeze(1) * expert(tokens[mask])
    return m.head((tokens + out).view_as(x).mean(1))


def stacked_mixture(m: Any, x: Tensor) -> Tensor:
    """Experts' weights in one tensor, from which each token takes its own."""
    tokens = x.flatten(0, 1)
    gates, best = m.gate(tokens).softmax(-1).max(-1)
    h = torch.einsum("td,tdk->tk", tokens, m.wide[best])
    out = torch.einsum("tk,tkd->td", F.gelu(h), m.narrow[best])
    return m.head((tokens + gates.unsqueeze(1) * out).view_as(x).mean(1))


def checkpoints(reentrant: bool, m: Any, x: Tensor) -> Tensor:
    h = m.first(x)
    h = checkpoint(lambda h: torch.tanh(m.second(torch.relu(h))), h, use_reentrant=reentrant)
    h = checkpoint(lambda h: torch.tanh(m.third(h)), h, use_reentrant=reentrant)
    return m.head(h.mean(1))


def siamese(m: Any, left: Tensor, right: Tensor) -> Tensor:
    """Two inputs side by side in the batch."""
    h = torch.tanh(m.second(torch.relu(m.first(torch.cat([left, right])))))
    a, b = h.chunk(2)
    return m.head((a - b).abs())


def siamese_stacked(m: Any, left: Tensor, right: Tensor) -> Tensor:
    """Two inputs that alternate in the batch."""
    h = torch.tanh(m.second(torch.relu(m.first(torch.stack([left, right], 1).flatten(0, 1)))))
    return m.head((h[0::2] - h[1::2]).abs())


def many_crops(m: Any, x: Tensor) -> Tensor:
    """Several augmentations of each example, repeated along the batch; the mean of their logits."""
    again = x.repeat_interleave(3, 0)
    factors = torch.tensor([1.0, 0.5, -1.0], dtype=x.dtype).repeat(len(x)).view(-1, 1)
    h = torch.relu(m.first(again * factors))
    return m.head(torch.tanh(m.second(h))).view(len(x), 3, -1).mean(1)


def tiled_crops(m: Any, x: Tensor) -> Tensor:
    """The same with the augmentations outside the examples."""
    again = torch.cat([x, 0.5 * x, x.flip(1)])
    h = torch.relu(m.first(again))
    return torch.stack(m.head(torch.tanh(m.second(h))).split(len(x))).mean(0)


def two_layers() -> dict[str, Any]:
    return dict(first=nn.Linear(8, 10), second=nn.Linear(10, 8), head=head())


def three_layers() -> dict[str, Any]:
    return two_layers() | dict(third=nn.Linear(8, 8))


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


def windows(m: Any, x: Tensor) -> Tensor:
    """Overlapping windows of a signal, by `Tensor.unfold`."""
    h = torch.relu(m.first(x.unfold(1, 4, 2)))
    return m.head(torch.tanh(m.second(h.flatten(1))))


def image_windows(m: Any, x: Tensor) -> Tensor:
    """Patches of an image, by `F.unfold`, and back by `F.fold`."""
    h = F.unfold(x, 3, padding=1).transpose(1, 2)
    h = torch.relu(m.first(h)).transpose(1, 2)
    return m.head(F.fold(h, x.shape[-2:], 1).mean((2, 3)))


def split_heads(x: Tensor, heads: int = 2) -> Tensor:
    return x.unflatten(2, (heads, -1))


def einsum_attention(m: Any, x: Tensor, mask: Tensor) -> Tensor:
    q, k, v = (split_heads(each) for each in m.qkv(x).chunk(3, 2))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / 2
    scores = scores.masked_fill(~mask[:, None, None], float("-inf"))
    out = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).flatten(2)
    return m.head(masked_mean(x + m.out(out), mask))


def einsum_weights(m: Any, x: Tensor) -> Tensor:
    """Projections by einsum with weights for each head."""
    q, k, v = (torch.einsum("btd,dhk->bhtk", x, w) for w in (m.q, m.k, m.v))
    out = (q @ k.transpose(2, 3)).softmax(-1) @ v
    return m.head(torch.einsum("bhtk,hkd->btd", out, m.o).mean(1))


def folded_attention(m: Any, x: Tensor, mask: Tensor) -> Tensor:
    """Heads folded with the batch, as fairseq and many others do."""
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
    """A learned bias for each distance and head, looked up at constant places, as the attention's mask."""
    q, k, v = (split_heads(each).transpose(1, 2) for each in m.qkv(x).chunk(3, 2))
    place = torch.arange(x.shape[1])
    bias = m.bias(place[None] - place[:, None] + T).permute(2, 0, 1).unsqueeze(0)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    return m.head(m.out(out.transpose(1, 2).flatten(2)).mean(1))


def qkv_parts() -> dict[str, Any]:
    return dict(qkv=nn.Linear(8, 24), out=nn.Linear(8, 8), head=head())


def window_attention(m: Any, x: Tensor) -> Tensor:
    """Attention in windows that are folded with the batch, with a bias, and shifted back."""
    b, t, d = x.shape
    h = x.roll(-1, 1).view(b * t // 3, 3, d)
    q, k, v = (split_heads(each).transpose(1, 2) for each in m.qkv(h).chunk(3, 2))
    scores = q @ k.transpose(2, 3) + m.bias
    h = m.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
    return m.head((x + h.view(b, t, d).roll(1, 1)).mean(1))


def latent_queries(m: Any, x: Tensor) -> Tensor:
    """Learned queries, repeated for each example."""
    q = m.query.expand(len(x), -1, -1)
    out = F.scaled_dot_product_attention(q, m.k(x), m.v(x))
    return m.head((out + q).flatten(1))


def class_token(m: Any, x: Tensor) -> Tensor:
    h = torch.cat([m.token.repeat(len(x), 1, 1), x], 1) + m.places
    return m.head(torch.tanh(m.first(h))[:, 0])


def initial_state(m: Any, x: Tensor) -> Tensor:
    """A learned initial state for a recurrent layer."""
    _, h = m.rnn(x, m.state.unsqueeze(1).repeat(1, len(x), 1))
    return m.head(h[-1])


def hand_written_rnn(m: Any, x: Tensor) -> Tensor:
    """A cell in a loop over time, over whole columns of the batch."""
    h = x.new_zeros(len(x), 6)
    for step in x.unbind(1):
        h = m.cell(step, h)
    return m.head(h)


def filled_rnn(m: Any, x: Tensor) -> Tensor:
    """Outputs that are written into a buffer."""
    h, outs = torch.zeros(len(x), 6, dtype=x.dtype), torch.zeros(len(x), x.shape[1], 6, dtype=x.dtype)
    for t in range(x.shape[1]):
        h = m.cell(x[:, t], h)
        outs[:, t] = h
    return m.head(outs.mean(1))


def masked_tokens(m: Any, x: Tensor, mask: Tensor) -> Tensor:
    """A layer on the tokens that are present only, all of the batch in one list."""
    h = torch.tanh(m.second(torch.relu(m.first(x[mask]))))
    rows = mask.nonzero()[:, 0]
    return m.head(torch.zeros(len(x), 8, dtype=h.dtype).index_add(0, rows, h))


def scattered_tokens(m: Any, x: Tensor, mask: Tensor) -> Tensor:
    """The same, put back at their places."""
    h = torch.tanh(m.second(torch.relu(m.first(x[mask]))))
    out = torch.zeros_like(x)
    out[mask] = h
    return m.head(out.sum(1))


def graph(m: Any, x: Tensor, edges: Tensor) -> Tensor:
    """Graphs of one size as one large graph: nodes folded into the batch, edges with offsets."""
    n, nodes, _ = x.shape
    offset = torch.arange(n).view(-1, 1, 1) * nodes
    source, target = (edges + offset).permute(2, 0, 1).flatten(1)
    h = x.flatten(0, 1)
    for layer in (m.first, m.second):
        h = torch.relu(layer(h))
        h = h + torch.zeros_like(h).index_add(0, target, h[source])
    return m.head(h.view(n, nodes, -1).mean(1))


def segments(m: Any, x: Tensor, edges: Tensor) -> Tensor:
    """The same with `scatter_add`, and the mean over a graph by its number."""
    n, nodes, _ = x.shape
    offset = torch.arange(n).view(-1, 1, 1) * nodes
    source, target = (edges + offset).permute(2, 0, 1).flatten(1)
    h = torch.relu(m.first(x.flatten(0, 1)))
    h = h.scatter_add(0, target.unsqueeze(1).expand(-1, h.shape[1]), h[source])
    h = torch.relu(m.second(h))
    owner = torch.arange(n).repeat_interleave(nodes)
    return m.head(torch.zeros(n, 8, dtype=h.dtype).index_add(0, owner, h) / nodes)


def point_cloud(m: Any, x: Tensor) -> Tensor:
    """Nearest neighbours within a cloud, gathered by index."""
    near = torch.cdist(x, x).topk(3, largest=False).indices
    rows = torch.arange(len(x)).view(-1, 1, 1)
    h = torch.relu(m.first(x[rows, near] - x.unsqueeze(2))).amax(2)
    return m.head(torch.tanh(m.second(h)).amax(1))


def u_net(m: Any, x: Tensor) -> Tensor:
    """Down, up and across, as in segmentation and diffusion."""
    a = F.silu(m.norm(m.first(x)))
    b = F.silu(m.down(a))
    c = F.interpolate(b, scale_factor=2, mode="nearest")
    return m.last(torch.cat([a, m.up(c)], 1)).mean((2, 3))


def diffusion(n: int) -> Built:
    """Noise that the batch brings, scaled by a table at a time of each example, and a time embedding."""
    model = Through(
        _denoise, conv=nn.Conv2d(3, 8, 3, padding=1), time=nn.Linear(4, 8), out=nn.Conv2d(8, 3, 1)
    )
    table = torch.linspace(0.1, 0.9, 10, dtype=torch.float64)

    def loss(model: Any, batch: tuple[Tensor, ...]) -> Tensor:
        x, noise, time = batch
        a = table.to(x.dtype)[time].view(-1, 1, 1, 1)
        return (model(a * x + (1 - a) * noise, time) - noise).square().mean((1, 2, 3))

    return model, loss, (torch.randn(n, 3, 6, 6), torch.randn(n, 3, 6, 6), torch.randint(10, (n,)))


def _denoise(m: Any, x: Tensor, time: Tensor) -> Tensor:
    angles = time.to(x.dtype).unsqueeze(1) * torch.tensor([1.0, 0.1], dtype=x.dtype)
    embedded = m.time(torch.cat([angles.sin(), angles.cos()], 1))
    return m.out(F.silu(m.conv(x) + embedded[:, :, None, None]))


def factorization(m: Any, users: Tensor, items: Tensor) -> Tensor:
    """Click-through: embeddings of fields with offsets, pairwise products, and a bag."""
    h = m.table(users.unsqueeze(1) + torch.tensor([0, 10]))
    bag = F.embedding_bag(items, m.items.weight, mode="mean")
    pairs = 0.5 * (h.sum(1).square() - h.square().sum(1))
    return m.head(torch.cat([pairs, bag], 1))


def register_plain() -> None:
    """Adds models in plain torch."""
    mask, sizes = present, lengths
    for name, forward in [
        ("frames folded into the batch", frames),
        ("frames folded by sizes", frames_reshaped),
        ("frames folded, time first", frames_time_first),
    ]:
        register(f"video, {name}", plain(forward, video_parts, video))
    for kind in (nn.LSTM, nn.GRU):
        name = kind.__name__
        register(f"{name}, time major", plain(time_major, recurrent(kind, 2, bidirectional=True), sequence))
        register(
            f"{name}, time major, last state",
            plain(time_major_last, recurrent(kind, 1, num_layers=2), sequence),
        )
        both = dict(bidirectional=True)
        register(
            f"{name}, packed", plain(packed, recurrent(kind, 4, batch_first=True, **both), sequence, sizes)
        )
        register(f"{name}, packed, one direction", plain(packed, recurrent(kind, 2), sequence, sizes))
        register(f"{name}, packed, sorted", plain(packed_sorted, recurrent(kind, 4, **both), sequence, sizes))
    register("RNN, packed", plain(packed, recurrent(nn.RNN, 2), sequence, sizes))
    register(
        "LSTM, packed, lengths as numbers",
        plain(packed_list, recurrent(nn.LSTM, 1), sequence, sizes),
        expected="reads lengths of the batch as numbers",
    )
    register(
        "GRU, learned initial state",
        plain(
            initial_state,
            lambda: recurrent(nn.GRU, 1, batch_first=True)() | dict(state=param(1, 6)),
            sequence,
        ),
    )
    cell = lambda: dict(cell=nn.GRUCell(8, 6), head=head(6))  # noqa: E731
    register("GRU cell in a loop", plain(hand_written_rnn, cell, sequence))
    register("GRU cell, outputs in a buffer", plain(filled_rnn, cell, sequence))
    for name, forward in [
        ("soft", soft_mixture),
        ("best two with weights", top_mixture),
        ("rows of each expert", routed_mixture),
    ]:
        register(f"mixture of experts, {name}", plain(forward, token_mlp, sequence))
    register(
        "mixture of experts, masks of each expert",
        plain(masked_mixture, token_mlp, sequence),
        expected="asks whether any token of the batch chose an expert",
    )
    register(
        "mixture of experts, weights of each token",
        plain(
            stacked_mixture,
            lambda: dict(gate=nn.Linear(8, 4), wide=param(4, 8, 10), narrow=param(4, 10, 8), head=head()),
            sequence,
        ),
    )
    register("checkpointing, reentrant", plain(partial(checkpoints, True), three_layers, sequence))
    register("checkpointing, not reentrant", plain(partial(checkpoints, False), three_layers, sequence))
    vector = lambda n: torch.randn(n, 8)  # noqa: E731
    register("siamese, side by side", plain(siamese, two_layers, vector, vector))
    register("siamese, alternating", plain(siamese_stacked, two_layers, vector, vector))
    register("augmentations, repeated", plain(many_crops, two_layers, vector))
    register("augmentations, side by side", plain(tiled_crops, two_layers, vector))
    for first in (True, False):
        order = "batch first" if first else "time first"
        register(
            f"multi-head attention, {order}",
            plain(partial(attended, first), attention_parts(first), sequence, mask),
        )
    register("multi-head attention, biases", plain(partial(attended, True), biased_attention, sequence, mask))
    register(
        "transformer with decoder", plain(encoder_decoder, transformer_parts(True), sequence, sequence, mask)
    )
    register(
        "transformer with decoder, time first",
        plain(encoder_decoder_time_first, transformer_parts(False), sequence, sequence, mask),
    )
    register("windows of a signal", plain(windows, windows_parts, lambda n: torch.randn(n, 10)))
    register(
        "windows of an image",
        plain(
            image_windows,
            lambda: dict(first=nn.Linear(27, 8), head=head()),
            lambda n: torch.randn(n, 3, 6, 6),
        ),
    )
    register("einsum attention", plain(einsum_attention, qkv_parts, sequence, mask))
    register(
        "einsum with weights for each head",
        plain(
            einsum_weights,
            lambda: dict(q=param(8, 2, 4), k=param(8, 2, 4), v=param(8, 2, 4), o=param(2, 4, 8), head=head()),
            sequence,
        ),
    )
    register("heads folded with the batch", plain(folded_attention, qkv_parts, sequence, mask))
    register("rotary attention", plain(rotary_attention, qkv_parts, sequence))
    register(
        "relative position bias",
        plain(relative_attention, lambda: qkv_parts() | dict(bias=nn.Embedding(2 * T + 1, 2)), sequence),
    )
    register(
        "window attention", plain(window_attention, lambda: qkv_parts() | dict(bias=param(2, 3, 3)), sequence)
    )
    register(
        "learned queries",
        plain(
            latent_queries, lambda: dict(query=param(1, 2, 8), k=head8(), v=head8(), head=head(16)), sequence
        ),
    )
    register(
        "class token",
        plain(
            class_token,
            lambda: dict(token=param(1, 1, 8), places=param(T + 1, 8), first=head8(), head=head()),
            sequence,
        ),
    )
    register("tokens by a boolean mask", plain(masked_tokens, two_layers, sequence, mask))
    register("tokens by a boolean mask, put back", plain(scattered_tokens, two_layers, sequence, mask))
    edges = lambda n: torch.randint(T, (n, 7, 2))  # noqa: E731
    square = lambda: dict(first=head8(), second=head8(), head=head())  # noqa: E731
    register("graphs as one graph", plain(graph, square, sequence, edges))
    register("graphs as one graph, scatter_add", plain(segments, square, sequence, edges))
    register("point cloud", plain(point_cloud, square, sequence))
    register("U-Net", plain(u_net, unet_parts, lambda n: torch.randn(n, 3, 6, 6)))
    register("diffusion", diffusion)
    register(
        "click-through with offsets and a bag",
        plain(
            factorization,
            lambda: dict(table=nn.Embedding(20, 8), items=nn.Embedding(20, 8), head=head(16)),
            lambda n: torch.randint(10, (n,)),
            lambda n: torch.randint(20, (n, 4)),
        ),
    )


def head8() -> nn.Linear:
    return nn.Linear(8, 8)


def windows_parts() -> dict[str, Any]:
    return dict(first=nn.Linear(4, 6), second=nn.Linear(24, 8), head=head())


def unet_parts() -> dict[str, Any]:
    return dict(
        first=nn.Conv2d(3, 8, 3, padding=1),
        norm=nn.GroupNorm(2, 8),
        down=nn.Conv2d(8, 8, 3, 2, 1),
        up=nn.ConvTranspose2d(8, 8, 3, padding=1),
        last=nn.Conv2d(16, CLASSES, 1),
    )
