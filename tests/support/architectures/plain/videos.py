"""Classifiers of videos, whose frames are folded into the batch."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.support.architectures.plain.parts import head, plain
from tests.support.architectures.registry import register


def frames(m: Any, x: Tensor) -> Tensor:
    """Folds the frames into the batch, and averages over time."""
    h = x.flatten(0, 1)
    h = F.relu(m.norm(m.first(h)))
    h = F.relu(m.second(h)).mean((2, 3))
    return m.head(h.unflatten(0, (len(x), -1)).mean(1))


def frames_reshaped(m: Any, x: Tensor) -> Tensor:
    """Does the same with sizes that Python multiplies."""
    b, t, c, height, width = x.shape
    h = F.relu(m.norm(m.first(x.reshape(b * t, c, height, width))))
    h = F.relu(m.second(h)).mean((2, 3))
    return m.head(h.view(b, t, -1).mean(1))


def frames_time_first(m: Any, x: Tensor) -> Tensor:
    """Does the same with time as the outer part of the folded axis."""
    h = F.relu(m.norm(m.first(x.transpose(0, 1).flatten(0, 1))))
    h = F.relu(m.second(h)).mean((2, 3))
    return m.head(h.unflatten(0, (x.shape[1], len(x))).mean(0))


def video_parts() -> dict[str, Any]:
    return dict(
        first=nn.Conv2d(3, 8, 3, padding=1), norm=nn.GroupNorm(2, 8), second=nn.Conv2d(8, 8, 3), head=head()
    )


def video(n: int) -> Tensor:
    return torch.randn(n, 3, 3, 6, 6)


def register_videos() -> None:
    """Adds classifiers of videos."""
    for name, forward in [
        ("frames folded into the batch", frames),
        ("frames folded by sizes", frames_reshaped),
        ("frames folded, time first", frames_time_first),
    ]:
        register(f"video, {name}", plain(forward, video_parts, video))
