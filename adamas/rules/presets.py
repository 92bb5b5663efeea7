"""Published hyperparameters by name: `preset("dp-adambc/cifar10")`. The values are in `_published`."""

from dataclasses import dataclass

from adamas import _validate
from adamas.rules._published import PUBLISHED_FORMS, TABLE
from adamas.rules.base import Options, Params, Rule
from adamas.rules.registry import RULES

PRESETS: tuple[str, ...] = tuple(TABLE)
"""Names for `preset`: paper/data, followed by the privacy level or the noise where there are several."""


@dataclass(frozen=True)
class Preset:
    """One method of one experiment of a paper.

    Attributes:
        name: Its name in `PRESETS`.
        rule: The rule's name in `adamas.rules.RULES`.
        options: Arguments of the rule's class.
        training: Arguments of `adamas.make_private`. It is all that make_private needs, unless the notes
            say what the paper leaves open.
        model: The model, in words; not all are in `adamas.models`.
        data: The data set, in words; not all are in `adamas.data`.
        source: Paper and table, or section.
        notes: Where the paper contradicts itself or its code, and what it leaves open.

    Example:
        >>> import torch
        >>> from adamas.rules.presets import preset
        >>> bc = preset("dp-adambc/cifar10")
        >>> bc.rule, bc.options["floor"], bc.training["noise_multiplier"]
        ('adam-bc', 5e-08, 2.0)
        >>> rule = bc.make_rule(torch.nn.Linear(2, 1).parameters())
        >>> type(rule).__name__, rule.param_groups[0]["lr"]
        ('AdamBC', 0.005)
    """

    name: str
    rule: str
    options: Options
    training: Options
    model: str
    data: str
    source: str
    notes: str

    def make_rule(self, params: Params) -> Rule:
        """Builds the rule over `params`."""
        return RULES[self.rule](params, **self.options)


def preset(name: str, method: str | None = None, *, corrected: bool = False) -> Preset:
    """Returns the published hyperparameters of an experiment.

    Args:
        name: A name in `PRESETS`.
        method: A rule that the paper ran in this experiment, by its name in `adamas.rules.RULES`. None takes
            the paper's own.
        corrected: Drops the options that select a published form where the library's default is a
            corrected one: the factors and noise terms of DP-MacAdam, the dense error of DP-MicroAdam and its
            selection per tensor, and eps under DP-AdamW's root. Numbers stay as published.

    Example:
        >>> preset("dp-macadam/mnist-sigma0.5").options["kappa"]
        'paper'
        >>> "kappa" in preset("dp-macadam/mnist-sigma0.5", corrected=True).options
        False
        >>> preset("dp-macadam/mnist-sigma0.5", "sgd").options
        {'lr': 0.1}
    """
    _validate.one_of(PRESETS, name=name)
    if not isinstance(corrected, bool):
        raise TypeError(f"Expected corrected={corrected!r} to be True or False.")
    published = TABLE[name]
    if method is None:
        method = published.own
    _validate.one_of(published.methods, method=method)
    form = {} if corrected else PUBLISHED_FORMS.get(method, {})
    changes = published.changes.get(method, {})
    return Preset(
        name=name,
        rule=method,
        options=published.methods[method] | form,
        training=published.training | changes.get("training", {}),
        model=changes.get("model", published.model),
        data=published.data,
        source=published.source,
        notes=" ".join(filter(None, [published.notes, published.remarks.get(method, "")])),
    )
