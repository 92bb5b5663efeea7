"""The losses by name, and three ways to add one."""

ATTACKS = {}


def attack(loss):
    """Adds a loss under its own name."""
    _add(loss.__name__, loss)
    return loss


def factors(**each):
    """Adds losses that multiply a sum of each example by a function of the batch."""
    for name, factor in each.items():
        _add(name, lambda model, x, y, factor=factor: model(x).sum(1) * factor(x, y))


def divisors(**each):
    """Adds losses that divide a sum of each example by a function of the batch."""
    for name, divisor in each.items():
        _add(name, lambda model, x, y, divisor=divisor: model(x).sum(1) / divisor(x, y))


def _add(name, loss):
    assert name not in ATTACKS, name
    ATTACKS[name] = loss
