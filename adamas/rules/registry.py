"""The rules by name."""

from adamas.rules.adaclip import AdaClip
from adamas.rules.adadps import AdaDPS
from adamas.rules.adam import Adam
from adamas.rules.adam_bc import AdamBC
from adamas.rules.adamw import AdamW
from adamas.rules.adamw_bc import AdamWBC
from adamas.rules.base import Rule
from adamas.rules.dp2_rmsprop import DP2RMSProp
from adamas.rules.macadam import MacAdam
from adamas.rules.macadam_bc import MacAdamBC
from adamas.rules.micro_adam import MicroAdam
from adamas.rules.rmsprop import RMSProp
from adamas.rules.scale_then_privatize import ScaleThenPrivatize
from adamas.rules.sgd import SGD

RULES: dict[str, type[Rule]] = {
    "sgd": SGD,
    "rmsprop": RMSProp,
    "adam": Adam,
    "adam-bc": AdamBC,
    "adamw": AdamW,
    "adamw-bc": AdamWBC,
    "micro-adam": MicroAdam,
    "adaclip": AdaClip,
    "macadam": MacAdam,
    "macadam-bc": MacAdamBC,
    "scale-then-privatize": ScaleThenPrivatize,
    "adadps": AdaDPS,
    "dp2-rmsprop": DP2RMSProp,
}
"""Rules by name, for the command line and the tests."""
