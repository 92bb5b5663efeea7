"""What each field of `TrainingArguments` becomes in a private training: supported, mapped or refused.

The table has a row for each field of transformers' `TrainingArguments` and `Seq2SeqTrainingArguments`, and of
TRL's `SFTConfig`. A field that is refused may keep its default. So may a field of a newer version, which has
no row here yet.
"""

import dataclasses
from enum import Enum
from typing import Any

from transformers import TrainingArguments

from adamas.errors import UnsupportedError
from adamas.integrations.transformers.privacy import Privacy

SUPPORTED = frozenset(
    {
        *("output_dir", "num_train_epochs", "max_steps", "lr_scheduler_type", "lr_scheduler_kwargs"),
        *("warmup_steps", "warmup_ratio"),
        *("average_tokens_across_devices", "bf16", "bf16_full_eval", "fp16_full_eval", "tf32", "use_cache"),
        *("use_cpu",),
        *("gradient_checkpointing", "gradient_checkpointing_kwargs", "full_determinism", "seed"),
        *("activation_checkpointing", "activation_checkpointing_kwargs"),  # their names from 5.23 on
        *("accelerator_config",),
        *("logging_strategy", "logging_steps", "logging_first_step", "log_on_each_node"),
        *("logging_nan_inf_filter",),
        *("logging_dir", "log_level", "log_level_replica", "disable_tqdm", "report_to", "run_name"),
        *("project",),
        *("trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"),
        *("eval_strategy", "eval_steps", "eval_delay", "per_device_eval_batch_size", "prediction_loss_only"),
        *("eval_on_start",),
        *("eval_do_concat_batches", "eval_use_gather_object", "eval_accumulation_steps"),
        *("include_for_metrics",),
        *("batch_eval_metrics", "load_best_model_at_end", "metric_for_best_model", "greater_is_better"),
        *("save_only_model", "save_strategy", "save_steps", "save_on_each_node", "save_total_limit"),
        *("push_to_hub", "hub_token", "hub_private_repo", "hub_model_id", "hub_strategy", "hub_always_push"),
        *("hub_revision",),
        *("restore_callback_states_from_checkpoint", "resume_from_checkpoint", "do_train", "do_eval"),
        *("do_predict",),
        *("dataloader_pin_memory", "dataloader_persistent_workers", "dataloader_prefetch_factor"),
        *("dataloader_multiprocessing_context", "dataloader_in_order", "remove_unused_columns"),
        *("label_names",),
        *("length_column_name", "local_rank", "ddp_find_unused_parameters", "ddp_bucket_cap_mb"),
        *("ddp_broadcast_buffers",),
        *("ddp_static_graph", "ddp_backend", "ddp_timeout", "fsdp_config", "torch_compile_backend"),
        *("torch_compile_mode",),
        *("liger_kernel_config",),
        # Of TRL's SFTConfig.
        *("model_init_kwargs", "trust_remote_code", "chat_template_path", "dataset_text_field"),
        *("dataset_kwargs",),
        *("dataset_num_proc", "eos_token", "pad_token", "max_length", "truncation_mode", "shuffle_dataset"),
        *("packing_strategy",),
        *("eval_packing", "pad_to_multiple_of", "completion_only_loss", "assistant_only_loss"),
        # Of Seq2SeqTrainingArguments: they are about evaluations.
        *("predict_with_generate", "generation_max_length", "generation_num_beams", "generation_config"),
    }
)
"""Fields that mean what they mean in transformers, or concern what a private training refuses anyway."""

MAPPED = {
    "per_device_train_batch_size": "the examples that are processed at once",
    "gradient_accumulation_steps": "times per_device_train_batch_size: the expected size of a batch",
    "learning_rate": "the rule's lr, if it differs from Trainer's default; else the rule has its own",
    "weight_decay": "the rule's weight_decay, not for biases and norms",
    "adam_beta1": "the rule's betas",
    "adam_beta2": "the rule's betas",
    "adam_epsilon": "the rule's eps",
    "label_smoothing_factor": "the same smoothing in the loss of each record",
    "dataloader_num_workers": "the run's worker processes",
}
"""Field -> what it becomes."""

_NOISE = "Clipping is per record: set Privacy(clip_norm=...)."
_RULE = "The rule takes the optimizer's place: set Privacy(rule=..., rule_options=...)."
_ONE_PROCESS = "Train in one process, without it."
_PRIVATE_COUNT = "It would be logged, and depends on which records took part. Leave it out."

REFUSED = {
    "max_grad_norm": _NOISE,
    "optim": _RULE,
    "optim_args": _RULE,
    "optim_target_modules": _RULE,
    "fp16": "Its loss scaling skips steps depending on the gradients. Take bf16=True, or load the model "
    "in bfloat16.",
    "half_precision_backend": "Take bf16=True.",
    "fp16_opt_level": "Take bf16=True.",
    "torch_compile": "Compiled calls cannot be followed example by example. Leave it out.",
    "use_liger_kernel": "Its kernels average over the batch, or have a backward of their own. Leave it out.",
    "neftune_noise_alpha": "Its noise depends on the longest record of a batch. Leave it out.",
    "torch_empty_cache_steps": "Lower per_device_train_batch_size instead, which bounds the memory.",
    "auto_find_batch_size": "It would train again from the start after running out of memory. Lower "
    "per_device_train_batch_size, and raise gradient_accumulation_steps.",
    "include_num_input_tokens_seen": _PRIVATE_COUNT,
    "skip_memory_metrics": "The memory that was used depends on how many records took part. Leave it True.",
    "debug": "It prints activations of private data. Leave it out.",
    "ignore_data_skip": "A resumed run continues its own sampling. Leave it False.",
    "enable_jit_checkpoint": "It may save between a release and the step on it. Set save_steps.",
    "data_seed": "The order of records is drawn with the run's secret seed: set Privacy(seed=...).",
    "dataloader_drop_last": "Each batch is drawn at random, and none is the last. Leave it False.",
    "train_sampling_strategy": "Batches are drawn by the sampler that the accountant knows. Leave it "
    "'random', and set Privacy(sampling=...).",
    "sortish_sampler": "Batches are drawn by the sampler that the accountant knows. Leave it False.",
    "group_by_length": "Batches are drawn by the sampler that the accountant knows. Leave it False.",
    "deepspeed": _ONE_PROCESS,
    "fsdp": _ONE_PROCESS,
    "parallelism_config": _ONE_PROCESS,
    # of TRL
    "packing": "A packed row holds several records, so clipping rows bounds none of them. Leave it False.",
    "padding_free": "It joins the records of a batch into one row. Leave it False.",
    "loss_type": "Leave it 'nll', or give Privacy(loss=...).",
    "activation_offloading": "It changes the tensors that the backward reads. Set gradient_checkpointing.",
    "router_aux_loss_coef": "It balances experts over the batch, which mixes records. Leave it out.",
}
"""Field -> why only its default is accepted, and the remedy."""


ALSO_ACCEPTED = {"max_grad_norm": (None,)}  # 0 turns off what is never done


def check_arguments(args: TrainingArguments, privacy: Privacy) -> None:
    """Raises unless all arguments can be kept.

    Raises:
        UnsupportedError: With the name of the field, its value and the remedy.
        ValueError: If the learning rate is not positive.
    """
    for one in dataclasses.fields(args):
        if one.name in SUPPORTED or one.name in MAPPED or not _is_theirs(args, one.name):
            continue
        value, default = getattr(args, one.name), _default(one)
        if _plain(value) != _plain(default) and _plain(value) not in ALSO_ACCEPTED.get(one.name, ()):
            reason = REFUSED.get(
                one.name, "adamas does not know this field of a newer version. Leave it at its default."
            )
            raise UnsupportedError(f"Expected {one.name}={default!r}, got {value!r}. {reason}")
    _check_checkpointing(args)
    if not args.learning_rate > 0:
        raise ValueError(
            f"Expected learning_rate={args.learning_rate!r} > 0: no step would move the weights, and all "
            "would be charged."
        )
    if args.push_to_hub and privacy.seed is not None and _plain(args.hub_strategy) in _WHOLE_CHECKPOINTS:
        raise UnsupportedError(
            f"Expected no seed in Privacy with hub_strategy={_plain(args.hub_strategy)!r}: the "
            "checkpoints that it publishes hold the seed, which removes the noise. Leave out the seed, or "
            "set hub_strategy='every_save'."
        )
    processes = max(args.world_size, 1) * max(args.n_gpu, 1)
    if args.world_size > 1 or args.n_gpu > 1:
        raise UnsupportedError(
            f"Expected one process and one device, got world_size={args.world_size} and n_gpu={args.n_gpu}: "
            f"gradients of {processes} parts would be averaged before they are clipped. Set "
            "CUDA_VISIBLE_DEVICES to one device, or take adamas.make_private(distributed=True)."
        )


def check_precision(mixed_precision: str) -> None:
    """Raises for a mixed precision that was chosen for accelerate and is not exact."""
    if mixed_precision not in ("no", "bf16"):
        raise UnsupportedError(
            f"Expected mixed precision 'bf16' or none of accelerate, got {mixed_precision!r}. "
            + REFUSED["fp16"]
        )


_WHOLE_CHECKPOINTS = ("checkpoint", "all_checkpoints")


def _check_checkpointing(args: TrainingArguments) -> None:
    for field in ("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"):
        options: Any = getattr(args, field, None) or {}
        for name in ("use_reentrant", "offload", "selective"):
            if options.get(name):
                raise UnsupportedError(
                    f"Expected {field} without {name}: it changes the backward in ways that the engines do "
                    "not follow. Set {'use_reentrant': False}."
                )


def _is_theirs(args: TrainingArguments, name: str) -> bool:
    """Tells whether transformers or TRL declare a field; fields of a user's subclass are the user's."""
    owners = [kind for kind in type(args).__mro__ if name in vars(kind).get("__annotations__", {})]
    return any(kind.__module__.partition(".")[0] in ("transformers", "trl") for kind in owners)


def _default(one: "dataclasses.Field[Any]") -> Any:
    if one.default_factory is not dataclasses.MISSING:
        return one.default_factory()
    return None if one.default is dataclasses.MISSING else one.default


def _plain(value: Any) -> Any:
    """Returns a value as it may be compared: the text of an enumeration, None for what is empty."""
    if isinstance(value, Enum):
        value = value.value
    return value or None


def default_of(name: str) -> Any:
    """Returns the default of a field of `TrainingArguments`."""
    return _default(next(one for one in dataclasses.fields(TrainingArguments) if one.name == name))
