r"""SPARTA (Makni et al., 2025): sparse fine-tuning of rows that private gradients select.

.. math::
    A &= \sum_t \tfrac1B \Big( \big| \textstyle\sum_i \mathrm{clip}(g_{t,i}) \big| + z\,\xi_t \Big) & (1) \\
    a_r &= \max\big(0, \textstyle\sum_c A_{rc}\big) & (2) \\
    M &= \text{the rows with the largest } a_r & (3) \\
    W &= W_{old} + M \odot W_{new} & (4)

The first phase trains the always trainable part (head, biases, norms). The second updates nothing and scores
the rows of the other weights, (1) and (2). The third trains the always trainable part and the kept rows, (3)
and (4), with a new rule.

Privacy: the absolute value does not increase distances, so a release of (1) has the sensitivity of an
ordinary one, and each step of any phase is the same event. All phases belong to one run: its budget covers
them, and its ledger records them.

References:
    Mehdi Makni, Kayhan Behdin, Gabriel Afriat, Zheng Xu, Sergei Vassilvitskii, Natalia Ponomareva, Hussein
    Hazimeh, Rahul Mazumder. "SPARTA: An Optimization Framework for Differentially Private Sparse
    Fine-Tuning." KDD 2025. arXiv:2503.12822.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice

import torch
from torch import Tensor, nn

from adamas import _validate
from adamas.finetune.rows import as_rows, keep_rows, row_weights
from adamas.finetune.selections import Patterns, matching
from adamas.rules import SGD
from adamas.run.loop import PrivateRun, Step


def sparta(
    run: PrivateRun,
    make_rule: Callable[[nn.Module], torch.optim.Optimizer],
    *,
    head_steps: int,
    mask_steps: int,
    share: float = 0.2,
    within: str = "weight",
    weights: Patterns | None = None,
) -> Iterator[Step]:
    """Trains a run in SPARTA's three phases; iterate over the result as over the run.

    Choose the always trainable part before you make the run, for instance with `bitfit(model, norms=True)`.
    Afterwards, `merge_rows(model)` folds the kept rows in.

    Args:
        run: A run without steps yet, with a budget for all three phases.
        make_rule: Called as `make_rule(model)` for the rule of the third phase.
        head_steps: Steps of the first phase; in the paper, 10 of 50 epochs.
        mask_steps: Steps of the second phase, run without yielding; in the paper, 1 epoch.
        share: Share of the rows to keep.
        within: Rank rows within each "weight", as the authors do, or within the whole "model".
        weights: Shell patterns of the weights whose rows may train; None takes `row_weights(model)`.

    Returns:
        The steps of the first and the third phase.

    Example:
        >>> import adamas, torch
        >>> from adamas import finetune, rules
        >>> from torch.nn import functional as F
        >>> _ = torch.manual_seed(0)
        >>> x = torch.randn(400, 6)
        >>> data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
        >>> model = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.ReLU(), torch.nn.Linear(10, 2))
        >>> def loss(model, batch):
        ...     return F.cross_entropy(model(batch[0]), batch[1], reduction="none")
        >>> def rule(model):
        ...     return rules.SGD(model.parameters(), lr=1.0, momentum=0.9)
        >>> _ = finetune.bitfit(model)
        >>> run = adamas.make_private(model, rule(model), data, loss, batch_size=40, steps=30,
        ...                           noise_multiplier=1.0, delta=1e-4, seed=0)
        >>> for step in finetune.sparta(run, rule, head_steps=10, mask_steps=5):
        ...     pass
        >>> finetune.merge_rows(model)
        >>> run.steps_done, round(run.epsilon(), 2)
        (30, 3.4)
    """
    _validate.count(head_steps=head_steps, mask_steps=mask_steps)
    _validate.rate(share=share)
    _validate.one_of(["weight", "model"], within=within)
    if run.steps_done:
        raise ValueError(f"Expected a run that has not begun, got one with {run.steps_done} steps done.")
    if head_steps + mask_steps >= run.steps:
        raise ValueError(
            f"Expected head_steps={head_steps} and mask_steps={mask_steps} to leave some of the run's "
            f"{run.steps} steps for the kept rows."
        )
    if run.scheduler is not None or run.ema_model is not None:
        raise ValueError(
            "Expected a run without scheduler= and ema=, which belong to one rule and one set of parameters. "
            "Step them yourself in the loop."
        )
    names = _weight_names(run.model, weights)
    return _phases(run, make_rule, names, head_steps, mask_steps, share, within)


def row_scores(
    run: PrivateRun, weights: Patterns | None = None, *, steps: int | None = None
) -> dict[str, Tensor]:
    """Scores the rows of weights by their private gradients, (1) and (2), and updates nothing.

    During the scoring the weights are trainable, in addition to the parameters that already are. Examples are
    clipped over all of them to the run's clip norm, whatever the geometry of the rule.

    Args:
        run: The run whose steps are spent.
        weights: Shell patterns of the weights; None takes `row_weights(model)`.
        steps: Number of steps to spend; None takes all that are left.

    Returns:
        A score for each row of each weight, by the weight's name.

    Guarantee:
        Every batch is one release that the run records; the scores are computed from releases alone.
    """
    names = _weight_names(run.model, weights)
    if steps is None:
        steps = len(run)
    _validate.count(steps=steps)
    if steps > len(run):
        raise ValueError(f"Expected steps={steps} <= {len(run)}, the steps that the run has left.")
    layers = {name: run.model.get_submodule(name.rpartition(".")[0]) for name in names}
    params = {name: run.model.get_parameter(name) for name in names}
    frozen = [p for p in params.values() if not p.requires_grad]
    scores = {name: _zero_scores(layers[name], p) for name, p in params.items()}
    rule = run.rule
    try:
        for p in frozen:
            p.requires_grad_(True)
        run.rule = SGD(run.model.parameters(), lr=0.0)  # for its geometry: it never steps
        for batch in islice(run.batches(), steps):
            release = run.privatize(batch, absolute=True)  # (1)
            for name, p in params.items():
                rows = as_rows(layers[name], release.mean[p])
                scores[name] += rows.flatten(1).sum(1, dtype=torch.float64)  # (2), one step's part
    finally:
        for p in frozen:
            p.requires_grad_(False)
        run.rule = rule
    return {name: score.clamp(min=0.0) for name, score in scores.items()}  # (2)


def top_rows(
    scores: Mapping[str, Tensor], share: float = 0.2, *, within: str = "weight"
) -> dict[str, Tensor]:
    """Returns the rows with the largest scores, (3), in the form that `keep_rows` takes.

    Args:
        scores: A score for each row of each weight.
        share: Share of the rows to keep, rounded to whole rows, at least one.
        within: Rank rows within each "weight", or within the whole "model". A row's score is a sum over its
            columns, so "model" prefers weights with many columns.

    Example:
        >>> import torch
        >>> from adamas import finetune
        >>> scores = {"a": torch.tensor([1.0, 5.0, 0.0, 2.0]), "b": torch.tensor([9.0, 8.0])}
        >>> finetune.top_rows(scores, 0.5)
        {'a': tensor([1, 3]), 'b': tensor([0])}
        >>> finetune.top_rows(scores, 0.5, within="model")
        {'a': tensor([1]), 'b': tensor([0, 1])}
    """
    _validate.rate(share=share)
    _validate.one_of(["weight", "model"], within=within)
    if not scores:
        raise ValueError("Expected scores of at least one weight, got none.")
    if within == "weight":
        return {name: _best(score, share) for name, score in scores.items()}
    best = _best(torch.cat([score.cpu() for score in scores.values()]), share)
    result: dict[str, Tensor] = {}
    start = 0
    for name, score in scores.items():
        stop = start + len(score)
        result[name] = best[(best >= start) & (best < stop)] - start
        start = stop
    return result


def _phases(
    run: PrivateRun,
    make_rule: Callable[[nn.Module], torch.optim.Optimizer],
    names: list[str],
    head_steps: int,
    mask_steps: int,
    share: float,
    within: str,
) -> Iterator[Step]:
    yield from islice(run, head_steps)
    scores = row_scores(run, names, steps=mask_steps)
    keep_rows(run.model, top_rows(scores, share, within=within))
    run.rule = make_rule(run.model)
    yield from run


def _weight_names(model: nn.Module, weights: Patterns | None) -> list[str]:
    possible = row_weights(model, head=()) if weights is not None else row_weights(model)
    if weights is None:
        if not possible:
            raise ValueError(
                f"Expected {type(model).__name__} to have a linear layer or a convolution besides its head."
            )
        return possible
    chosen = list(matching(model, weights).values())
    for name in chosen:
        if name not in possible:
            raise ValueError(
                f"Expected weights of linear layers or convolutions that are tied to no other, got {name!r}."
            )
    return chosen


def _zero_scores(layer: nn.Module, p: Tensor) -> Tensor:
    return torch.zeros(as_rows(layer, p).shape[0], dtype=torch.float64, device=p.device)


def _best(scores: Tensor, share: float) -> Tensor:
    """Returns the places of the largest values in ascending order; ties go to the first."""
    count = max(1, round(share * len(scores)))
    order = torch.sort(scores, descending=True, stable=True).indices
    return order[:count].sort().values
