"""Chooses the loss of each record for a trainer, and refuses trainers whose training does something else."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from transformers import Trainer

from adamas.engines import Loss
from adamas.errors import UnsupportedError
from adamas.integrations import losses
from adamas.integrations.transformers.privacy import Privacy

_KNOWN = {("transformers.trainer", "Trainer"), ("trl.trainer.sft_trainer", "SFTTrainer")}
# Methods that decide what a training computes; the private training calls none of them.
_OBJECTIVE = ("compute_loss", "_prepare_inputs")
# Methods by which the private training works, so that a subclass must not replace them.
_OWN = (
    "training_step",
    "get_train_dataloader",
    "_save_optimizer_and_scheduler",
    "_load_optimizer_and_scheduler",
)

# Methods that a private training does not follow, and what takes their place.
_REPLACED = {
    "get_train_dataloader": "Give the data set and the data_collator to the trainer",
    "_get_train_sampler": "Set Privacy(sampling=...)",
    "get_batch_samples": "Set per_device_train_batch_size and gradient_accumulation_steps",
    "get_optimizer_cls_and_kwargs": "Set Privacy(rule=...)",
}


def loss_for(trainer: Trainer, privacy: Privacy) -> Loss:
    """Returns `Privacy.loss`, or the one that the trainer would minimise, record by record.

    Raises:
        UnsupportedError: If the trainer computes a loss of its own, and `Privacy` has none.
    """
    if privacy.loss is not None:
        return privacy.loss
    for name in (*_OBJECTIVE, "training_step"):
        owner = owner_of(type(trainer), name, without=trainer_parts(type(trainer)))
        if (owner.__module__, owner.__name__) not in _KNOWN:
            raise UnsupportedError(
                f"Expected a trainer whose loss of one record is known, but {owner.__name__} has its own "
                f"{name}, which may mix the records of a batch and is not called in a private training. Give "
                "Privacy(loss=...), a function loss(model, batch) with one loss per record, or take "
                "transformers.Trainer or trl.SFTTrainer."
            )
    if trainer.compute_loss_func is not None:
        raise UnsupportedError(
            "Expected compute_loss_func=None: it returns one number for a batch. Give Privacy(loss=...), a "
            "function loss(model, batch) with one loss per record."
        )
    model: Any = trainer.model
    return losses.for_model(model, label_smoothing=trainer.args.label_smoothing_factor)


def check_methods(kind: type, mixin: type) -> None:
    """Raises if a class has a method by which the private training works, or one that it would ignore.

    Args:
        kind: The class of the trainer.
        mixin: The class that has these methods.
    """
    for name in _OWN:
        owner = owner_of(kind, name)
        if owner is not mixin:
            raise UnsupportedError(
                f"Expected {kind.__name__} to leave {name} to {mixin.__name__}, but {owner.__name__} has its "
                "own: it could reach private data around sampling, clipping or ledger. Remove it, "
                "and put the mixin first in the bases of the class."
            )
    for name, remedy in _REPLACED.items():
        owner = owner_of(kind, name, without=trainer_parts(kind))
        if owner.__module__.partition(".")[0] not in ("transformers", "trl"):
            raise UnsupportedError(
                f"Expected {owner.__name__} without a {name} of its own, which a private training would "
                "ignore: batches are drawn by the sampler that the accountant knows, and the rule takes the "
                f"optimizer's place. {remedy}, and remove the method."
            )


def check_evaluation(train_datasets: Iterable[Any], eval_dataset: Any) -> None:
    """Raises if a trainer is to evaluate on the records that it trains on.

    Args:
        train_datasets: The data set as it was given, and as the trainer has prepared it.
        eval_dataset: A data set, or several by their names.
    """
    parts = eval_dataset.values() if isinstance(eval_dataset, dict) else [eval_dataset]
    known = [one for one in train_datasets if one is not None]
    if any(part is one for part in parts for one in known):
        raise ValueError(
            "Expected an eval_dataset other than train_dataset: its metrics would be logged without noise. "
            "Evaluate on public records, or on records whose privacy is accounted for elsewhere "
            "(adamas.callbacks.PaidScore)."
        )


def given_datasets(init: Callable[..., None], args: Iterable[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Returns `train_dataset` and `eval_dataset` of a call of a trainer's class, by position or by name."""
    given = {**dict(zip(inspect.signature(init).parameters, args, strict=False)), **kwargs}
    return [given.get(name) for name in ("train_dataset", "eval_dataset")]


def owner_of(kind: type, name: str, without: tuple[type, ...] = ()) -> type:
    """Returns the class that a class has a method from.

    Args:
        kind: The class.
        name: The method.
        without: Classes that do not count.
    """
    return next(one for one in kind.__mro__ if name in vars(one) and one not in without)


def trainer_parts(kind: type) -> tuple[type, ...]:
    """Returns the classes of this package that a trainer is made of."""
    package = __name__.rpartition(".")[0]
    return tuple(one for one in kind.__mro__ if one.__module__.startswith(package + "."))


def check_optimizers(trainer: Any) -> None:
    """Raises if an optimizer was given, or is made by a method that is not called."""
    owner = owner_of(type(trainer), "create_optimizer", without=trainer_parts(type(trainer)))
    given = {
        "optimizers": trainer.optimizer is not None or trainer.lr_scheduler is not None,
        "optimizer_cls_and_kwargs": trainer.optimizer_cls_and_kwargs is not None,
        f"create_optimizer of {owner.__name__}": owner.__module__ != "transformers.trainer",
    }
    for name, found in given.items():
        if found:
            raise UnsupportedError(
                f"Expected no {name}: the rule takes the optimizer's place. Set Privacy(rule=...) to its "
                "class, or to a function of the parameters that makes it. The schedule follows from "
                "lr_scheduler_type and warmup_steps."
            )
