"""The models and random batches.

A builder takes the batch size and the number of tokens, which only texts have, and returns `(model, inputs, targets)`.
"""

import torch
from torch import nn
from torch.nn import functional as F

CLASSES = 10
VOCABULARY = 30522


def mlp(batch, _):
    model = nn.Sequential(nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, CLASSES))
    return model, torch.randn(batch, 784), torch.randint(0, CLASSES, (batch,))


def cnn(batch, _):
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4096, 128),
        nn.ReLU(),
        nn.Linear(128, CLASSES),
    )
    return model, *images(batch)


def wide_resnet(batch, _):
    return WideResNet(nn.Conv2d), *images(batch)


def standardised_wide_resnet(batch, _):
    return WideResNet(StandardisedConv2d), *images(batch)


def transformer(batch, tokens):
    return Encoder(tokens), *texts(batch, tokens)


def frozen_transformer(batch, tokens):
    model = Encoder(tokens).requires_grad_(False)
    for part in (model.blocks[-1], model.norm, model.head):
        part.requires_grad_(True)
    return model, *texts(batch, tokens)


def images(batch):
    return torch.randn(batch, 3, 32, 32), torch.randint(0, CLASSES, (batch,))


def texts(batch, tokens):
    return torch.randint(0, VOCABULARY, (batch, tokens)), torch.randint(0, 2, (batch,))


class StandardisedConv2d(nn.Conv2d):
    """A convolution that standardises its kernel per output channel."""

    def forward(self, x):
        w = self.weight
        fan_in = w[0].numel()
        mean = w.mean(dim=(1, 2, 3), keepdim=True)
        variance = w.var(dim=(1, 2, 3), keepdim=True, unbiased=False)
        w = (w - mean) * torch.rsqrt((variance * fan_in).clamp(min=1e-4))
        return F.conv2d(x, w, self.bias, self.stride, self.padding)


class ResidualBlock(nn.Module):
    """Two convolutions, each after a normalisation, and a shortcut around them."""

    def __init__(self, conv, channels_in, channels_out, stride):
        super().__init__()
        self.n1 = nn.GroupNorm(16, channels_in)
        self.c1 = conv(channels_in, channels_out, 3, stride=stride, padding=1, bias=False)
        self.n2 = nn.GroupNorm(16, channels_out)
        self.c2 = conv(channels_out, channels_out, 3, padding=1, bias=False)
        self.cut = None
        if channels_in != channels_out or stride != 1:
            self.cut = conv(channels_in, channels_out, 1, stride=stride, bias=False)

    def forward(self, x):
        h = F.relu(self.n1(x))
        skip = x if self.cut is None else self.cut(h)
        return skip + self.c2(F.relu(self.n2(self.c1(h))))


class WideResNet(nn.Module):
    """Wide-ResNet with group normalisation."""

    def __init__(self, conv, depth=16, width=4):
        super().__init__()
        self.stem = conv(3, 16, 3, padding=1, bias=False)
        blocks, channels = [], 16
        for stage, wider in enumerate((16 * width, 32 * width, 64 * width)):
            for i in range((depth - 4) // 6):
                blocks.append(ResidualBlock(conv, channels, wider, 2 if stage and not i else 1))
                channels = wider
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.GroupNorm(16, channels)
        self.fc = nn.Linear(channels, CLASSES)

    def forward(self, x):
        h = F.relu(self.norm(self.blocks(self.stem(x))))
        return self.fc(h.mean(dim=(2, 3)))


class AttentionBlock(nn.Module):
    """Self-attention and a feed-forward layer, each after a normalisation."""

    def __init__(self, width, inner, heads):
        super().__init__()
        self.heads = heads
        self.ln1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.ln2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (
            z.view(b, t, self.heads, d // self.heads).transpose(1, 2)
            for z in self.qkv(self.ln1(x)).chunk(3, dim=-1)
        )
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = x + self.out(attended)
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class Encoder(nn.Module):
    """A transformer encoder that classifies texts by the mean of its outputs."""

    def __init__(self, tokens, layers=6, width=384, inner=1536, heads=12, classes=2):
        super().__init__()
        self.tok = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(AttentionBlock(width, inner, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)
        # Fixed sinusoids in a plain attribute: neither a parameter nor a buffer.
        position, i = torch.arange(tokens)[:, None], torch.arange(0, width, 2)[None]
        angle = position / 10000 ** (i / width)
        self.pos = torch.stack([angle.sin(), angle.cos()], -1).flatten(1)

    def forward(self, ids):
        x = self.tok(ids) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(dim=1))
