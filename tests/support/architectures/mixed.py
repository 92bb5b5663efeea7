"""Models and losses that mix the examples of a batch. No engine may accept them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence

from tests.support.architectures.batches import lengths, present, token_losses
from tests.support.architectures.plain.attention import attention_parts
from tests.support.architectures.plain.experts import token_mlp
from tests.support.architectures.plain.parts import head, plain, sequence, two_layers
from tests.support.architectures.plain.recurrent import recurrent
from tests.support.architectures.registry import ARCHITECTURES, MIXED, Architecture, Built
from tests.support.architectures.vision import clip_pairs


def mixing(between: Callable[[Tensor], Tensor]) -> Callable[[int], Built]:
    """Puts a function that mixes examples between two layers."""
    return plain(
        lambda m, x: m.head(torch.tanh(m.second(between(torch.tanh(m.first(x)))))),
        two_layers,
        lambda n: torch.randn(n, 8),
    )


def batch_normalized(h: Tensor) -> Tensor:
    return F.batch_norm(torch.stack([h, -h], 2), None, None, training=True)[..., 0]


def losing(change: Callable[[Tensor], Tensor]) -> Callable[[int], Built]:
    """Makes a model that does not mix examples, and losses that do."""

    def build(n: int) -> Built:
        model, loss, batch = mixing(lambda h: h)(n)
        return model, lambda model, batch: change(loss(model, batch)), batch

    return build


def capacity(size: int, m: Any, x: Tensor) -> Tensor:
    """Gives each expert only the first `size` tokens of the batch that chose it."""
    tokens = x.flatten(0, 1)
    gates, best = m.gate(tokens).softmax(-1).max(-1)
    chosen = F.one_hot(best, len(m.experts))
    kept = (chosen * (chosen.cumsum(0) <= size)).to(x.dtype)
    mixed = torch.stack([expert(tokens) for expert in m.experts], 1)
    out = (kept.unsqueeze(2) * mixed).sum(1) * gates.unsqueeze(1)
    return m.head((tokens + out).view_as(x).mean(1))


def wrong_axis(m: Any, x: Tensor) -> Tensor:
    """Attends over the examples instead of the words."""
    return m.head(m.norm(x + m.attention(x, x, x)[0]).mean(1))


def not_sorted_back(m: Any, x: Tensor, sizes: Tensor) -> Tensor:
    order = sizes.argsort(descending=True)
    _, h = m.rnn(pack_padded_sequence(x[order], sizes[order], batch_first=True))
    return m.head(h[-1])


def across_windows(m: Any, x: Tensor) -> Tensor:
    """Shifts the folded axis, so that the last window of an example has words of the next one."""
    h = x.flatten(0, 1).roll(-1, 0).unflatten(0, (-1, 3))
    return m.head(torch.tanh(m.first(h.flatten(1))).view(len(x), 2, -1).mean(1))


def wrong_owner(m: Any, x: Tensor, mask: Tensor) -> Tensor:
    """Adds the tokens of each example to the next one."""
    h = torch.tanh(m.second(torch.relu(m.first(x[mask]))))
    rows = (mask.nonzero()[:, 0] + 1) % len(x)
    return m.head(torch.zeros(len(x), 8, dtype=h.dtype).index_add(0, rows, h))


def matched(scores: Tensor) -> Tensor:
    """Computes the losses of classifying each row as its own column."""
    return F.cross_entropy(scores, torch.arange(len(scores)), reduction="none")


def contrastive(n: int) -> Built:
    """Makes a loss with the other examples as negatives."""

    def loss(model: Any, batch: tuple[Tensor, ...]) -> Tensor:
        return matched(model(batch[0]) @ model(batch[1]).T)

    return (
        nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)),
        loss,
        (torch.randn(n, 8), torch.randn(n, 8)),
    )


def clip_contrastive(n: int) -> Built:
    model, _, batch = clip_pairs(n)

    def loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
        return matched(model(**batch).logits_per_text)

    return model, loss, batch


def balanced(n: int) -> Built:
    """Adds a loss of the whole batch that balances the experts."""
    model, _, batch = ARCHITECTURES["Mixtral, batched"].factory(n)

    def loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
        out = model(**batch, output_router_logits=True)
        ids, mask = batch["input_ids"], batch["attention_mask"]
        return token_losses(out.logits[:, :-1], ids[:, 1:], mask[:, 1:]) + out.aux_loss

    return model, loss, batch


def register_mixed() -> None:
    """Adds models and losses that must be refused."""

    def add(name: str, factory: Callable[[int], Built], **options: Any) -> None:
        MIXED[name] = Architecture(factory, expected="mixes the examples of a batch", **options)

    between: dict[str, Callable[[Tensor], Tensor]] = {
        "mean of the batch": lambda h: h - h.mean(0),
        "mean of the batch, detached": lambda h: h - h.mean(0).detach(),
        "largest of the batch, detached": lambda h: h / h.detach().abs().max(),
        "statistics of the batch": batch_normalized,
        "softmax over the batch": lambda h: h.softmax(0) * h,
        "normalised over the batch": lambda h: F.normalize(h, dim=0),
        "neighbour in the batch": lambda h: h + h.roll(1, 0),
        "reversed batch": lambda h: h + 0.5 * h.flip(0),
        "sum so far over the batch": lambda h: h.cumsum(0),
        "sorted over the batch": lambda h: h.sort(0).values,
        "rank in the batch": lambda h: h * h.detach().argsort(0).argsort(0),
        "place in the batch": lambda h: h * torch.arange(len(h)).unsqueeze(1),
        "size of the batch": lambda h: h / len(h),
        "size of the batch, from its shape": lambda h: h * h.shape[0] ** -0.5,
        "similarity within the batch": lambda h: (h @ h.T).softmax(1) @ h,
        "sign of the batch": lambda h: h if h.detach().sum() > 0 else -h,
        "mean of a batch above four": lambda h: h - h.mean(0) if len(h) > 4 else h,
        "the fifth example for all": lambda h: h + h[4:].sum(0),
        "the first example for all": lambda h: h + h[:1],
        "the first example for all, detached": lambda h: h + h.detach()[0],
        "a whole batch as one row": lambda h: h + h.reshape(1, -1).mean(),
        "a convolution over the batch": lambda h: F.avg_pool1d(h.T.unsqueeze(0), 3, 1, 1)[0].T,
        "axes taken for each other": lambda h: h + h.flatten().view(h.shape[1], -1).T.reshape(h.shape),
    }
    for name, function in between.items():
        add(name, mixing(function))
    losses: dict[str, Callable[[Tensor], Tensor]] = {
        "losses: the hard half": lambda each: each * (each >= each.detach().median()),
        "losses: over their mean": lambda each: each / each.detach().mean(),
        "losses: the mean, expanded": lambda each: each.mean().expand(len(each)),
        "losses: of all, each with a share": lambda each: each / len(each),
        "losses: the largest": lambda each: each * (each == each.max()),
    }
    for name, function in losses.items():
        add(name, losing(function))
    add("experts with a capacity", plain(partial(capacity, 3), token_mlp, sequence))
    add(
        "experts with a capacity that three examples do not fill",
        plain(partial(capacity, 8), token_mlp, sequence),
    )
    add("attention over the examples", plain(wrong_axis, attention_parts(False), sequence))
    add("packed, not sorted back", plain(not_sorted_back, recurrent(nn.GRU, 1), sequence, lengths))
    add(
        "windows across examples",
        plain(across_windows, lambda: dict(first=nn.Linear(24, 8), head=head()), sequence),
    )
    add("tokens of another example", plain(wrong_owner, two_layers, sequence, present))
    add("negatives of the batch", contrastive)
    add("CLIP, negatives of the batch", clip_contrastive)
    add("Mixtral, balanced experts", balanced)
    resnet = ARCHITECTURES["ResNet, frozen statistics"].factory
    add("ResNet, statistics of the batch", resnet, frozen=False)
