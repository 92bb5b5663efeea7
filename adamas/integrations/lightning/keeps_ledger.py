"""A strategy that saves the private run, with its ledger, next to each checkpoint."""

from pathlib import Path
from typing import Any

from lightning.pytorch.trainer.states import TrainerFn

from adamas.integrations.lightning import run_files
from adamas.integrations.lightning.one_device import OneDevice
from adamas.run import PrivateRun


class KeepsLedger(OneDevice):
    """Saves and finds the run of a checkpoint. A fit continues only a checkpoint that has one."""

    def __init__(self) -> None:
        super().__init__()
        self._run: PrivateRun | None = None
        self._resumed: Path | None = None

    @property
    def run(self) -> PrivateRun:
        """The private run, from the start of `Trainer.fit` on: its epsilon, ledger and metrics."""
        if self._run is None:
            raise RuntimeError("Expected a run: trainer.fit makes it. Call trainer.fit first.")
        return self._run

    @property
    def lightning_restore_optimizer(self) -> bool:
        """False: the state of the rule is restored with its ledger, from the run of the checkpoint."""
        return False

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """Returns nothing: the run of the checkpoint has the state and the ledger."""
        return {}

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any = None
    ) -> None:
        """Writes a checkpoint, and next to it the run with its ledger."""

        def write(content: dict[str, Any]) -> None:
            super(KeepsLedger, self).save_checkpoint(content, filepath, storage_options)

        if self._run is None:
            write(checkpoint)
        else:
            run_files.save(self._run, checkpoint, filepath, write)

    def load_checkpoint(
        self, checkpoint_path: str | Path, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Reads a checkpoint; for `Trainer.fit`, one with a ledger."""
        checkpoint = super().load_checkpoint(checkpoint_path, weights_only)
        if self._trainer.state.fn == TrainerFn.FITTING:
            self._resumed = run_files.find(checkpoint, checkpoint_path)
        return checkpoint

    def remove_checkpoint(self, filepath: str | Path) -> None:
        """Deletes a checkpoint and its run."""
        super().remove_checkpoint(filepath)
        run_files.remove(filepath)
