"""A strategy that trains on the one device that the Trainer chose."""

from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy

from adamas.errors import UnsupportedError


class OneDevice(SingleDeviceStrategy):
    """Takes the device that `Trainer(accelerator=...)` chooses; refuses several devices or machines."""

    def __init__(self) -> None:
        super().__init__()
        self._devices: list[torch.device] | None = None

    @property
    def parallel_devices(self) -> list[torch.device] | None:
        """The devices that the Trainer chose; a private training has one."""
        return self._devices

    @parallel_devices.setter
    def parallel_devices(self, devices: list[torch.device] | None) -> None:
        if devices and len(devices) > 1:
            raise UnsupportedError(
                f"Expected Trainer(devices=1), got {len(devices)}: give devices=1, or train on several with "
                "adamas.make_private(..., distributed=True) under torchrun."
            )
        self._devices = devices
        if devices:
            self._root_device = devices[0]

    @property
    def num_nodes(self) -> int:
        """The machines of the training: one."""
        return 1

    @num_nodes.setter
    def num_nodes(self, nodes: int) -> None:
        if nodes != 1:
            raise UnsupportedError(
                f"Expected Trainer(num_nodes=1), got {nodes!r}: each machine would spend the whole budget. "
                "Train on one, or on several with adamas.make_private(..., distributed=True) under torchrun."
            )

    @property
    def _module(self) -> pl.LightningModule:
        module = self.lightning_module
        assert module is not None
        return module

    @property
    def _trainer(self) -> Any:  # its connectors add the attributes
        return self._module.trainer
