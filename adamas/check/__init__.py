"""Privacy checks of the user's own run, by replays on neighbouring data sets.

sensitivity   how far one example moves a release
noise         the variance of the noise, in every parameter
accounting    whether each release is recorded, at its price
sampling      how batches are drawn: rate, sizes, independence
batches       whether a batch holds its examples and nothing else
model         whether each example's gradient is right, and depends on no other example
nodes         how many terms a node of a graph changes, and how far they move a release
state         whether a forward or a release leaves state behind
parameters    whether only real parameters of the model train
unusable      whether there is an example with a finite gradient

draws and full_batch load the examples, measures compares, replay releases them, base is shared by all.
"""

from adamas import _validate
from adamas._progress import task_bar
from adamas.check.accounting import ranks_seeds, releases_recorded
from adamas.check.base import FAIL, NOT_APPLICABLE, PASS, Check, Replay, Row
from adamas.check.batches import collated_rows, tensors_only
from adamas.check.model import (
    autograd_gradients,
    deterministic_forward,
    dropout,
    mixed_examples,
    tied_parameters,
)
from adamas.check.nodes import planted_nodes
from adamas.check.noise import noise_variance, unused_parameters
from adamas.check.parameters import loss_parameters, real_parameters
from adamas.check.replay import MakeRun
from adamas.check.sampling import independence, rate, sizes
from adamas.check.sensitivity import empty_batch, large_example, nan_example, sensitivity
from adamas.check.state import frozen_parameters, state
from adamas.check.unusable import Unusable, count_unusable, usable_examples
from adamas.errors import UnsupportedError

_REPORT = "This is a defect of adamas or of a change to it: please report it."
_SAMPLER = "Use a sampler of adamas.sampling and run.batches(), over the whole data set and no other."

CHECKS: list[Check] = [
    Check("sensitivity in the geometry", "Clip every example by the run's own door. " + _REPORT, sensitivity),
    Check(
        "noise variance as stated",
        "Give epsilon or noise_multiplier; add the noise to the sum, before it is divided by the batch size.",
        noise_variance,
    ),
    Check(
        "every release recorded",
        "Release by run.privatize only, and record other releases by run.ledger.record.",
        releases_recorded,
    ),
    Check("sampling as stated", _SAMPLER, rate),
    Check("batch sizes as stated", _SAMPLER, sizes),
    Check("batches drawn anew", _SAMPLER, independence),
    Check(
        "batch of tensors",
        "Make batch-first tensors of all parts of a batch in collate_fn, or leave them out.",
        tensors_only,
    ),
    Check(
        "row for each example",
        "Let collate_fn stack and pad examples, and nothing else; draw random values by torch's generator.",
        collated_rows,
    ),
    Check(
        "examples mixed by a layer",
        "Make each loss a function of its own example: no statistics over the batch, no in-batch negatives.",
        mixed_examples,
    ),
    Check(
        "state between batches",
        "Write to no buffer, parameter or attribute in forward or loss; stop running statistics by .eval().",
        state,
    ),
    Check(
        "usable examples",
        "Look for NaN or infinite inputs and targets, such as an empty column; adamas.check.count_unusable "
        "counts them. Fill in missing values by a public constant.",
        usable_examples,
    ),
    Check("planted nodes", _REPORT, planted_nodes),
    Check("empty batch", _REPORT, empty_batch),
    Check("NaN example", _REPORT, nan_example),
    Check("large example", "Use engine='loop', and report the model.", large_example),
    Check(
        "deterministic forward",
        "Draw random values by torch's global generator only, and keep no state between forwards.",
        deterministic_forward,
    ),
    Check(
        "dropout per example",
        "Draw a mask for each example: the example axis first, and nothing broadcast over it.",
        dropout,
    ),
    Check(
        "parameters of the model only",
        "Make what the loss trains a part of the model, or freeze it by requires_grad_(False).",
        loss_parameters,
    ),
    Check(
        "real parameters",
        "Hold real and imaginary parts as two real parameters.",
        real_parameters,
    ),
    Check("gradients as autograd's", "Use engine='loop', and report the model.", autograd_gradients),
    Check(
        "frozen parameters",
        "Change no parameter in the forward, and give the rule the trainable ones.",
        frozen_parameters,
    ),
    Check("unused parameters", _REPORT, unused_parameters),
    Check("tied parameters", "Use engine='loop', and report the model.", tied_parameters),
    Check("ranks' seeds", "Let make_private set up the seeds of all processes.", ranks_seeds),
]
"""The rows of the table, in their order."""


def check(make_run: MakeRun, *, examples: int = 8, progress: bool | None = None) -> list[Row]:
    """Replays a run on neighbouring data sets, and tells for each part of its guarantee whether it held.

    Args:
        make_run: Returns a fresh `adamas.PrivateRun` at each call; it is called a few times. The replays
            are not private: share results only with people cleared to see the data.
        examples: How many examples of a batch are examined one by one.
        progress: Show a progress bar; None shows it on a terminal.

    Returns:
        A row for each of `CHECKS`; if the run cannot be made, one row that says why.

    Guarantee:
        A row that fails has seen a violation, except for false alarms of the statistical rows, with
        probability 1e-6 each. A row that passes has seen none on these examples, which is no proof.

    Example:
        >>> import adamas, torch
        >>> from adamas.check import check
        >>> from torch.nn import functional as F
        >>> data = torch.utils.data.TensorDataset(torch.randn(60, 2), torch.ones(60).long())
        >>> def make_run():
        ...     model = torch.nn.Linear(2, 2)
        ...     return adamas.make_private(
        ...         model, adamas.rules.Adam(model.parameters()), data,
        ...         lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], reduction="none"),
        ...         batch_size=10, steps=20, noise_multiplier=1.0, delta=1e-3, accountant="rdp")
        >>> rows = check(make_run)
        >>> rows[0].verdict, [row.name for row in rows if row.verdict == "fail"]
        ('pass', [])
    """
    _validate.count(examples=examples)
    replay = Replay(make_run, examples)
    rows = []
    with task_bar(progress, "checks", len(CHECKS)) as advance:
        try:
            assert replay.still is not None
        except UnsupportedError as error:
            return [Row("a run that can be made", FAIL, str(error), "See the message.")]
        for one in CHECKS:
            rows.append(_looked(one, replay))
            advance()
    return rows


def _looked(one: Check, replay: Replay) -> Row:
    """Runs one check; a replay that stops with an error fails."""
    try:
        verdict, seen = one.look(replay)
    except (ValueError, TypeError, RuntimeError, ArithmeticError, LookupError) as error:
        verdict, seen = FAIL, f"stopped by {type(error).__name__}: {' '.join(str(error).split())}"
    return Row(one.name, verdict, seen, one.remedy if verdict == FAIL else "")


__all__ = [
    "CHECKS",
    "FAIL",
    "NOT_APPLICABLE",
    "PASS",
    "Check",
    "Row",
    "Unusable",
    "check",
    "count_unusable",
]
