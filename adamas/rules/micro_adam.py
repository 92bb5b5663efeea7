r"""DP-MicroAdam (Hudisteanu et al., 2025): Adam on the largest coordinates, in a byte per parameter.

.. math::
    a_t            &= \tilde g_t + Q^{-1}(e_{t-1})                                           \qquad (1) \\
    \mathcal I_t   &= \text{the } k \text{ coordinates with the largest } |a_t|, \quad
    \mathcal V_t    = a_t[\mathcal I_t]                                                      \qquad (2) \\
    e_t            &= Q(a_t \text{ with } a_t[\mathcal I_t] = 0)                             \qquad (3) \\
    z^{(1)}_t      &= \sum_{r} \beta_1^{(t-1-r) \bmod m}\,\mathcal V_{(r)}, \quad
    z^{(2)}_t       = \sum_{r} \beta_2^{(t-1-r) \bmod m}\,\mathcal V_{(r)}^2                 \qquad (4) \\
    \hat m_t       &= \frac{1-\beta_1}{1-\beta_1^t}\,z^{(1)}_t, \quad
    \hat v_t        = \frac{1-\beta_2}{1-\beta_2^t}\,z^{(2)}_t                               \qquad (5) \\
    \theta_t       &= (1 - \eta\lambda)\theta_{t-1} - \eta\,\hat m_t/(\sqrt{\hat v_t}+\gamma) \qquad (6)

Row r of the window, 0 to m-1, holds the last selection whose number t has (t-1) mod m = r; each of its
values counts at its own coordinate. Q is `adamas.rules._quantization`.
"""

import functools
import math
from collections.abc import Mapping
from concurrent.futures import Future, wait
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from adamas import _validate
from adamas._numerics.sums import accumulation_dtype
from adamas._streams import Seed
from adamas.geometry import Value
from adamas.rules._adam_family import check_common
from adamas.rules._quantization import Buckets
from adamas.rules.base import Options, Params, Rule, State

_BITS = (4, None)
_ROUNDINGS = ("nearest", "stochastic")
_SCOPES = ("block", "tensor", "global")

BLOCK = 1 << 15
"""Entries among which the scope "block" selects: as many as an int16 can number."""

# Blocks that are worked on together: enough to make the calls cheap, few enough to stay in the cache.
_TOGETHER = 16

# The last step's k-th magnitude times this bounds the next step's from below in nearly every block: one
# of 328 among 32768 normal values moves by 1% of itself from one draw to the next.
_MARGIN = 0.96

# A block with more candidates than this part of its entries is sorted out without them.
_MOST_CANDIDATES = 0.25


class MicroAdam(Rule):
    r"""Adam whose moments are a window of the largest coordinates, with feedback of all that was left out.

    At each step a fraction of the coordinates is selected, the rest is added to the next gradient. The
    state is 0.92 bytes per parameter with the defaults, where Adam's is 8.

    Privacy: post-processing. Needs: any engine; 4 bits per parameter for the error and 32 bits per
    selected coordinate and row of the window.

    Args:
        params: Parameters, named parameters or groups.
        lr: Learning rate, eta.
        betas: Decays of the first and second moment.
        eps: gamma, for stability.
        weight_decay: lambda, decoupled: acts on the parameters before the step.
        density: The fraction of the coordinates that a step selects, rounded up to k coordinates.
        window: m, the number of selections from which the moments are computed.
        bits: 4 keeps the error in 4-bit codes and the window in bfloat16; None keeps both in the type in
            which sums are kept.
        bucket_size: Consecutive entries that share the bounds of their codes.
        rounding: "nearest", or "stochastic" for an unbiased Q; its numbers are public and depend on the
            step and the parameter's place only.
        scope: Among which coordinates the largest are selected: each "block" of 32768 consecutive entries
            of a tensor, each "tensor", or "global" for all parameters of the rule.
        window_correction: Divides by :math:`1-\beta^{\min(t,m)}` in (5), the weight that a full window
            has, instead of :math:`1-\beta^t`.

    The sums of (4) have m terms and the division in (5) expects t: a coordinate that is selected at every
    step with one value moves by 6.5 eta, one that is selected once by 3.2 eta, with the default betas and
    window and once t is large. `window_correction` makes that 1 eta at most for the former.

    A step takes 0.8 to 1.5 times as long as one of `torch.optim.Adam` on a CPU where there is a compiled one:
    for float32 parameters with the defaults of `bits`, `rounding` and `scope`, if the bucket size divides the
    block and Numba works on the machine. Otherwise it takes 2 to 4 times as long, with the same numbers, bit
    for bit. The first step compiles it, in about five seconds and once per installation.

    Scratch memory is a few megabytes with the scope "block" and a bucket size that divides the block, and
    a few times the largest tensor otherwise.

    Differs from the paper: the exponent in (4) is 0 for the newest row, where Algorithm 2 as printed
    starts at m-1; blocks instead of one selection among all coordinates; one pair of bounds per bucket
    instead of one per vector, in float32. `bits=None, scope="tensor"` is what the published experiments
    ran, whose error was not quantized.

    Example:
        >>> import torch
        >>> from adamas import PrivateGradient, rules
        >>> p = torch.nn.Parameter(torch.zeros(4))
        >>> rule = rules.MicroAdam([p], lr=0.1, density=0.25)
        >>> for _ in range(2):
        ...     PrivateGradient({p: torch.tensor([1.0, -3.0, 2.0, 0.0])}, {p: 0.0}).write_to(rule)
        ...     rule.step()
        >>> [round(x, 4) for x in p.tolist()]
        [0.0, 0.167, -0.0744, 0.0]
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        density: float = 0.01,
        window: int = 10,
        bits: int | None = 4,
        bucket_size: int = 512,
        rounding: str = "nearest",
        scope: str = "block",
        window_correction: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "density": density,
                "window": window,
                "bits": bits,
                "bucket_size": bucket_size,
                "rounding": rounding,
                "scope": scope,
                "window_correction": window_correction,
            },
        )
        self._shares: list[Future[None]] = []  # of the step, at which other threads still are

    @staticmethod
    def _check(options: Options) -> None:
        check_common(options)
        _validate.non_negative(eps=options["eps"])
        _validate.rate(density=options["density"])
        _validate.count(window=options["window"], bucket_size=options["bucket_size"])
        _validate.one_of(_BITS, bits=options["bits"])
        _validate.one_of(_ROUNDINGS, rounding=options["rounding"])
        _validate.one_of(_SCOPES, scope=options["scope"])
        if not isinstance(options["window_correction"], bool):
            raise TypeError(
                f"Expected window_correction={options['window_correction']!r} to be True or False."
            )

    def _before_update(self) -> None:
        groups = [group for group in self.param_groups if group["scope"] == "global"]
        self._selected = self._select_among(groups) if groups else {}

    def _update_group(
        self, params: list[Tensor], noise_variance: Mapping[Tensor, Value], group: Options
    ) -> None:
        self._shares = []
        try:
            super()._update_group(params, noise_variance, group)
        finally:
            shares, self._shares = self._shares, []
            wait(shares)
        _finish(shares)

    def _update(
        self, p: Tensor, gradient: Tensor, noise_variance: Value, group: Options, state: State
    ) -> None:
        _started(state, p, group)["step"] += 1
        if not p.numel():
            return
        theta, g = p.reshape(-1), gradient.reshape(-1)
        shifts = None
        if group["rounding"] == "stochastic" and group["bits"] is not None:
            everything = [other for each in self.param_groups for other in each["params"]]
            place = next(i for i, other in enumerate(everything) if other is p)
            shifts = Seed(0).generator("rounding", state["step"], place)  # public: rounds what is private
        if group["scope"] == "global":
            _step_selected(theta, g, self._selected.pop(p), group, state, shifts)
        elif _has_kernel(p, gradient, group, state):
            self._shares += _step_kernel(theta, g, group, state)
            increment_version(p)
            if not p.is_contiguous():
                _finish(self._shares)
        else:
            _step_blocks(theta, g, group, state, shifts)
        if not p.is_contiguous():
            p.copy_(theta.view(p.shape))

    def _select_among(self, groups: list[dict[str, Any]]) -> dict[Tensor, Tensor]:
        """Equation (2) over all parameters of the groups: the selected entries of each parameter."""
        params = [(p, group) for group in groups for p in group["params"] if p.requires_grad]
        k = math.ceil(sum(group["density"] * p.numel() for p, group in params))
        magnitudes, entries = [], []
        for p, group in params:
            assert p.grad is not None
            _started(self.state[p], p, group)
            a, work, _ = _room(p, p.numel(), self.state[p])
            _accumulate(p.grad.reshape(-1), self.state[p], 0, p.numel(), a, work)
            best = a[: p.numel()].abs_().topk(min(k, p.numel()), sorted=False)
            magnitudes.append(best.values.to(params[0][0].device))
            entries.append(best.indices)
        chosen = torch.zeros(sum(map(len, magnitudes)), dtype=torch.bool, device=magnitudes[0].device)
        chosen[torch.cat(magnitudes).topk(k, sorted=False).indices] = True
        parts = torch.split(chosen, [len(part) for part in magnitudes])
        return {
            p: best[part.to(best.device)] for (p, _), best, part in zip(params, entries, parts, strict=True)
        }


def _started(state: State, p: Tensor, group: Options) -> dict[str, Any]:
    """The state of a parameter, at the first step a new one."""
    if state:
        return state
    n, window, device = p.numel(), group["window"], p.device
    dtype = accumulation_dtype(p.dtype)
    state["step"] = 0
    if group["bits"] is None:
        state["error"] = torch.zeros(n, dtype=dtype, device=device)
    else:
        state.update(Buckets.zeros(n, group["bucket_size"], device))
    number, kept = torch.int32, dtype if group["bits"] is None else torch.bfloat16
    slots = 0
    if group["scope"] == "global":
        state["counts"] = torch.zeros(window, dtype=torch.int64)
    else:
        rows = _layout(n, group)[1]
        if group["scope"] == "block":
            number = torch.int16
        k, last = _selected_counts(n, group)
        slots = window * (k * (rows - 1) + last) if n else 0
        state["threshold"] = torch.full((rows,), math.inf, device=device)
    state["indices"] = torch.zeros(slots, dtype=number, device=device)
    state["values"] = torch.zeros(slots, dtype=kept, device=device)
    return state


def _layout(n: int, group: Options) -> tuple[int, int]:
    """The length of a block and the number of blocks of a tensor; the last may be shorter."""
    length = max(min(n, BLOCK) if group["scope"] == "block" else n, 1)
    return length, -(-n // length)


def _selected_counts(n: int, group: Options) -> tuple[int, int]:
    """How many entries of a block are selected, and of the last one."""
    length, rows = _layout(n, group)
    last = n - (rows - 1) * length
    return math.ceil(group["density"] * length), math.ceil(group["density"] * last)


def _room(p: Tensor, entries: int, state: State) -> tuple[Tensor, Tensor, Tensor]:
    """Two buffers for sums and one for codes, for `entries` entries in whole buckets."""
    size = state.get("size", 1)
    entries = -(-entries // size) * size
    a, work = torch.empty(2, entries, dtype=accumulation_dtype(p.dtype), device=p.device)
    return a, work, torch.empty(entries if "size" in state else 0, dtype=torch.int16, device=p.device)


def _accumulate(g: Tensor, state: State, start: int, stop: int, out: Tensor, work: Tensor) -> None:
    """Equation (1) for some entries."""
    if "error" in state:
        torch.add(state["error"][start:stop], g[start:stop], out=out[: stop - start])
    else:
        _buckets(state).of(start, stop).add_to(g[start:stop].to(out.dtype), out, work)


def _feed_back(
    a: Tensor,
    state: State,
    start: int,
    stop: int,
    shifts: np.random.Generator | None,
    codes: Tensor,
) -> None:
    """Equation (3) for some entries; `a` is used up."""
    if "error" in state:
        state["error"][start:stop] = a[: stop - start]
        return
    shift = None
    if shifts is not None:
        shift = torch.from_numpy(shifts.random(stop - start)).to(device=a.device, dtype=a.dtype)
    _buckets(state).of(start, stop).store(a, stop - start, shift, codes)


def _buckets(state: State) -> Buckets:
    return Buckets(state["codes"], state["low"], state["high"], state["size"])


@functools.cache
def _kernel() -> ModuleType | None:
    """The module that steps faster, if Numba is there; asked for at the first step, for it takes a second."""
    from adamas.rules import _micro_adam_kernel

    return _micro_adam_kernel if _micro_adam_kernel.available() else None


def _has_kernel(p: Tensor, gradient: Tensor, group: Options, state: State) -> bool:
    """Whether there is a compiled step for this parameter and these options."""
    return (
        (group["scope"], group["bits"], group["rounding"]) == ("block", 4, "nearest")
        and type(p) in (Tensor, nn.Parameter)
        and p.device.type == "cpu"
        and p.dtype == gradient.dtype == torch.float32
        and (p.numel() <= BLOCK or BLOCK % state["size"] == 0)
        and _fits(state, p.numel(), group)
        and _kernel() is not None
    )


def _fits(state: State, n: int, group: Options) -> bool:
    """Whether a state has the sizes of one of n entries; compiled code does not look where it writes."""
    rows, buckets = _layout(n, group)[1], -(-n // state["size"])
    k, last = _selected_counts(n, group)
    slots = group["window"] * (k * (rows - 1) + last)
    return bool(
        state["codes"].shape == (buckets, (state["size"] + 1) // 2)
        and state["low"].numel() == state["high"].numel() == buckets
        and state["threshold"].numel() == rows
        and state["indices"].numel() == state["values"].numel() == slots
        and state["values"].dtype == torch.bfloat16
    )


def _finish(shares: "list[Future[None]]") -> None:
    """Waits for other threads, and raises what they raise."""
    for share in shares:
        share.result()


def _step_kernel(theta: Tensor, g: Tensor, group: Options, state: State) -> "list[Future[None]]":
    """`_step_blocks` in one compiled call, of which other threads may still do their shares."""
    kernel, n = _kernel(), theta.numel()
    assert kernel is not None
    b1, b2 = (_row_weights(b, state["step"], group["window"]) for b in group["betas"])
    eps, rate = _constants(group, state["step"], torch.float32)
    shares: list[Future[None]] = kernel.step(
        theta,
        g,
        state,
        (b1.numpy(), b2.numpy()),
        length=_layout(n, group)[0],
        selected=_selected_counts(n, group),
        margin=_MARGIN,
        decay=_decay(group),
        eps=eps,
        rate=rate,
    )
    return shares


def _step_blocks(
    theta: Tensor, g: Tensor, group: Options, state: State, shifts: np.random.Generator | None
) -> None:
    """Equations (1) to (6) for a tensor, some blocks at a time."""
    n, m = theta.numel(), group["window"]
    length, rows = _layout(n, group)
    k, last = _selected_counts(n, group)
    newest = (state["step"] - 1) % m
    together = _TOGETHER if length % state.get("size", 1) == 0 else rows
    a, work, codes = _room(theta, min(together, rows) * length, state)
    b1, b2 = (_row_weights(b, state["step"], m).to(a)[:, None] for b in group["betas"])
    for row in range(0, rows, together):
        stop_row = min(row + together, rows)
        start, stop = row * length, min(stop_row * length, n)
        blocks, entries = stop_row - row, stop - start
        # The blocks with k selected entries, and the last block of the tensor if it has fewer.
        whole = blocks - (stop_row == rows and last < k)
        slots = m * k
        middle = slots * (row + whole)
        end = middle + (blocks - whole) * m * last
        indices, values = (
            [state[name][slots * row : middle].view(whole, m, k), state[name][middle:end].view(-1, m, last)]
            for name in ("indices", "values")
        )

        _accumulate(g, state, start, stop, a, work)  # (1)
        sums, squares = (t[: blocks * length].view(blocks, length) for t in (a, work))
        last_k = last if whole < blocks else k
        chosen = _largest(sums, entries, k, last_k, state["threshold"][row:stop_row], squares)
        largest = sums.gather(1, chosen)  # (2)
        sums.scatter_(1, chosen, 0.0)
        for stored, new in ((indices, chosen), (values, largest)):
            stored[0][:, newest] = new[:whole]
            if whole < blocks:
                stored[1][:, newest] = new[whole:, :last]
        _feed_back(a, state, start, stop, shifts, codes)  # (3)

        if whole == blocks:
            places, v = indices[0].long(), values[0].to(a.dtype)
        else:  # the rows of the last block are filled up with zeros at its entry 0
            places = chosen.new_zeros(blocks, m, k)
            v = a.new_zeros(blocks, m, k)
            for filled, stored in ((places, indices), (v, values)):
                filled[:whole] = stored[0]
                filled[whole:, :, :last] = stored[1]
        first, second = v * b1, v.square().mul_(b2)
        flat = (blocks, slots)
        terms = places.view(flat), first.view(flat), second.view(flat)
        _move(theta[start:stop], *terms, sums, squares, group, state)


def _step_selected(
    theta: Tensor,
    g: Tensor,
    chosen: Tensor,
    group: Options,
    state: State,
    shifts: np.random.Generator | None,
) -> None:
    """Equations (1) to (6) for a tensor whose selected entries are known; the window's rows differ."""
    n, m = theta.numel(), group["window"]
    a, work, codes = _room(theta, n, state)
    _accumulate(g, state, 0, n, a, work)  # (1)
    counts = state["counts"].tolist()
    newest = (state["step"] - 1) % m
    for name, new in (("indices", chosen), ("values", a[chosen])):  # (2)
        stored = list(torch.split(state[name], counts))
        stored[newest] = new.to(state[name].dtype)
        state[name] = torch.cat(stored)
    a[chosen] = 0.0
    state["counts"][newest] = len(chosen)
    _feed_back(a, state, 0, n, shifts, codes)  # (3)
    v = state["values"].to(a.dtype)
    b1, b2 = (
        _row_weights(b, state["step"], m).to(a.dtype).repeat_interleave(state["counts"]).to(v.device)
        for b in group["betas"]
    )
    places, z1, z2 = state["indices"].long()[None], a[None, :n], work[None, :n]
    _move(theta, places, (v * b1)[None], (v.square() * b2)[None], z1, z2, group, state)


def _largest(sums: Tensor, entries: int, k: int, last: int, threshold: Tensor, work: Tensor) -> Tensor:
    """Where the k largest magnitudes of each row are; of the last row the `last` largest, one repeated.

    The rows hold `entries` values, so that the last one may be shorter. NaN is larger than all. On a CPU the
    first of equal ones are taken, and only the entries above a row's threshold are compared with one
    another, several times as fast as `topk` over all; where it lets too few or too many of them through, all
    are. The thresholds of the next step are written.
    """
    magnitudes = torch.abs(sums, out=work)
    magnitudes.view(-1)[entries:] = -1.0
    chosen = torch.empty(len(sums), k, dtype=torch.int64, device=sums.device)
    if sums.device.type == "cpu":
        _largest_above(magnitudes.numpy(), k, last, threshold.numpy(), chosen.numpy())
    else:
        chosen[:-1] = magnitudes[:-1].topk(k, sorted=False).indices
        chosen[-1, :last] = magnitudes[-1].topk(last, sorted=False).indices
    if last < k:
        chosen[-1, last:] = chosen[-1, 0]
    return chosen


def _largest_above(
    magnitudes: np.ndarray, k: int, last: int, threshold: np.ndarray, chosen: np.ndarray
) -> None:
    """The search of `_largest` by NumPy, whose comparisons and searches take a fifth of torch's time."""
    rows, length = magnitudes.shape
    places = (~(magnitudes < threshold[:, None])).reshape(-1).nonzero()[0]
    edges = places.searchsorted(np.arange(rows + 1) * length).tolist()
    for row, x in enumerate(magnitudes):
        number = last if row == rows - 1 else k
        if number <= edges[row + 1] - edges[row] <= _MOST_CANDIDATES * length:
            above = places[edges[row] : edges[row + 1]] - row * length
            best, least = _first_largest(x[above], number)
            chosen[row, :number] = above[best]
        else:
            chosen[row, :number], least = _first_largest(x, number)
        threshold[row] = threshold.dtype.type(_MARGIN) * least


def _first_largest(magnitudes: np.ndarray, k: int) -> tuple[np.ndarray, np.floating]:
    """Where the k largest magnitudes are, in order, and the least of them; of equal ones the first."""
    nan = np.array(np.nan, magnitudes.dtype)
    # As integers their bits are in the same order; all NaN count as one.
    integers = np.int32 if magnitudes.dtype == np.float32 else np.int64
    keys = np.minimum(magnitudes.view(integers), nan.view(integers))
    least = np.partition(keys, len(keys) - k)[len(keys) - k]
    best = (keys >= least).nonzero()[0]
    if len(best) > k:
        ties = best[keys[best] == least]
        best = np.setdiff1d(best, ties[k - len(best) :], assume_unique=True)
    return best, least.view(magnitudes.dtype)


@functools.lru_cache(maxsize=8)
def _row_weights(decay: float, step: int, window: int) -> Tensor:
    """The weights of equation (4), row by row; the tensors of a rule share them."""
    return torch.tensor([decay ** ((step - 1 - row) % window) for row in range(window)], dtype=torch.float64)


def _move(
    theta: Tensor,
    places: Tensor,
    first: Tensor,
    second: Tensor,
    z1: Tensor,
    z2: Tensor,
    group: Options,
    state: State,
) -> None:
    """Equations (4) to (6) for rows of weighted values at places in the same rows of z1 and z2."""
    eps, rate = _constants(group, state["step"], z2.dtype)
    z1.zero_().scatter_add_(1, places, first)  # (4)
    z2.zero_().scatter_add_(1, places, second)
    root = _sqrt(z2.gather(1, places))
    z1.scatter_(1, places, z1.gather(1, places).div_(root.add_(eps)).mul_(rate))  # (5)
    if group["weight_decay"]:
        theta.mul_(_decay(group))
    theta.sub_(z1.view(-1)[: theta.numel()])  # (6)


def _constants(group: Options, t: int, dtype: torch.dtype) -> tuple[float, float]:
    """What is added to the root of z2, and what z1 is multiplied by: (5) and (6), constants together."""
    terms = min(t, group["window"]) if group["window_correction"] else t
    c1, c2 = ((1 - b) / (1 - b**terms) for b in group["betas"])
    eps = max(group["eps"] / math.sqrt(c2), torch.finfo(dtype).tiny)  # 0/0 is no step
    return eps, group["lr"] * c1 / math.sqrt(c2)


def _decay(group: Options) -> float:
    """What (6) multiplies theta by."""
    lr, weight_decay = group["lr"], group["weight_decay"]
    return float(1 - lr * weight_decay)


def _sqrt(x: Tensor) -> Tensor:
    """In place; torch's takes ten times as long where there are zeros, on a CPU."""
    if x.device.type == "cpu":
        np.sqrt(x.numpy(), out=x.numpy())
        return x
    return x.sqrt_()
