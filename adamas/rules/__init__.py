"""Update rules: one file per algorithm, each a `torch.optim.Optimizer` on private gradients."""

from adamas.rules.adam import Adam
from adamas.rules.adam_bc import AdamBC
from adamas.rules.adamw import AdamW
from adamas.rules.adamw_bc import AdamWBC
from adamas.rules.base import Rule
from adamas.rules.sgd import SGD

RULES: dict[str, type[Rule]] = {
    "sgd": SGD,
    "adam": Adam,
    "adam-bc": AdamBC,
    "adamw": AdamW,
    "adamw-bc": AdamWBC,
}
"""Rules by name, for the command line and the tests."""

__all__ = ["RULES", "SGD", "Adam", "AdamBC", "AdamW", "AdamWBC", "Rule"]
