"""The fast engine on whole models, against plain autograd one example at a time.

Convolutional, recurrent and attention models as people train them: with dropout, with activation
checkpointing, under autocast; Hugging Face models if `transformers` is installed, with adapters if `peft` is.
All weights are random, so nothing is downloaded.
"""

import os
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from adamas.engines import ENGINES, Bookkeeping
from adamas.models import wide_resnet
from tests.support.one_by_one import (
    Gradients,
    ball,
    close,
    geometries,
    one_by_one,
    some_weights,
    summed,
    whitened_norms,
)

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before the first import of transformers

B, T, WORDS, CLASSES = 5, 7, 100, 3
PADDING = 0
SEED = 11  # of the dropout masks

Batch = tuple[Tensor, ...]
Loss = Callable[[Any, Batch], Tensor]
Built = tuple[nn.Module, Batch, Loss]

pytestmark = [
    pytest.mark.whole_models,
    pytest.mark.filterwarnings(
        "ignore:There is a performance drop:UserWarning",
        "ignore:enable_nested_tensor is True:UserWarning",
        "ignore:None of the inputs have requires_grad:UserWarning",  # checkpoints while the loss is checked
        "ignore:TF32 acceleration on top of oneDNN:UserWarning",
    ),
]


# --- data and losses ----------------------------------------------------------------------------------


def labels() -> Tensor:
    return torch.randint(CLASSES, (B,))


def words(length: int = T) -> Tensor:
    """Draws texts of different lengths, with repeated words and padding at the end."""
    ids = torch.randint(1, WORDS, (B, length))
    ids[:, 2] = ids[:, 0]
    return torch.where(present(length), ids, PADDING)


def present(length: int = T) -> Tensor:
    """Tells which words of each text are not padding; the first text has none."""
    return torch.arange(length) < length - torch.arange(B).unsqueeze(1) % 4


def classification(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def next_words(logits: Tensor, ids: Tensor) -> Tensor:
    """Averages, over a text's words without padding, the loss of each word given those before it."""
    losses = F.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
    kept = (ids[:, 1:] != PADDING).to(losses.dtype)
    return (losses * kept).sum(1) / kept.sum(1)


def language(model: nn.Module, batch: Batch) -> Tensor:
    return next_words(model(batch[0]), batch[0])


# --- models -------------------------------------------------------------------------------------------


def run(reentrant: bool | None, part: Callable[..., Tensor], *inputs: Tensor | None) -> Tensor:
    """Runs a part of a model, without checkpointing or with either kind."""
    return part(*inputs) if reentrant is None else checkpoint(part, *inputs, use_reentrant=reentrant)


class Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(16, before), nn.GroupNorm(16, after)
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.short = nn.Conv2d(before, after, 1, stride, bias=False) if before != after else None
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(x))
        y = self.conv2(self.dropout(F.relu(self.norm2(self.conv1(h)))))
        return y + (x if self.short is None else self.short(h))


class WideResNet(nn.Module):
    """WRN-16-4 without standardised weights."""

    def __init__(self, dropout: float, reentrant: bool | None) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        blocks, channels = [], 16
        for stage in range(3):
            for i in range(2):
                before, channels = channels, 64 << stage
                blocks.append(Block(before, channels, 2 if stage and not i else 1, dropout))
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.GroupNorm(16, channels)
        self.head = nn.Linear(channels, CLASSES)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for block in self.blocks:
            h = run(self.reentrant, block, h)
        return self.head(F.relu(self.norm(h)).mean((2, 3)))


class Standardized(nn.Module):
    """The library's wide ResNet, with dropout after each block and checkpoints around both."""

    def __init__(self, depth: int, width: int, dropout: float, reentrant: bool | None) -> None:
        super().__init__()
        self.net = wide_resnet((3, 8, 8), CLASSES, depth=depth, width=width)
        self.dropout = nn.Dropout(dropout)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        h = self.net.stem(x)
        for block in self.net.blocks:
            h = run(self.reentrant, lambda h, block=block: self.dropout(block(h)), h)
        return self.net.classifier(self.net.norm(F.relu(h)).mean((2, 3)))


def images(model: nn.Module) -> Built:
    return model, (torch.randn(B, 3, 8, 8), labels()), classification


def unstandardized(dropout: float = 0.0, reentrant: bool | None = None) -> Built:
    return images(WideResNet(dropout, reentrant))


def standardized(depth: int, width: int, dropout: float = 0.0, reentrant: bool | None = None) -> Built:
    return images(Standardized(depth, width, dropout, reentrant))


class AttentionBlock(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, h: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(h)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        p = self.dropout.p if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        h = h + self.dropout(self.out(mixed.transpose(1, 2).flatten(2)))
        return h + self.dropout(self.narrow(F.gelu(self.wide(self.norm2(h)))))


class TiedTransformer(nn.Module):
    """A language model with learned positions, whose embedding is also its output head."""

    def __init__(self, width: int, dropout: float, reentrant: bool | None) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(WORDS, width), nn.Embedding(3 * T, width)
        self.blocks = nn.ModuleList(AttentionBlock(width, 2, dropout) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.reentrant = reentrant

    def forward(self, ids: Tensor) -> Tensor:
        h = self.dropout(self.embedding(ids) + self.positions(torch.arange(ids.shape[1])))
        for block in self.blocks:
            h = run(self.reentrant, block, h)
        return F.linear(self.norm(h), self.embedding.weight)


def tied_transformer(length: int = T, dropout: float = 0.0, reentrant: bool | None = None) -> Built:
    """Builds the model; for short texts the head's Gram matrices are smaller than its gradients."""
    return TiedTransformer(16, dropout, reentrant), (words(length),), language


class Encoder(nn.Module):
    """`nn.TransformerEncoder` with a causal mask and a mask of the padding."""

    def __init__(self, norm_first: bool, dropout: float, reentrant: bool | None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 16, padding_idx=PADDING)
        layer = nn.TransformerEncoderLayer(16, 2, 24, dropout, batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(16))
        self.head = nn.Linear(16, WORDS)
        self.reentrant = reentrant

    def forward(self, ids: Tensor) -> Tensor:
        later = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
        h = self.embedding(ids)
        if self.reentrant is None:
            h = self.encoder(h, mask=later, src_key_padding_mask=ids == PADDING)
        else:
            for layer in self.encoder.layers:
                h = run(self.reentrant, layer, h, later, ids == PADDING)
            h = self.encoder.norm(h)
        return self.head(h)


def encoder(norm_first: bool, dropout: float = 0.0, reentrant: bool | None = None) -> Built:
    return Encoder(norm_first, dropout, reentrant), (words(),), language


class Recurrent(nn.Module):
    """Two bidirectional recurrent layers, the mean over the words, and a classifier."""

    def __init__(self, kind: type[nn.RNNBase], dropout: float, reentrant: bool | None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 10, padding_idx=PADDING)
        self.first = kind(10, 8, batch_first=True, bidirectional=True)
        self.second = kind(16, 6, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(12, CLASSES)
        self.reentrant = reentrant

    def forward(self, ids: Tensor) -> Tensor:
        h = self.dropout(self.embedding(ids))
        # Masks are drawn in memory order; a recurrent module may have time or examples first.
        h = self.dropout(run(self.reentrant, lambda h: self.first(h)[0], h).contiguous())
        h = run(self.reentrant, lambda h: self.second(h)[0], h)
        return self.head(self.dropout(h.mean(1)))


def recurrent(kind: type[nn.RNNBase], dropout: float = 0.0, reentrant: bool | None = None) -> Built:
    return Recurrent(kind, dropout, reentrant), (words(), labels()), classification


# --- models of Hugging Face ---------------------------------------------------------------------------


def checkpointed(model: Any, reentrant: bool | None) -> Any:
    if reentrant is not None:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    return model


def visible(ids: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the mask that is added to attention scores: `(n, 1, T, T)`, which the models take as it is."""
    hidden = torch.zeros(ids.shape, dtype=dtype).masked_fill(ids == PADDING, torch.finfo(dtype).min)
    return hidden[:, None, None, :].expand(-1, -1, ids.shape[1], -1)


def bert_classification(model: Any, batch: Batch) -> Tensor:
    ids, types, targets = batch
    out = model(input_ids=ids, token_type_ids=types, attention_mask=visible(ids, model.dtype))
    return F.cross_entropy(out.logits, targets, reduction="none")


def bert_sentence(model: Any, batch: Batch) -> Tensor:
    """Averages over the words to get a sentence's vector, as with MiniLM."""
    ids, types, targets = batch
    out = model(input_ids=ids, token_type_ids=types, attention_mask=visible(ids, model.dtype))
    kept = (ids != PADDING).to(model.dtype).unsqueeze(2)
    vectors = (out.last_hidden_state * kept).sum(1) / kept.sum(1)
    return 1 - F.cosine_similarity(vectors, targets.to(vectors.dtype))


def bert_config(attention: str, dropout: float) -> Any:
    """MiniLM's architecture, shrunk."""
    transformers = pytest.importorskip("transformers")
    return transformers.BertConfig(
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=2 * T,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        num_labels=CLASSES,
        attn_implementation=attention,
    )


def types() -> Tensor:
    """The second part of each text is of the second type."""
    return (torch.arange(T) > 3).long().repeat(B, 1)


def bert(attention: str = "eager", dropout: float = 0.0, reentrant: bool | None = None) -> Built:
    config = bert_config(attention, dropout)
    model = pytest.importorskip("transformers").BertForSequenceClassification(config)
    return checkpointed(model, reentrant), (words(), types(), labels()), bert_classification


def minilm(dropout: float = 0.0, reentrant: bool | None = None) -> Built:
    config = bert_config("sdpa", dropout)
    model = pytest.importorskip("transformers").BertModel(config, add_pooling_layer=False)
    return checkpointed(model, reentrant), (words(), types(), torch.randn(B, 32)), bert_sentence


def gpt2_language(model: Any, batch: Batch) -> Tensor:
    """Makes a language model without a mask: no word sees the padding after it."""
    return next_words(model(input_ids=batch[0]).logits, batch[0])


def gpt2_masked(model: Any, batch: Batch) -> Tensor:
    out = model(input_ids=batch[0], attention_mask=(batch[0] != PADDING).long())
    return next_words(out.logits, batch[0])


def gpt2(
    attention: str = "eager",
    loss: Loss = gpt2_language,
    dropout: float = 0.0,
    reentrant: bool | None = None,
) -> Built:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=WORDS,
        n_positions=2 * T,
        n_embd=32,
        n_layer=2,
        n_head=4,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=PADDING,
        eos_token_id=PADDING,
        use_cache=False,
        attn_implementation=attention,
    )
    return checkpointed(transformers.GPT2LMHeadModel(config), reentrant), (words(),), loss


def adapted(base: Callable[..., Built], **options: Any) -> Callable[..., Built]:
    """Low-rank adapters on a model of which everything else is frozen."""

    def build(dropout: float = 0.0, reentrant: bool | None = None) -> Built:
        peft = pytest.importorskip("peft")
        model, batch, loss = base(dropout=dropout, reentrant=reentrant)
        config = peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=dropout, **options)
        return peft.get_peft_model(model, config), batch, loss

    return build


# --- the table ----------------------------------------------------------------------------------------

OWN: dict[str, Callable[..., Built]] = {
    "WRN-16-4": unstandardized,
    "WRN-16-4, standardised": partial(standardized, 16, 4),
    "WRN-10-2, standardised": partial(standardized, 10, 2),
    "tied transformer": tied_transformer,
    "tied transformer, long": partial(tied_transformer, 2 * T + 2),
    "encoder, norm last": partial(encoder, False),
    "encoder, norm first": partial(encoder, True),
    "LSTM": partial(recurrent, nn.LSTM),
    "GRU": partial(recurrent, nn.GRU),
}
HUGGING_FACE: dict[str, Callable[..., Built]] = {
    "BERT, eager": bert,
    "BERT, sdpa": partial(bert, "sdpa"),
    "MiniLM": minilm,
    "GPT-2, eager": gpt2,
    "GPT-2, eager, masked": partial(gpt2, loss=gpt2_masked),
    "GPT-2, sdpa": partial(gpt2, "sdpa"),
    "BERT, LoRA": adapted(bert, target_modules=["query", "value"]),
    "BERT, DoRA": adapted(bert, target_modules=["query", "value"], use_dora=True),
    "GPT-2, LoRA": adapted(gpt2, target_modules=["c_attn"], fan_in_fan_out=True),
}
MODELS = OWN | HUGGING_FACE

# Models that are left out are large, or differ from another one only in a part that one test covers.
ONCE = {"WRN-16-4", "WRN-16-4, standardised", "tied transformer, long", "GPT-2, eager, masked"}
MOST = [name for name in MODELS if name not in ONCE]

every_model = pytest.mark.parametrize("name", MODELS)
most_models = pytest.mark.parametrize("name", MOST)
both_kinds = pytest.mark.parametrize("reentrant", [False, True], ids=["not reentrant", "reentrant"])


def made(name: str, dtype: torch.dtype = torch.float64, **options: Any) -> Built:
    """Makes model in training mode, batch and loss, with parameters other than ones and zeros."""
    torch.manual_seed(0)
    model, batch, loss = MODELS[name](**options)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * torch.randn_like(p)
    return model.to(dtype).train(), tuple(x.to(dtype) if x.is_floating_point() else x for x in batch), loss


# --- the oracle ---------------------------------------------------------------------------------------


def together(model: nn.Module, batch: Batch, loss: Loss) -> Gradients:
    """Computes the gradient of each example's loss in a forward of the whole batch, with its masks."""
    params = [p for p in model.parameters() if p.requires_grad]
    torch.manual_seed(SEED)
    losses = loss(model, batch)
    gradients = [
        torch.autograd.grad(value, params, retain_graph=True, materialize_grads=True) for value in losses
    ]
    return [dict(zip(params, each, strict=True)) for each in gradients]


def of_other(gradients: Gradients, model: nn.Module, other: nn.Module) -> Gradients:
    """Maps gradients of a model to another one with the same parameters in the same order."""
    renamed = dict(zip(model.parameters(), other.parameters(), strict=True))
    return [{renamed[p]: g for p, g in each.items()} for each in gradients]


def assert_answers(built: Built, expected: Gradients, which: slice = slice(None)) -> None:
    """Compares norms in some geometries, each from a new engine, and the weighted sum from each."""
    model, batch, loss = built
    weights = some_weights(B)
    total = summed(expected, weights)
    for geometry in geometries(model)[which]:
        torch.manual_seed(SEED)
        engine = Bookkeeping(model, loss, batch)
        close(engine.norms(geometry), whitened_norms(expected, geometry))
        sums = engine.weighted_sum(weights)
        assert set(sums) == set(total)
        for p, value in total.items():
            close(sums[p], value)


# --- exactness ----------------------------------------------------------------------------------------


@every_model
def test_exact(name):
    model, batch, loss = made(name)
    expected = one_by_one(model, batch, loss)
    for parameter, p in model.named_parameters():
        if p.requires_grad and not parameter.endswith("key.bias"):  # which softmax does not see
            assert any(each[p].abs().max() > 1e-4 for each in expected), f"{parameter} proves nothing"
    assert_answers((model, batch, loss), expected)


@most_models
def test_loop_and_bookkeeping_agree_in_evaluation_mode(name):
    model, batch, loss = made(name, dropout=0.5)
    model.eval()
    geometry, weights = geometries(model)[1], some_weights(B)
    slow, fast = (ENGINES[engine](model, loss, batch) for engine in ("loop", "bookkeeping"))
    close(fast.norms(geometry), slow.norms(geometry))
    sums = slow.weighted_sum(weights)
    for p, value in fast.weighted_sum(weights).items():
        close(value, sums[p])


@most_models
def test_exact_with_the_dropout_masks_that_the_model_draws(name):
    model, batch, loss = made(name, dropout=0.3)
    expected = together(model, batch, loss)
    norms = whitened_norms(expected, ball(model))
    without = whitened_norms(together(model.eval(), batch, loss), ball(model))
    assert (norms / without - 1).abs().min() > 1e-4  # the masks matter for every example
    assert_answers((model.train(), batch, loss), expected, slice(1, 2))


@both_kinds
@most_models
def test_exact_with_checkpointing(name, reentrant):
    plain, batch, loss = made(name)
    model, _, _ = made(name, reentrant=reentrant)
    expected = of_other(one_by_one(plain, batch, loss), plain, model)
    assert_answers((model, batch, loss), expected, slice(1, 2))
    assert_ordinary(model, made(name, reentrant=reentrant)[0], batch, loss)


@both_kinds
@most_models
def test_exact_with_dropout_in_a_checkpoint(name, reentrant):
    plain, batch, loss = made(name, dropout=0.3)
    model, _, _ = made(name, dropout=0.3, reentrant=reentrant)
    expected = of_other(together(plain, batch, loss), plain, model)
    assert_answers((model, batch, loss), expected, slice(1, 2))


@pytest.mark.parametrize("name", [*MOST, "WRN-16-4"])
def test_autocast_is_the_loop_of_autocast_within_bfloat16(name):
    model, batch, loss = made(name, torch.float32)

    def narrow(model: nn.Module, batch: Batch) -> Tensor:
        # The LSTM of oneDNN has bfloat16 on some processors only; torch's own has it on all.
        own = torch.backends.mkldnn.flags(enabled=False) if name == "LSTM" else nullcontext()
        with own, torch.autocast("cpu", torch.bfloat16):
            return loss(model, batch).float()

    gradients = one_by_one(model, batch, narrow)
    engine = Bookkeeping(model, narrow, batch)
    expected = whitened_norms(gradients, ball(model))
    assert float((engine.norms(ball(model)) / expected - 1).abs().max()) < 0.03
    weights = some_weights(B)
    sums, total = engine.weighted_sum(weights), summed(gradients, weights)
    size = torch.stack([value.norm() for value in total.values()]).norm()
    error = torch.stack([(sums[p] - value).norm() for p, value in total.items()]).norm()
    assert float(error / size) < 0.05


@every_model
def test_the_norms_of_float32_are_those_of_what_is_summed(name):
    """The clipped sum has sensitivity 1 to within 1e-6, also in float32."""
    model, batch, loss = made(name, torch.float32)
    for geometry in geometries(model)[:2]:
        torch.manual_seed(SEED)
        engine = Bookkeeping(model, loss, batch)
        norms = engine.norms(geometry)
        for i in range(B):
            one = torch.zeros(B, dtype=torch.float64)
            one[i] = 1
            gradient = {p: g.double() for p, g in engine.weighted_sum(one).items()}
            expected = whitened_norms([gradient], geometry)
            assert float((norms[i] / expected - 1).abs()) < 1e-6


# --- the model afterwards -----------------------------------------------------------------------------


def hooks(model: nn.Module) -> dict[str, int]:
    found = {
        f"{name}.{kind}": len(value)
        for name, module in model.named_modules()
        for kind, value in vars(module).items()
        if "hooks" in kind and isinstance(value, dict)
    }
    for name, p in model.named_parameters():
        found[name] = len(p._backward_hooks or ()) + len(p._post_accumulate_grad_hooks or ())
    return found


def assert_ordinary(model: nn.Module, other: nn.Module, batch: Batch, loss: Loss) -> None:
    """Asserts that a model equals, bit for bit, one that no engine has seen, and trains as it does."""
    assert hooks(model) == hooks(other)
    for a, b in zip(model.modules(), other.modules(), strict=True):
        assert type(a) is type(b)
        assert a.training == b.training
        assert vars(a).keys() == vars(b).keys()
    state, expected = model.state_dict(), other.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(value, expected[key]) for key, value in state.items())
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), other.buffers(), strict=True))
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert p.grad is None
        assert type(p) is type(q)
        assert p.requires_grad == q.requires_grad
        assert vars(p).keys() == vars(q).keys()
    for each in (model, other):
        torch.manual_seed(SEED)
        loss(each, batch).sum().backward()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None)
        assert p.grad is None or torch.equal(p.grad, q.grad)


@most_models
def test_the_model_stays_an_ordinary_module(name):
    model, batch, loss = made(name)
    engine = Bookkeeping(model, loss, batch)
    engine.norms(ball(model))
    engine.weighted_sum(some_weights(B))
    assert_ordinary(model, made(name)[0], batch, loss)


# --- calls that are refused ---------------------------------------------------------------------------


def bert_masked(model: Any, batch: Batch) -> Tensor:
    ids, types, targets = batch
    out = model(input_ids=ids, token_type_ids=types, attention_mask=(ids != PADDING).long())
    return F.cross_entropy(out.logits, targets, reduction="none")


def bert_without_types(model: Any, batch: Batch) -> Tensor:
    out = model(input_ids=batch[0], attention_mask=visible(batch[0], model.dtype))
    return F.cross_entropy(out.logits, batch[2], reduction="none")


@pytest.mark.parametrize(
    ("name", "loss"),
    [
        # transformers makes no mask `if padding_mask.all()`, a shortcut
        ("BERT, eager", bert_masked),
        ("BERT, sdpa", bert_masked),
        ("BERT, LoRA", bert_masked),
        ("GPT-2, sdpa", gpt2_masked),
        # without token types BERT looks up zeros of its own, (n, T), which are not of the batch
        ("BERT, eager", bert_without_types),
        ("BERT, sdpa", bert_without_types),
    ],
)
def test_exact_as_the_model_is_usually_called(name, loss):
    model, batch, _ = made(name)
    assert_answers((model, batch, loss), one_by_one(model, batch, loss))
