r"""DP-FedAvg-LS: DP-FedAvg with Laplacian smoothing, after DP-Fed-LS (Liang et al., 2020).

.. math::
    A              &= I + \sigma_{LS} L                                                   \qquad (1) \\
    \theta_i^{k+1} &= \theta_i^k - \eta(A^{-1}\tilde g_i^k + \lambda\theta_i^k)           \qquad (2)

L is the Laplacian of a ring through the coordinates of a tensor: neighbours are averaged, and so is their
noise. Smoothing acts on releases, so it costs no privacy. The server averages increments: (2) of
`adamas.federated.fedavg`.

Z. Liang, B. Wang, Q. Gu, S. Osher and Y. Yao, "Differentially Private Federated Learning with Laplacian
Smoothing", 2020, arXiv:2005.00218. The smoothing is that of S. Osher, B. Wang, P. Yin, X. Luo, F. Barekat,
M. Pham and A. Lin, "Laplacian Smoothing Gradient Descent", 2018, arXiv:1806.06317.

Differs from the paper: it smooths the noisy aggregate on the server; here each client smooths its private
gradients, tensor by tensor.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from adamas import _validate
from adamas._numerics.sums import accumulation_dtype
from adamas.federated.algorithm import Round
from adamas.federated.client import Client
from adamas.federated.fedavg import FedAvg
from adamas.geometry import Value
from adamas.rules.base import Options, Params, Rule, State


@dataclass(frozen=True, kw_only=True)
class FedAvgLS(FedAvg):
    """`FedAvg` on smoothed gradients.

    Attributes:
        smoothing: sigma_LS, the strength of the averaging over neighbours; 0 is `FedAvg`.

    Differs from public code, which makes the smoothed step and then the plain one, too.
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
        weight_decay: Decoupled weight decay.
        smoothing: sigma_LS.
    """

    def __init__(self, params: Params, *, lr: float, weight_decay: float, smoothing: float) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "smoothing": smoothing})

    def _update(
        self, p: Tensor, gradient: Tensor, noise_variance: Value, group: Options, state: State
    ) -> None:
        p.mul_(1 - group["lr"] * group["weight_decay"])
        smooth = smoothed(gradient.to(accumulation_dtype(p.dtype)), group["smoothing"])
        p.add_(smooth, alpha=-group["lr"])  # (2)


def smoothed(values: Tensor, smoothing: float) -> Tensor:
    r"""Solves :math:`(I + \sigma L) x = values`, with A of (1), on the ring of a tensor's coordinates.

    The Fourier transform diagonalises a ring's Laplacian: frequency j is divided by
    :math:`1 + 2\sigma(1 - \cos(2\pi j/n))`. The formula also holds for two coordinates, which are neighbours
    twice, and for one, which is its own neighbour.

    Example:
        >>> smoothed(torch.tensor([4.0, 0.0, 0.0, 0.0]), 1.0)
        tensor([1.8667, 0.8000, 0.5333, 0.8000])
    """
    flat = values.reshape(-1)
    n = flat.numel()
    if not n:
        return values.clone()
    frequencies = torch.arange(n // 2 + 1, dtype=torch.float64, device=flat.device) * (2 * math.pi / n)
    divisor = (1 + 2 * smoothing * (1 - torch.cos(frequencies))).to(flat.dtype)  # (1)
    result: Tensor = torch.fft.irfft(torch.fft.rfft(flat) / divisor, n=n)
    return result.view(values.shape)
