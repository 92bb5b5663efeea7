"""Makes the rule of a private trainer from `Privacy` and the `TrainingArguments`."""

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from transformers import TrainingArguments
from transformers.utils import logging

from adamas.errors import UnsupportedError
from adamas.integrations.transformers.arguments import default_of
from adamas.integrations.transformers.privacy import Privacy, RuleFactory
from adamas.rules import RULES

_logger = logging.get_logger(__name__)


def make_rule(
    model: nn.Module, args: TrainingArguments, privacy: Privacy, decayed: Iterable[str]
) -> torch.optim.Optimizer:
    """Builds the rule over the trainable parameters of a model.

    Args:
        model: The model.
        args: Gives weight decay; and learning rate, betas and eps if they differ from their defaults.
        privacy: Gives the rule and its options.
        decayed: Names of the parameters that weight decay applies to.
    """
    factory: RuleFactory = RULES[privacy.rule] if isinstance(privacy.rule, str) else privacy.rule
    options = _options(factory, args, privacy)
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    groups: list[Any] = list(named.values())
    if options.get("weight_decay"):
        names = set(decayed)
        decay = [p for name, p in named.items() if name in names]
        plain = [p for name, p in named.items() if name not in names]
        groups = [{"params": decay}] if decay else []
        groups += [{"params": plain, "weight_decay": 0.0}] if plain else []
    rule = factory(groups, **options)
    if not isinstance(rule, torch.optim.Optimizer):
        raise TypeError(
            f"Expected Privacy(rule=...) to make a torch.optim.Optimizer, got {type(rule).__name__}."
        )
    return rule


def _options(factory: RuleFactory, args: TrainingArguments, privacy: Privacy) -> dict[str, Any]:
    """Joins the options of the rule with what the arguments say about it.

    Trainer's defaults are for training without privacy. Where an argument has its default, the rule keeps its
    own; weight decay, whose default is 0, is always the trainer's.
    """
    options, known = dict(privacy.rule_options), _parameters(factory)
    if "weight_decay" in options:
        raise ValueError(
            f"Expected rule_options without weight_decay, got {options['weight_decay']!r}: set weight_decay "
            "in the arguments of the trainer, which spares biases and norms."
        )
    given: dict[str, Any] = {"weight_decay": args.weight_decay}
    if args.learning_rate != default_of("learning_rate"):
        given["lr"] = args.learning_rate
    elif "lr" in known and "lr" not in options:
        _logger.warning(
            f"learning_rate has Trainer's default, {args.learning_rate:g}, which is for training without "
            f"privacy. The rule {_name(factory)} uses its own. Set learning_rate, or for exactly that rate "
            f"Privacy(rule_options={{'lr': {args.learning_rate:g}}})."
        )
    betas = args.adam_beta1, args.adam_beta2
    if betas != (default_of("adam_beta1"), default_of("adam_beta2")):
        given["betas"] = betas
    if args.adam_epsilon != default_of("adam_epsilon"):
        given["eps"] = args.adam_epsilon
    for name, value in given.items():
        if name in known and name in options:
            raise ValueError(
                f"Expected {name} either in rule_options or in the arguments of the trainer, got "
                f"{options[name]!r} and {value!r}."
            )
        if name in known:
            options[name] = value
        elif value:
            raise UnsupportedError(
                f"Expected {_FIELDS[name]} to keep its default: the rule {_name(factory)} has no {name}, got "
                f"{value!r}. Choose another rule, or leave it out."
            )
    return options


_FIELDS = {
    "lr": "learning_rate",
    "weight_decay": "weight_decay",
    "betas": "adam_beta1 and adam_beta2",
    "eps": "adam_epsilon",
}


def _parameters(factory: RuleFactory) -> set[str]:
    """Returns the names that a class or function takes; all names if it takes any keyword."""
    parameters = inspect.signature(factory).parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return set(_FIELDS)
    return set(parameters)


def _name(factory: RuleFactory) -> str:
    return getattr(factory, "__name__", repr(factory))
