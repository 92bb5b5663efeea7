"""What a private Trainer cannot keep is refused by name, before anything is spent."""

import dataclasses

import pytest

pytest.importorskip("transformers")

import datasets
import torch
from transformers import Seq2SeqTrainingArguments, Trainer, TrainingArguments

from adamas.errors import UnsupportedError
from adamas.integrations.transformers import Privacy, PrivateTrainer, PrivateTrainerMixin
from adamas.integrations.transformers.arguments import MAPPED, REFUSED, SUPPORTED
from tests.support.tiny_trainers import PRIVACY, arguments, bert, labelled, trainer

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

OTHER = {
    "max_grad_norm": 0.5,
    "optim": "sgd",
    "optim_args": "momentum=0.9",
    "optim_target_modules": "all-linear",
    "torch_compile": True,
    "use_liger_kernel": True,
    "neftune_noise_alpha": 5.0,
    "torch_empty_cache_steps": 2,
    "auto_find_batch_size": True,
    "include_num_input_tokens_seen": "all",
    "skip_memory_metrics": False,
    "debug": "underflow_overflow",
    "ignore_data_skip": True,
    "enable_jit_checkpoint": True,
    "data_seed": 3,
    "dataloader_drop_last": True,
    "train_sampling_strategy": "group_by_length",
}
"""A value of each refused field that TrainingArguments accepts on a CPU."""


@pytest.mark.parametrize("name", OTHER)
def test_an_argument_that_cannot_be_kept_is_refused_with_its_name_and_value(tmp_path, name):
    args = arguments(tmp_path)
    setattr(args, name, OTHER[name])
    with pytest.raises(UnsupportedError, match=rf"{name}=.*got {OTHER[name]!r}"):
        PrivateTrainer(bert(), args, train_dataset=labelled(), privacy=Privacy(**PRIVACY))


@pytest.mark.parametrize("name", ["fp16", "fsdp", "deepspeed"])
def test_arguments_that_need_other_devices_are_refused(tmp_path, name):
    made = trainer(tmp_path)
    setattr(made.args, name, "full_shard" if name == "fsdp" else True)  # set after the constructor's checks
    with pytest.raises(UnsupportedError, match=name):
        made.train()
    with pytest.raises(RuntimeError, match="training in progress"):
        made.run  # noqa: B018 nothing was made, nothing spent


@pytest.mark.parametrize("key", ["use_reentrant", "offload"])
def test_checkpointing_that_changes_the_backward_is_refused(tmp_path, key):
    changes = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {key: True}}
    with pytest.raises(UnsupportedError, match=f"_checkpointing_kwargs without {key}"):
        trainer(tmp_path, arguments_=changes)


def test_a_checkpoint_that_would_publish_the_seed_is_refused(tmp_path):
    args = arguments(tmp_path)
    args.push_to_hub, args.hub_strategy = True, "checkpoint"
    made = trainer(tmp_path)
    made.args = args
    with pytest.raises(UnsupportedError, match="no seed in Privacy with hub_strategy='checkpoint'"):
        made.train()


def test_every_field_of_the_arguments_has_one_place():
    fields = {one.name for one in dataclasses.fields(Seq2SeqTrainingArguments)}
    places = [SUPPORTED, MAPPED.keys(), REFUSED.keys()]
    assert not fields - set().union(*places)
    assert sum(map(len, places)) == len(set().union(*places))
    elsewhere = {"fp16", "fsdp", "deepspeed", "parallelism_config", "sortish_sampler"}
    assert set(OTHER) | elsewhere >= fields & REFUSED.keys()


def test_a_field_that_is_not_known_is_refused_unless_it_is_the_user_s(tmp_path, monkeypatch):
    @dataclasses.dataclass
    class Own(TrainingArguments):
        my_option: int = 0

    made = trainer(tmp_path)
    own = Own(**arguments_as_given(tmp_path), my_option=3)
    made.args = own
    made._check()
    monkeypatch.setattr(Own, "__module__", "transformers.training_args")  # as if a newer version had it
    with pytest.raises(UnsupportedError, match=r"my_option=0, got 3.*newer version"):
        made._check()


def arguments_as_given(folder):
    return {"output_dir": str(folder), "max_steps": 2, "use_cpu": True, "report_to": "none"}


@pytest.mark.parametrize(
    ("rule", "changes", "message"),
    [
        ("adam-bc", {"weight_decay": 0.1}, "Expected weight_decay to keep its default: the rule AdamBC"),
        ("adam-bc", {"adam_epsilon": 1e-3}, "Expected adam_epsilon to keep its default"),
        ("sgd", {"adam_beta1": 0.8}, "Expected adam_beta1 and adam_beta2 to keep"),
    ],
)
def test_an_argument_that_the_rule_would_ignore_is_refused(tmp_path, rule, changes, message):
    made = trainer(tmp_path, privacy=PRIVACY | {"rule": rule}, arguments_=changes)
    with pytest.raises(UnsupportedError, match=message):
        made.train()


def test_options_that_are_given_twice_are_refused(tmp_path):
    twice = trainer(tmp_path, privacy=PRIVACY | {"rule_options": {"lr": 0.1}})
    with pytest.raises(ValueError, match=r"Expected lr either in rule_options or .*, got 0\.1 and 0\.01"):
        twice.train()
    twice = trainer(tmp_path, privacy=PRIVACY | {"rule_options": {"weight_decay": 0.1}})
    with pytest.raises(ValueError, match=r"Expected rule_options without weight_decay, got 0\.1: set"):
        twice.train()
    twice = trainer(
        tmp_path,
        privacy=PRIVACY | {"rule_options": {"betas": (0.5, 0.9)}},
        arguments_={"adam_beta1": 0.8},
    )
    with pytest.raises(ValueError, match="Expected betas either in rule_options or"):
        twice.train()


def test_arguments_of_translations_are_taken_but_for_sorted_batches(tmp_path):
    made = trainer(tmp_path)
    common = arguments_as_given(tmp_path)
    made.args = Seq2SeqTrainingArguments(**common, predict_with_generate=True, generation_max_length=5)
    made._check()
    made.args = Seq2SeqTrainingArguments(**common, sortish_sampler=True)
    with pytest.raises(UnsupportedError, match=r"Expected sortish_sampler=False, got True"):
        made._check()


def test_a_learning_rate_of_zero_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"Expected learning_rate=0\.0 > 0"):
        trainer(tmp_path, arguments_={"learning_rate": 0.0})


def test_records_that_train_are_not_evaluated(tmp_path):
    data = labelled()
    for both in (data, {"seen": data, "new": labelled(6, seed=3)}):
        with pytest.raises(ValueError, match="Expected an eval_dataset other than train_dataset"):
            trainer(tmp_path, data=data, eval_dataset=both)
    made = trainer(tmp_path, data=data)
    with pytest.raises(ValueError, match="Expected an eval_dataset other than train_dataset"):
        made.evaluate(made.train_dataset)
    with pytest.raises(ValueError, match="Expected an eval_dataset other than train_dataset"):
        made.predict(data)  # trackers get its metrics


def test_a_large_delta_needs_a_confirmation(tmp_path):
    with pytest.raises(ValueError, match=r"delta=0\.1.*allow_large_delta=True"):
        trainer(tmp_path, privacy=PRIVACY | {"delta": 0.1}).train()
    made = trainer(tmp_path, privacy=PRIVACY | {"delta": 0.1, "allow_large_delta": True})
    made.train()
    assert made.run.delta == 0.1


def test_a_stream_is_refused(tmp_path):
    with pytest.raises(TypeError, match=r"map-style|__len__"):
        trainer(tmp_path, data=labelled().to_iterable_dataset())

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            raise AssertionError

    with pytest.raises(TypeError, match="map-style"):
        trainer(tmp_path, data=Stream(), arguments_={"max_steps": 3})


def test_an_optimizer_is_refused(tmp_path):
    model = bert()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UnsupportedError, match="Expected no optimizers"):
        trainer(tmp_path, model=model, optimizers=(optimizer, None))
    with pytest.raises(UnsupportedError, match="Expected no optimizer_cls_and_kwargs"):
        trainer(tmp_path, optimizer_cls_and_kwargs=(torch.optim.SGD, {"lr": 0.1}))

    class Made(Trainer):
        def create_optimizer(self, model=None):
            raise AssertionError

    class Private(PrivateTrainerMixin, Made):
        pass

    with pytest.raises(UnsupportedError, match="Expected no create_optimizer of Made"):
        trainer(tmp_path, kind=Private)


class OwnLoss(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        raise AssertionError("is not called in a private training")


class OwnInputs(Trainer):
    def _prepare_inputs(self, inputs):
        raise AssertionError("is not called in a private training")


@pytest.mark.parametrize(("base", "name"), [(OwnLoss, "compute_loss"), (OwnInputs, "_prepare_inputs")])
def test_a_trainer_with_a_loss_of_its_own_needs_one_for_each_record(tmp_path, base, name):
    class Private(PrivateTrainerMixin, base):
        pass

    class Below(PrivateTrainer):
        pass

    setattr(Below, name, vars(base)[name])
    for kind in (Private, Below):
        with pytest.raises(UnsupportedError, match=rf"has its own {name}.*Privacy\(loss=\.\.\.\)"):
            trainer(tmp_path, kind=kind)

    def loss(model, batch):
        logits = model(**{k: v for k, v in batch.items() if k != "labels"}).logits
        return torch.nn.functional.cross_entropy(logits, batch["labels"], reduction="none")

    trainer(tmp_path, kind=Private, privacy=PRIVACY | {"loss": loss}, arguments_={"max_steps": 1}).train()


@pytest.mark.parametrize("name", ["training_step", "get_train_dataloader", "_load_optimizer_and_scheduler"])
def test_a_subclass_cannot_replace_the_private_parts(tmp_path, name):
    below = type("Below", (PrivateTrainer,), {name: lambda self, *args: None})
    with pytest.raises(UnsupportedError, match=f"Expected Below to leave {name} to PrivateTrainerMixin"):
        trainer(tmp_path, kind=below)


class Weighted(Trainer):
    def _get_train_sampler(self, train_dataset=None):
        raise AssertionError("is not called in a private training")


class OwnLoader(Trainer):
    def get_train_dataloader(self):
        raise AssertionError("is not called in a private training")


class OwnKind(Trainer):
    @staticmethod
    def get_optimizer_cls_and_kwargs(args, model=None):
        raise AssertionError("is not called in a private training")


@pytest.mark.parametrize(
    ("base", "name", "remedy"),
    [
        (Weighted, "_get_train_sampler", r"Privacy\(sampling="),
        (OwnLoader, "get_train_dataloader", "data_collator to the trainer"),
        (OwnKind, "get_optimizer_cls_and_kwargs", r"Privacy\(rule="),
    ],
)
def test_a_method_that_would_be_ignored_is_refused(tmp_path, base, name, remedy):
    class Private(PrivateTrainerMixin, base):
        pass

    with pytest.raises(UnsupportedError, match=rf"Expected {base.__name__} without a {name}.*{remedy}"):
        trainer(tmp_path, kind=Private)


def test_the_mixin_must_come_first(tmp_path):
    class Wrong(Trainer, PrivateTrainerMixin):
        pass

    with pytest.raises(TypeError, match="privacy"):
        trainer(tmp_path, kind=Wrong)


def test_a_loss_of_the_batch_is_refused(tmp_path):
    with pytest.raises(UnsupportedError, match="Expected compute_loss_func=None"):
        trainer(tmp_path, compute_loss_func=lambda outputs, labels, num_items_in_batch=None: 0)


def test_a_search_is_refused(tmp_path):
    made = trainer(tmp_path)
    with pytest.raises(UnsupportedError, match="no hyperparameter search"):
        made.train(trial={"learning_rate": 1e-3})


def test_a_second_training_is_refused(tmp_path):
    made = trainer(tmp_path, arguments_={"max_steps": 1})
    made.train()
    spent = made.epsilon()
    with pytest.raises(RuntimeError, match="Expected one train"):
        made.train()
    assert made.epsilon() == spent


def test_a_batch_larger_than_the_data_is_refused(tmp_path):
    made = trainer(tmp_path, data=labelled(3))
    with pytest.raises(ValueError, match="per_device_train_batch_size x gradient_accumulation_steps = 4"):
        made.train()


def test_a_release_that_never_reaches_the_rule_ends_the_training(tmp_path):
    made = trainer(tmp_path)
    made.callback_handler.callbacks.remove(made._private)
    with pytest.raises(RuntimeError, match="training in progress"):
        made.train()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": 1.0, "noise_multiplier": 1.0}, "exactly one of epsilon and noise_multiplier"),
        ({"epsilon": -1.0}, "epsilon=-1.0"),
        ({"delta": 2.0}, "delta=2.0"),
        ({"clip_norm": 0.0}, "clip_norm=0.0"),
        ({"rule": "adan"}, "rule='adan'"),
        ({"sampling": "sorted"}, "sampling='sorted'"),
        ({"accountant": "gdp"}, "accountant='gdp'"),
        ({"engine": "hooks"}, "engine='hooks'"),
        ({"noise": "none"}, "noise='none'"),
    ],
)
def test_privacy_is_checked_when_it_is_made(options, message):
    with pytest.raises(ValueError, match=message):
        Privacy(**options)


def test_privacy_takes_no_optimizer_and_no_name_of_a_loss(tmp_path):
    with pytest.raises(TypeError, match="Expected rule="):
        Privacy(rule=torch.optim.SGD(bert().parameters(), lr=0.1))
    with pytest.raises(TypeError, match="Expected loss='mean'"):
        Privacy(loss="mean")
    with pytest.raises(TypeError, match="Expected privacy to be a Privacy"):
        PrivateTrainer(bert(), arguments(tmp_path), train_dataset=labelled(), privacy={"epsilon": 8})


def test_the_data_sets_of_these_tests_are_maps():
    assert isinstance(labelled(3), datasets.Dataset)
