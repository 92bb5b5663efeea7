"""One private step of a rule, from the batch to the weights, as several benchmarks time it."""

from torch.nn import functional as F

from adamas.engines import ENGINES
from adamas.privatize import privatize


def losses(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y, reduction="none")


def private_step(model, rule, batch, noise):
    """Computes gradients, clips them in the rule's geometry, adds noise and updates the weights."""
    release = privatize(
        [(ENGINES["bookkeeping"](model, losses, batch), 0)],
        rule.geometry().scaled(1.0),
        noise_multiplier=1.0,
        expected_batch_size=len(batch[0]),
        noise=noise,
        charge=lambda _: (),
    )
    release.write_to(rule)
    rule.step()
