"""Replaces the private metrics in a trainer's logs by public ones."""

from adamas._words import rounded_up
from adamas.run import PrivateRun

PRIVATE = frozenset(
    {
        *("loss", "grad_norm", "train_loss", "num_input_tokens_seen", "train_tokens_per_second"),
        *("entropy", "mean_token_accuracy", "num_tokens", "aux_loss"),
    }
)
"""Metrics of a training step that are computed from private data without noise, of transformers and TRL."""

_SHOWN = {
    "epsilon": "privacy_epsilon",
    "delta": "privacy_delta",
    "noise_multiplier": "privacy_noise_multiplier",
    "release_norm": "privacy_release_norm",
    "noise_norm": "privacy_noise_norm",
    "signal_to_noise": "privacy_signal_to_noise",
}


def public(logs: dict[str, float]) -> dict[str, float]:
    """Returns metrics without the private ones. Those of an evaluation, which begin with eval_, stay."""
    return {name: value for name, value in logs.items() if name not in PRIVATE}


def privacy_metrics(run: PrivateRun) -> dict[str, float]:
    """Returns the run's metrics under the names that trainers use, epsilon rounded up to what they show."""
    seen = run.metrics()
    seen["epsilon"] = float(rounded_up(seen["epsilon"]))
    return {shown: seen[name] for name, shown in _SHOWN.items() if name in seen}
