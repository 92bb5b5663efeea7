"""Suggests settings for a private run from its sizes and budget, with reasons and without the data.

`docs/learning_rates.md` has the trials behind the numbers, and compares suggestions with a search.
"""

from adamas import _validate
from adamas.suggestions import choices
from adamas.suggestions.request import Request
from adamas.suggestions.suggestion import Suggestion

__all__ = ["Suggestion", "suggest"]


def suggest(
    *,
    n: int,
    parameters: int,
    epsilon: float,
    delta: float | None = None,
    epochs: int | None = None,
    hours: float | None = None,
    examples_per_second: float | None = None,
    memory: float | None = None,
    accountant: str = "pld",
) -> Suggestion:
    """Suggests rule, learning rate, batch size, clip norm and epochs for a budget, with reasons.

    The suggestion depends on public sizes alone: no example is read, and nothing is spent.

    Args:
        n: Number of training examples.
        parameters: Number of trainable parameters.
        epsilon: The budget.
        delta: The delta of the budget; None for 1/(10 n), rounded down to two digits.
        epochs: Passes over the data; or give `hours`, or neither.
        hours: Time for the training; needs `examples_per_second`.
        examples_per_second: Speed of your private training; measure it in a short run on random data.
        memory: Bytes for the optimizer's state; None for no limit.
        accountant: "pld" or "rdp".

    Raises:
        ValueError: If the sizes, the budget or the limits allow no run. The message names values that do.

    Example:
        >>> import adamas
        >>> given = adamas.suggest(n=60_000, parameters=795_010, epsilon=3.0, epochs=5)
        >>> given.rule, given.batch_size, given.steps, given.noise_multiplier
        ('adam-bc', 4096, 75, 1.2803)
    """
    _validate.count(n=n)
    request = Request(
        n=n,
        parameters=parameters,
        epsilon=epsilon,
        delta=choices.default_delta(n) if delta is None else delta,
        epochs=epochs,
        hours=hours,
        examples_per_second=examples_per_second,
        memory=memory,
        accountant=accountant,
    )
    passes = choices.choose_epochs(request)
    batch = choices.choose_batch_size(request, passes.value)
    noise = choices.run_noise(request, batch.value, passes.value)
    rule = choices.choose_rule(request)
    rate = choices.choose_rate(rule, noise)
    clip = choices.clip_norm()
    return Suggestion(
        n=n,
        parameters=parameters,
        rule=rule.name,
        lr=rate.value,
        rule_options=dict(rule.options),
        batch_size=batch.value,
        clip_norm=clip.value,
        epochs=passes.value,
        steps=noise.steps,
        epsilon=epsilon,
        delta=request.delta,
        noise_multiplier=noise.multiplier,
        accountant=accountant,
        seconds=request.seconds(passes.value),
        reasons=(
            rule.reason,
            rate.reason,
            batch.reason,
            passes.reason,
            clip.reason,
            choices.outlook(request, noise),
            *choices.hints(request, batch.value),
        ),
    )
