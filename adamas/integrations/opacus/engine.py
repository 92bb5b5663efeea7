"""`PrivacyEngine`: private training with the names of Opacus 1.6."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

import adamas
from adamas import _validate
from adamas.errors import UnsupportedError
from adamas.integrations.opacus.accountant import ACCOUNTANTS, Accountant
from adamas.integrations.opacus.arguments import GHOST, check_options
from adamas.integrations.opacus.loop import Loop
from adamas.integrations.opacus.making import Terms, make_training
from adamas.run.loop import PrivateRun
from adamas.run.preconditions import check_modules, check_whole

_CROSS_ENTROPY = nn.CrossEntropyLoss()


class PrivacyEngine:
    """Makes a training loop private, with the arguments and results of Opacus' `PrivacyEngine`.

    The loop computes on deferred values: the data loader yields no data, and the module, functions of torch
    and losses record what to compute. `loss.backward()` draws the batch, releases its private gradient and
    charges it; `optimizer.step()` uses it. So nothing in the loop can see a private value or train on one.
    `docs/from_opacus.md` lists the differences from Opacus.

    Args:
        accountant: "prv", Opacus' name for numerical composition, which `adamas` does by "pld"; or "rdp".
        secure_mode: Noise that withstands floating-point attacks, `noise="secure"` of `adamas.make_private`.
        seed: A number makes the run reproducible. Anyone who knows it can remove the noise.

    Attributes:
        accountant: Reads the run's ledger.
        secure_mode: As given.
        seed: As given.

    Example:
        >>> import torch
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> from adamas.integrations.opacus import PrivacyEngine
        >>> x = torch.randn(500, 2, generator=torch.Generator().manual_seed(0))
        >>> loader = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=50, shuffle=True)
        >>> model = torch.nn.Linear(2, 2)
        >>> criterion = torch.nn.CrossEntropyLoss()
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        >>> privacy_engine = PrivacyEngine(accountant="rdp")
        >>> model, optimizer, loader = privacy_engine.make_private(
        ...     module=model, optimizer=optimizer, data_loader=loader,
        ...     noise_multiplier=1.0, max_grad_norm=1.0)
        >>> for epoch in range(4):
        ...     for features, labels in loader:
        ...         optimizer.zero_grad()
        ...         loss = criterion(model(features), labels)
        ...         loss.backward()
        ...         optimizer.step()
        >>> round(privacy_engine.get_epsilon(delta=1e-4), 2)
        4.54
    """

    def __init__(
        self, *, accountant: str = "prv", secure_mode: bool = False, seed: int | None = None
    ) -> None:
        if accountant == "gdp":
            raise UnsupportedError(
                "accountant='gdp' is not supported: the central limit theorem gives an approximation, which "
                "can be below the true epsilon. Use 'prv' or 'rdp'."
            )
        _validate.one_of(ACCOUNTANTS, accountant=accountant)
        if not isinstance(secure_mode, bool):
            raise TypeError(f"Expected secure_mode={secure_mode!r} to be True or False.")
        self.accountant = Accountant(accountant)
        self.secure_mode, self.seed = secure_mode, seed
        self._loop: Loop | None = None

    @property
    def run(self) -> PrivateRun:
        """The run behind the loop, for `run.diagnostics()`, `run.privacy_statement()` and `adamas.check`."""
        return self._made_loop().training.run

    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        criterion: Any = _CROSS_ENTROPY,
        data_loader: DataLoader[Any],
        noise_multiplier: float,
        max_grad_norm: float,
        batch_first: bool = True,
        loss_reduction: str = "mean",
        poisson_sampling: bool = True,
        clipping: str = "flat",
        noise_generator: None = None,
        grad_sample_mode: str = "hooks",
        wrap_model: bool = True,
        rand_on_empty: bool = False,
    ) -> Any:
        """Makes module, optimizer and data loader private, for as many epochs as the loop takes.

        Args:
            module: Any module. Call the returned one in the loop.
            optimizer: A rule of `adamas.rules`, or any `torch.optim` optimizer, over the module's parameters.
            criterion: The loss of `grad_sample_mode="ghost"`; cross entropy by default.
            data_loader: A data loader over a map-style data set. An example joins each batch with
                probability batch_size/N, and an epoch has `len(data_loader)` batches.
            noise_multiplier: Standard deviation of the noise relative to the sensitivity.
            max_grad_norm: Radius to which an example's gradient is clipped.
            batch_first: True.
            loss_reduction: "mean" or "sum", as the loss has it.
            poisson_sampling: False for shuffled batches of a fixed size, which are accounted as such: an
                epoch costs as much as one release on all data.
            clipping: "flat".
            noise_generator: None.
            grad_sample_mode: "hooks", "functorch" or "ew", which compute the same; "ghost" also returns the
                criterion.
            wrap_model: True.
            rand_on_empty: False.

        Returns:
            (module, optimizer, data_loader), or (module, optimizer, criterion, data_loader) for
            `grad_sample_mode="ghost"`.

        Raises:
            UnsupportedError: If an argument has no exact counterpart, before anything is changed.
        """
        check_options(
            batch_first=batch_first,
            loss_reduction=loss_reduction,
            poisson_sampling=poisson_sampling,
            clipping=clipping,
            noise_generator=noise_generator,
            grad_sample_mode=grad_sample_mode,
            wrap_model=wrap_model,
            rand_on_empty=rand_on_empty,
            max_grad_norm=max_grad_norm,
        )
        _validate.noise_multiplier(noise_multiplier=noise_multiplier)
        return self._made(
            module,
            optimizer,
            criterion,
            data_loader,
            grad_sample_mode,
            Terms(
                loss_reduction=loss_reduction,
                criterion=criterion if grad_sample_mode == GHOST else None,
                poisson_sampling=poisson_sampling,
                clip_norm=max_grad_norm,
                noise_multiplier=noise_multiplier,
            ),
        )

    def make_private_with_epsilon(
        self,
        *,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        criterion: Any = _CROSS_ENTROPY,
        data_loader: DataLoader[Any],
        target_epsilon: float,
        target_delta: float,
        epochs: int,
        max_grad_norm: float,
        batch_first: bool = True,
        loss_reduction: str = "mean",
        poisson_sampling: bool = True,
        clipping: str = "flat",
        noise_generator: None = None,
        grad_sample_mode: str = "hooks",
        wrap_model: bool = True,
        rand_on_empty: bool = False,
    ) -> Any:
        """Makes module, optimizer and data loader private, with the noise that keeps a budget.

        `target_epsilon` and `target_delta` are the budget, and `epochs` is how many times the loop goes
        through the data loader. The budget holds: a step beyond these epochs is refused. All other
        arguments are those of `make_private`.

        Returns:
            As `make_private`. `optimizer.noise_multiplier` is the noise.
        """
        check_options(
            batch_first=batch_first,
            loss_reduction=loss_reduction,
            poisson_sampling=poisson_sampling,
            clipping=clipping,
            noise_generator=noise_generator,
            grad_sample_mode=grad_sample_mode,
            wrap_model=wrap_model,
            rand_on_empty=rand_on_empty,
            max_grad_norm=max_grad_norm,
        )
        return self._made(
            module,
            optimizer,
            criterion,
            data_loader,
            grad_sample_mode,
            Terms(
                loss_reduction=loss_reduction,
                criterion=criterion if grad_sample_mode == GHOST else None,
                poisson_sampling=poisson_sampling,
                clip_norm=max_grad_norm,
                epsilon=target_epsilon,
                delta=target_delta,
                epochs=epochs,
            ),
        )

    def _made(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        criterion: Any,
        data_loader: DataLoader[Any],
        grad_sample_mode: str,
        terms: Terms,
    ) -> Any:
        if self._loop is not None:
            raise RuntimeError(
                "Expected one run of a PrivacyEngine. Make another engine for another run. If both train on "
                "the same data, use adamas.make_private with data_ledger=, which adds up what they spend."
            )
        training = make_training(
            module,
            optimizer,
            data_loader,
            terms,
            accountant=ACCOUNTANTS[self.accountant.mechanism()],
            secure=self.secure_mode,
            seed=self.seed,
        )
        self._loop, self.accountant.run = Loop(training, module), training.run
        return self._loop.objects_with(criterion) if grad_sample_mode == GHOST else self._loop.objects()

    def _made_loop(self) -> Loop:
        if self._loop is None:
            raise RuntimeError("Expected make_private to be called first.")
        return self._loop

    def get_epsilon(self, delta: float) -> float:
        """Returns the epsilon spent so far, an upper bound; 0 before `make_private`.

        Args:
            delta: Below 1/N.
        """
        return self.accountant.get_epsilon(delta)

    def save_checkpoint(
        self, *, path: str | Path, module: nn.Module, optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        """Saves the whole run: module, optimizer, ledger, settings, positions of sampling and noise.

        From then on each release is also written to a journal beside the file. `module` and `optimizer` are
        those of this engine; the optimizer is saved in any case.
        """
        self._made_loop().check_mine(module, optimizer)
        self.run.save(path)

    def load_checkpoint(
        self, *, path: str | Path, module: nn.Module, optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        """Continues a saved run, before the first step and with the arguments of the saved one.

        Releases that the saved run made after it was saved are in its journal, and count. `module` and
        `optimizer` are those of this engine; the optimizer's state is loaded in any case.
        """
        self._made_loop().check_mine(module, optimizer)
        adamas.load(path, self.run)

    def is_compatible(self, *, module: nn.Module, optimizer: Any = None, data_loader: Any = None) -> bool:
        """Tells whether `validate` accepts the module."""
        try:
            self.validate(module=module, optimizer=optimizer, data_loader=data_loader)
        except UnsupportedError:
            return False
        return True

    def validate(self, *, module: nn.Module, optimizer: Any = None, data_loader: Any = None) -> None:
        """Raises for a module that mixes examples, such as batch norm. The first step checks all calls."""
        check_modules(module)
        check_whole(module)

    @classmethod
    def get_compatible_module(cls, module: nn.Module) -> nn.Module:
        """Returns the module if `validate` accepts it. No layer is replaced: the error names the remedy."""
        check_modules(module)
        check_whole(module)
        return module
