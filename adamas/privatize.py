r"""The door: the one place where private data becomes a release.

.. math::
    \tilde g = c + \frac{s}{B} \Big( \sum_i \frac{u_i}{\max(1, \|u_i\|)} + z\,\xi \Big),
    \qquad u_i = (g_i - c)/s, \quad \xi \sim N(0, I).

:math:`B` is the *expected* batch size: the realised one is private under Poisson sampling.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from adamas import _validate
from adamas._numerics.sums import accumulation_dtype
from adamas.clip import clip_weights
from adamas.distributed import Ranks, fingerprint
from adamas.engines import Engine
from adamas.geometry import Geometry, Value
from adamas.noise import Noise, add_center_
from adamas.rules.accelerated import plain_rule
from adamas.rules.base import Rule

# Examples are summed around 0, and the center is subtracted from the sum. In float32 this can add to the
# sensitivity: at most 7e-8 for each example of a batch and each scale of the center's length, measured with
# all examples at the center. The ball is made smaller by more than that.
_ROUNDING = 1e-7
_LARGEST_SLACK = 0.5

# Sums over examples use weights in float32. A smaller weight loses digits and may become too large.
_LEAST_WEIGHT = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class PrivateGradient:
    """A noisy mean gradient and its noise variance. It is public once it is recorded.

    Attributes:
        mean: The private mean gradient of each parameter.
        noise_variance: The variance of the noise in it, `(s z / B)^2`, per parameter: one number, or one
            per coordinate. With secure noise, the variance of its rounding is included.

    Example:
        >>> from adamas import PrivateGradient, rules
        >>> p = torch.nn.Parameter(torch.zeros(2))
        >>> rule = rules.SGD([p], lr=1.0)
        >>> PrivateGradient({p: torch.tensor([1.0, 2.0])}, {p: 0.01}).write_to(rule)
        >>> rule.step()
        >>> p.data
        tensor([-1., -2.])
    """

    mean: Mapping[Tensor, Tensor]
    noise_variance: Mapping[Tensor, Value]

    def __post_init__(self) -> None:
        if self.mean.keys() != self.noise_variance.keys():
            raise ValueError("Expected mean and noise_variance to have the same parameters.")
        for p, mean in self.mean.items():
            variance = self.noise_variance[p]
            if mean.shape != p.shape:
                raise ValueError(f"Expected a mean of shape {tuple(p.shape)}, got {tuple(mean.shape)}.")
            if isinstance(variance, Tensor) and variance.dim() and variance.shape != p.shape:
                raise ValueError(
                    f"Expected a noise_variance of shape {tuple(p.shape)} or a number, got "
                    f"{tuple(variance.shape)}."
                )

    def write_to(self, rule: torch.optim.Optimizer) -> None:
        """Hands the release to a rule: `p.grad` (not a copy), and the variance that its `step()` will use.

        Any other `torch.optim` optimizer only gets a copy in `p.grad`, and cannot notice a change to it. For
        what `accelerator.prepare` returned, the rule inside gets the release.
        """
        rule = plain_rule(rule)
        if isinstance(rule, Rule):
            rule.receive(self.mean, self.noise_variance)
            return
        for group in rule.param_groups:
            for p in group["params"]:
                # torch steps on any gradient that it finds, even on an old one of a frozen parameter.
                p.grad = self.mean[p].to(p.dtype, copy=True) if p in self.mean else None


def privatize(
    engines: Iterable[tuple[Engine, int]],
    geometry: Geometry,
    *,
    noise_multiplier: float,
    expected_batch_size: float,
    noise: Noise,
    charge: Callable[[Callable[[], bytes]], tuple[int, ...]],
    absolute: bool = False,
    raw: Callable[[Mapping[Tensor, Tensor]], None] | None = None,
    ranks: Ranks | None = None,
    place: str = "a release",
) -> PrivateGradient:
    """Clips, sums, charges, adds noise.

    Args:
        engines: One per micro-batch of one logical batch, none for an empty batch. Each comes with the
            number of its last examples that are padding, and do not count.
        geometry: Center and scale; its scale carries the clip norm.
        noise_multiplier: Standard deviation of the noise on the whitened sum, whose sensitivity is 1.
        expected_batch_size: The divisor. It does not depend on the batch.
        noise: The generator.
        charge: Charges the release, and returns the key of its noise. It is called once, after the last look
            at the data and before the first noise is drawn; if it raises, nothing is released. Its argument
            is a function that names what will be released (`Noise.identify`); all ranks call it or none.
        absolute: Replace each coordinate of the sum with its absolute value before adding noise. It moves
            by no more than the coordinate does, so the sensitivity is the same.
        raw: Called after `charge` with a copy of the mean without noise. `charge` must account for it as a
            release of multiplier 0. For teaching: nothing about such a step is private.
        ranks: The processes whose engines together make up the logical batch; each of them calls this.
        place: Where the run is, for the error message if a rank is elsewhere.

    Guarantee:
        The whitened sum has L2 sensitivity 1 to adding or removing one example, so this is a Gaussian
        mechanism with multiplier `noise_multiplier`; around a center, and with secure noise, the ball is
        smaller by what rounding may add. Non-finite examples add nothing, and neither do those whose weight
        over the batch size would be no normal float32 number (`clip_weights`); an empty batch gives noise
        around the center; a parameter that no example uses gets noise like the others.
    """
    _validate.noise_multiplier(noise_multiplier=noise_multiplier)
    _validate.positive(expected_batch_size=expected_batch_size)
    if noise_multiplier > 0 and any(
        s == math.inf for s in geometry.scale.values() if not isinstance(s, Tensor)
    ):
        raise ValueError(
            "Expected a geometry with a finite scale: noise cannot hide a gradient of unbounded length."
        )
    if absolute and geometry.center:
        raise ValueError("Expected absolute=False for a geometry with a center.")
    radius = 1 - _rounding_slack(geometry, expected_batch_size, exact=noise.exact)
    flats: list[tuple[Tensor, list[Tensor]]] = []
    mean: dict[Tensor, Tensor] = {}
    total_weight = 0.0
    for engine, padding in engines:
        weights = clip_weights(engine.norms(geometry)).mul_(radius)
        weights.masked_fill_(weights < expected_batch_size * _LEAST_WEIGHT, 0)  # keeps NaN
        if padding:
            weights[-padding:] = 0
        total_weight += float(weights.sum())
        later = bool(mean)
        if not later:  # not before the activations are gone
            flats, mean = _buffers(geometry)
        engine.weighted_sum(weights / expected_batch_size, mean, accumulate=later)
    if not mean:
        flats, mean = _buffers(geometry)
        for flat, _ in flats:
            flat.zero_()
    if ranks is not None:
        facts: dict[str, object] = {"parameters and geometry": _fingerprint(geometry)}
        facts |= {"noise_multiplier": noise_multiplier, "position of the noise": noise.state_dict()}
        total_weight = math.fsum(ranks.roll_call(place, facts, total_weight))
    share = total_weight / expected_batch_size
    if ranks is not None:
        ranks.sum_on_writer_(flat for flat, _ in flats)
    if absolute:
        for flat, _ in flats:
            flat.abs_()
    std = noise_multiplier / expected_batch_size

    def identify() -> bytes:
        centers = [center for p in geometry.scale if (center := geometry.center_of(p)) is not None]
        sums = [flat for flat, _ in flats]
        identity = noise.identify([std, share, *geometry.scale.values(), *centers, *sums])
        if ranks is None or not identity:
            return identity
        return ranks.from_writer(identity)  # only rank 0 holds the sum

    key = charge(identify)
    if raw is not None:
        raw({p: add_center_(g.clone(), geometry.center_of(p), share) for p, g in mean.items()})
    for number, (flat, members) in enumerate(flats):
        parts = {p: mean[p] for p in members}
        if std == 0:
            for p, part in parts.items():
                add_center_(part, geometry.center_of(p), share)
        elif ranks is None or ranks.is_writer:
            noise.release_(flat, parts, geometry, std, share, (*key, number) if number else key)
        else:
            noise.skip()
    std *= math.sqrt(noise.variance_factor)
    if ranks is not None:
        ranks.send_from_writer_(flat for flat, _ in flats)
    variance: dict[Tensor, Value] = {}
    for p, s in geometry.scale.items():
        if isinstance(s, Tensor):
            variance[p] = torch.addcmul(s.new_zeros(()), s, s, value=std * std)  # in one pass over memory
        else:
            variance[p] = (s * std) ** 2 if std > 0 else 0.0  # an infinite scale has no noise
    return PrivateGradient(mean, variance)


def _fingerprint(geometry: Geometry) -> str:
    """Computes a digest of the values of the parameters and their geometry."""
    center = geometry.center or {}
    return fingerprint(value for p, s in geometry.scale.items() for value in (p, s, center.get(p)))


def _rounding_slack(geometry: Geometry, batch_size: float, *, exact: bool) -> float:
    """Bounds what rounding in float32 sums adds to the sensitivity: around a center, or with exact noise."""
    length = math.sqrt(
        math.fsum(
            geometry.center_square(p)
            for p in geometry.center or {}
            if accumulation_dtype(p.dtype) != torch.float64
        )
    )
    if exact and any(accumulation_dtype(p.dtype) != torch.float64 for p in geometry.scale):
        length += 1  # the examples themselves, around 0
    slack = _ROUNDING * batch_size * length
    if not slack <= _LARGEST_SLACK:
        raise ValueError(
            f"Expected a geometry whose center is at most {_LARGEST_SLACK / _ROUNDING / batch_size:.3g} "
            f"scales long, got {length:.3g}: float32 sums of {batch_size:g} examples would not keep the "
            "sensitivity. Raise the rule's least scale (h1 of AdaClip and MacAdam), or train in float64."
        )
    return slack


def _buffers(geometry: Geometry) -> tuple[list[tuple[Tensor, list[Tensor]]], dict[Tensor, Tensor]]:
    """Makes one buffer per number type and device, with its parameters, and a view for each parameter."""
    groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for p in geometry.scale:
        groups.setdefault((accumulation_dtype(p.dtype), p.device), []).append(p)
    flats, views = [], {}
    for (dtype, device), members in groups.items():
        sizes = [p.numel() for p in members]
        flat = torch.empty(sum(sizes), dtype=dtype, device=device)
        flats.append((flat, members))
        start = 0
        for p, size in zip(members, sizes, strict=True):
            views[p] = flat[start : start + size].view(p.shape)
            start += size
    return flats, views
