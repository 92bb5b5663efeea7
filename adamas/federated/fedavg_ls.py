r"""DP-FedAvg-LS: DP-FedAvg with Laplacian smoothing (Liang et al., 2020).

.. math::
    \theta_i^{k+1} = \theta_i^k - \eta(A^{-1}\tilde g_i^k + \lambda\theta_i^k), \qquad
    A = I + \sigma_{LS} L

with L the Laplacian of a ring through the coordinates of a tensor: neighbours are averaged, and so is their
noise. Smoothing acts on what was released, so it costs no privacy.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from adamas import _validate
from adamas._numerics.sums import accumulation_dtype
from adamas.federated.algorithm import Client, Round
from adamas.federated.fedavg import FedAvg
from adamas.geometry import Value
from adamas.rules.base import Options, Params, Rule, State


@dataclass(frozen=True, kw_only=True)
class FedAvgLS(FedAvg):
    """`FedAvg` on smoothed gradients.

    Attributes:
        smoothing: sigma_LS, how much neighbours are averaged; 0 is `FedAvg`.

    Differs from public code, which takes the smoothed step and the plain one as well.
    """

    smoothing: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.non_negative(smoothing=self.smoothing)

    def rule(self, client: Client, round: Round) -> Rule:
        """See `FedAvg.rule`."""
        return SmoothedSGD(
            client.parameters.values(),
            lr=self.rate(round),
            weight_decay=self.weight_decay,
            smoothing=self.smoothing,
        )


class SmoothedSGD(Rule):
    """SGD along the smoothed gradient of each tensor.

    Args:
        params: Parameters.
        lr: Learning rate.
        weight_decay: Decoupled.
        smoothing: sigma_LS.
    """

    def __init__(self, params: Params, *, lr: float, weight_decay: float, smoothing: float) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "smoothing": smoothing})

    def _update(
        self, p: Tensor, gradient: Tensor, noise_variance: Value, group: Options, state: State
    ) -> None:
        p.mul_(1 - group["lr"] * group["weight_decay"])
        smooth = smoothed(gradient.to(accumulation_dtype(p.dtype)), group["smoothing"])
        p.add_(smooth, alpha=-group["lr"])


def smoothed(values: Tensor, smoothing: float) -> Tensor:
    r"""Solves :math:`(I + \sigma L) x = values` on the ring of a tensor's coordinates.

    A ring's Laplacian is diagonal for the Fourier transform: frequency j is divided by
    :math:`1 + 2\sigma(1 - \cos(2\pi j/n))`. A ring of two coordinates has one neighbour twice, and one alone
    has itself, so both formulas hold.

    Example:
        >>> smoothed(torch.tensor([4.0, 0.0, 0.0, 0.0]), 1.0)
        tensor([1.8667, 0.8000, 0.5333, 0.8000])
    """
    flat = values.reshape(-1)
    n = flat.numel()
    if not n:
        return values.clone()
    frequencies = torch.arange(n // 2 + 1, dtype=torch.float64, device=flat.device) * (2 * math.pi / n)
    divisor = (1 + 2 * smoothing * (1 - torch.cos(frequencies))).to(flat.dtype)
    result: Tensor = torch.fft.irfft(torch.fft.rfft(flat) / divisor, n=n)
    return result.view(values.shape)
