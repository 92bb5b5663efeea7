"""Limits the examples processed at once, by the name of Opacus."""

from contextlib import AbstractContextManager
from types import TracebackType

from adamas import _validate
from adamas.integrations.opacus.loader import PrivateLoader
from adamas.integrations.opacus.optimizer import PrivateOptimizer


class BatchMemoryManager:
    """Limits the examples processed at once within a block.

    The loader of the block yields the same logical batches; each private step processes its batch in parts.
    No step is skipped, and no part can be lost: leaving the loop anywhere leaves nothing behind.

    Args:
        data_loader: The loader of `PrivacyEngine.make_private`.
        max_physical_batch_size: Maximum examples processed at once.
        optimizer: The optimizer of `PrivacyEngine.make_private`.
    """

    def __init__(
        self, *, data_loader: PrivateLoader, max_physical_batch_size: int, optimizer: PrivateOptimizer
    ) -> None:
        _validate.count(max_physical_batch_size=max_physical_batch_size)
        if not isinstance(data_loader, PrivateLoader):
            raise TypeError(
                f"Expected data_loader to be the one that make_private returned, got "
                f"{type(data_loader).__name__}."
            )
        own = data_loader.training.run.rule
        if not isinstance(optimizer, PrivateOptimizer) or optimizer.original_optimizer is not own:
            raise TypeError("Expected optimizer to be the one that make_private returned with data_loader.")
        self._data_loader, self._size = data_loader, max_physical_batch_size
        self._block: AbstractContextManager[None] | None = None

    def __enter__(self) -> PrivateLoader:
        self._block = self._data_loader.training.micro_batches(self._size)
        self._block.__enter__()
        return self._data_loader

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._block is not None
        self._block.__exit__(kind, error, traceback)
