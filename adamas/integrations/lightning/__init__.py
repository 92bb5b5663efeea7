"""Private training with Lightning: `Trainer(strategy=PrivateTraining(...))`. See docs/lightning.md."""

try:
    import lightning.pytorch  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "adamas.integrations.lightning needs Lightning. Run: pip install 'adamas[lightning]'",
        name="lightning",
    ) from error

from adamas.integrations.lightning.strategy import PrivateTraining

__all__ = ["PrivateTraining"]
