"""Update rules: one file per algorithm, each a `torch.optim.Optimizer` on private gradients."""

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
from adamas.rules.presets import PRESETS, Preset, preset
from adamas.rules.registry import RULES
from adamas.rules.rmsprop import RMSProp
from adamas.rules.scale_then_privatize import ScaleThenPrivatize
from adamas.rules.sgd import SGD

__all__ = [
    "PRESETS",
    "RULES",
    "SGD",
    "AdaClip",
    "AdaDPS",
    "Adam",
    "AdamBC",
    "AdamW",
    "AdamWBC",
    "DP2RMSProp",
    "MacAdam",
    "MacAdamBC",
    "MicroAdam",
    "Preset",
    "RMSProp",
    "Rule",
    "ScaleThenPrivatize",
    "preset",
]
