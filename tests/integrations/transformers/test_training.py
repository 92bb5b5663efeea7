"""A private Trainer computes what a plain loop computes, and logs public numbers only."""

import json
import math
import random
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from transformers import (
    DataCollatorWithPadding,
    EarlyStoppingCallback,
    TrainerCallback,
    TrainingArguments,
    get_scheduler,
)

import adamas
from adamas import rules
from adamas.integrations import losses
from adamas.integrations.transformers import Privacy, PrivateTrainer
from adamas.integrations.transformers.cards import add_privacy
from tests.support.tiny_trainers import PRIVACY, SMALL, bert, labelled, tokenizer, trainer, weights

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

PUBLIC = {
    *("learning_rate", "epoch", "step", "train_runtime", "train_samples_per_second"),
    *("train_steps_per_second", "total_flos", "privacy_epsilon", "privacy_delta", "privacy_noise_multiplier"),
    *("privacy_release_norm", "privacy_noise_norm", "privacy_signal_to_noise"),
    *("eval_loss", "eval_runtime", "eval_samples_per_second", "eval_steps_per_second"),
}


def plain_loop(data, *, batch_size, steps, **options):
    model = bert()
    rule = rules.AdamBC(model.parameters(), lr=1e-2)
    run = adamas.make_private(
        model,
        rule,
        data.remove_columns("note"),
        losses.classification,
        batch_size=batch_size,
        steps=steps,
        delta=1 / (10 * len(data)),
        collate_fn=DataCollatorWithPadding(tokenizer()),
        **(PRIVACY | options),
    )
    schedule = get_scheduler("linear", rule, num_warmup_steps=2, num_training_steps=steps)
    model.train()
    for batch in run.batches():
        run.privatize(batch).write_to(rule)
        rule.step()
        schedule.step()
    return run, model


def test_a_training_is_bit_equal_to_a_plain_loop_of_the_same_seed(tmp_path):
    model = bert().eval()  # as from_pretrained returns it
    ours = trainer(  # with dropout, warm-up, evaluations and saves between the steps
        tmp_path,
        model=model,
        eval_dataset=labelled(6, seed=3),
        arguments_={"eval_strategy": "steps", "eval_steps": 2, "eval_on_start": True},
    )
    result = ours.train()
    run, model = plain_loop(labelled(), batch_size=4, steps=6, micro_batch_size=2)
    assert torch.equal(weights(ours.model), weights(model))
    assert ours.epsilon() == run.epsilon()
    assert ours.run.ledger.entries == run.ledger.entries
    assert result.global_step == ours.run.steps_done == 6
    assert math.isnan(result.training_loss)
    assert ours.privacy_statement() == run.privacy_statement()


def test_the_expected_batch_is_the_device_batch_times_the_accumulation(tmp_path):
    ours = trainer(tmp_path, arguments_={"max_steps": -1, "num_train_epochs": 1.5})
    ours.train()
    sampler = ours.run.loader.sampler
    assert (sampler.batch_size, sampler.dataset_size, ours.run.loader.micro_batch_size) == (4, 24, 2)
    assert ours.run.steps == ours.run.steps_done == 9  # 1.5 x 24 / 4
    assert ours.run.delta == 1 / 240


def without_rate(folder, **options):
    """Makes the arguments of a trainer without a learning rate, as many users do."""
    given = {name: value for name, value in SMALL.items() if name != "learning_rate"}
    args = TrainingArguments(output_dir=str(folder), **given)
    return PrivateTrainer(bert(), args, train_dataset=labelled(), privacy=Privacy(**(PRIVACY | options)))


@pytest.mark.parametrize(
    ("options", "lr"),
    [
        ({}, rules.AdamBC([torch.zeros(1, requires_grad=True)]).defaults["lr"]),
        ({"rule_options": {"lr": 5e-5}}, 5e-5),
        ({"rule": lambda params: torch.optim.AdamW(params, lr=0.02)}, 0.02),
    ],
)
def test_the_default_rate_of_the_trainer_is_not_that_of_the_rule(tmp_path, options, lr):
    made = without_rate(tmp_path, **options)
    made.create_optimizer()
    assert {group["lr"] for group in made.optimizer.param_groups} == {lr}


def test_the_model_card_tells_the_guarantee_once(tmp_path):
    made = trainer(tmp_path, arguments_={"max_steps": 1})
    made.create_model_card()
    assert "Privacy" not in (tmp_path / "README.md").read_text()
    made.train()
    made.create_model_card()
    add_privacy(tmp_path / "README.md", made.run)
    card = (tmp_path / "README.md").read_text()
    assert card.count("## Privacy") == card.count(made.privacy_statement()) == card.count("`AdamBC`") == 1


def test_a_log_before_the_training_is_shown_without_what_is_private(tmp_path):
    made = trainer(tmp_path)
    made.log({"loss": 1.0, "mine": 2.0})
    assert made.state.log_history[-1]["mine"] == 2.0
    assert "loss" not in made.state.log_history[-1]


def logged(folder, data):
    """Returns everything that a training shows, except times: its logs, files and result."""
    ours = trainer(
        folder,
        data=data,
        privacy={"noise_multiplier": 2.0**19, "accountant": "rdp", "seed": 5},
        arguments_={"report_to": "tensorboard", "max_grad_norm": 0.0, "learning_rate": 1e-9},
    )
    result = ours.train()
    state = json.loads((folder / "checkpoint-6" / "trainer_state.json").read_text())
    return ours, [*ours.state.log_history, result.metrics, *state["log_history"], *scalars(folder)]


def scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = []
    for file in folder.rglob("events.out.tfevents.*"):
        events = EventAccumulator(str(file)).Reload()
        for tag in events.Tags()["scalars"]:
            found += [{tag.removeprefix("train/"): event.value} for event in events.Scalars(tag)]
    return found


def test_logs_and_files_show_nothing_that_private_data_determines(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "a" / "logs"))
    first, shown = logged(tmp_path / "a", labelled(seed=1))
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "b" / "logs"))
    _, other = logged(tmp_path / "b", labelled(seed=2))
    assert len(scalars(tmp_path / "a")) > 10
    assert {name for row in shown for name in row} <= PUBLIC
    # Under noise of 2^19 all that is released is the noise, which both seeds share.
    assert len(shown) == len(other)
    for mine, theirs in zip(shown, other, strict=True):
        assert mine.keys() == theirs.keys()
        for name in mine.keys() - {"train_runtime", "train_samples_per_second", "train_steps_per_second"}:
            assert mine[name] == pytest.approx(theirs[name], rel=1e-4, abs=1e-4), name
    assert first.callback_handler.train_dataloader.records == 24
    assert list(first.callback_handler.train_dataloader) == [{}] * 12  # what callbacks see of the data


class GoOn(TrainerCallback):
    """Clears the flag that ends the training."""

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = False
        state.max_steps = 9


def test_a_trainer_that_does_not_stop_is_stopped_with_the_reason(tmp_path):
    made = trainer(tmp_path, callbacks=[GoOn()], arguments_={"max_steps": 4})
    with pytest.raises(RuntimeError, match=r"Expected the trainer to stop after step 4 of 4.*callbacks"):
        made.train()
    assert made.run.steps_done == 4


def test_early_stopping_on_public_data_spends_less(tmp_path):
    ours = trainer(
        tmp_path,
        privacy={"epsilon": 3.0, "accountant": "rdp"},
        eval_dataset=labelled(8, seed=9),
        callbacks=[EarlyStoppingCallback(1, early_stopping_threshold=1e9)],
        arguments_={
            **{"eval_strategy": "steps", "eval_steps": 1, "save_steps": 1, "save_total_limit": 1},
            **{"load_best_model_at_end": True, "metric_for_best_model": "loss"},
        },
    )
    result = ours.train()
    assert result.global_step == ours.run.steps_done == 2 < ours.run.steps
    assert ours.epsilon() < 2.1
    assert any("eval_loss" in row for row in ours.state.log_history)


def test_the_trainer_s_own_losses_are_used(tmp_path):
    """Label smoothing is mapped: the weights are those of a loop whose loss has it."""
    smooth = trainer(tmp_path, arguments_={"label_smoothing_factor": 0.3})
    smooth.train()

    def loss(model, batch):
        return losses.classification(model, batch, label_smoothing=0.3)

    given = trainer(tmp_path, privacy=PRIVACY | {"loss": loss})
    given.train()
    plain = trainer(tmp_path)
    plain.train()
    assert torch.equal(weights(smooth.model), weights(given.model))
    assert not torch.equal(weights(smooth.model), weights(plain.model))


def test_arguments_of_the_optimizer_become_those_of_the_rule(tmp_path):
    ours = trainer(
        tmp_path,
        privacy=PRIVACY | {"rule": "adamw", "rule_options": {"eps_placement": "inside"}},
        arguments_={"weight_decay": 0.1, "adam_beta1": 0.8, "adam_epsilon": 1e-4},
    )
    rule = ours.create_optimizer()
    assert isinstance(rule, rules.AdamW)
    decayed, plain = rule.param_groups
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)
    assert (decayed["betas"], decayed["eps"], decayed["lr"]) == ((0.8, 0.999), 1e-4, 1e-2)
    assert decayed["eps_placement"] == "inside"
    assert all(p.dim() == 2 for p in decayed["params"])  # no biases, no norms


@pytest.mark.parametrize("rule", [torch.optim.SGD, lambda params, lr: rules.SGD(params, lr=lr, momentum=0.9)])
def test_a_class_or_a_function_makes_the_rule(tmp_path, rule):
    ours = trainer(tmp_path, privacy=PRIVACY | {"rule": rule})
    ours.train()
    assert ours.epsilon() > 0
    assert not torch.equal(weights(ours.model), weights(bert()))


class Still(torch.optim.SGD):
    def step(self, closure=None):
        pass


class Touch(TrainerCallback):
    """Changes a frozen weight: what no rule does."""

    def on_optimizer_step(self, args, state, control, model=None, **kwargs):
        with torch.no_grad():
            model.bert.embeddings.word_embeddings.weight[0, 0] += 1


@pytest.mark.parametrize("warmup", [0, 2])  # with a warm-up the first step has learning rate 0
def test_weights_that_do_not_move_end_the_training_at_the_first_step(tmp_path, warmup):
    ours = trainer(tmp_path, privacy=PRIVACY | {"rule": Still}, arguments_={"warmup_steps": warmup})
    with pytest.raises(RuntimeError, match=r"moved 0 of \d+ trainable parameters"):
        ours.train()
    assert ours.run.steps_done == (2 if warmup else 1)


def test_frozen_weights_that_move_end_the_training_at_the_first_step(tmp_path):
    model = bert()
    model.bert.embeddings.requires_grad_(False)
    ours = trainer(tmp_path, model=model, callbacks=[Touch()], arguments_={"warmup_steps": 0})
    with pytest.raises(RuntimeError, match=r"word_embeddings.weight', which is frozen"):
        ours.train()
    assert ours.run.steps_done == 1


def test_frozen_weights_stay(tmp_path):
    model = bert()
    model.bert.embeddings.requires_grad_(False)
    before = model.bert.embeddings.word_embeddings.weight.clone()
    ours = trainer(tmp_path, model=model)
    ours.train()
    assert torch.equal(model.bert.embeddings.word_embeddings.weight, before)
    assert not torch.equal(model.classifier.weight, bert().classifier.weight)


def test_a_training_without_accumulation_and_with_workers_is_the_same(tmp_path):
    ours = trainer(tmp_path)
    ours.train()
    whole = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 1, "dataloader_num_workers": 1}
    other = trainer(tmp_path, arguments_=whole)
    other.train()
    assert other.run.loader.micro_batch_size == 4
    assert other.epsilon() == ours.epsilon()
    assert SMALL["max_steps"] == other.run.steps_done


def test_nothing_is_known_before_the_training(tmp_path):
    ours = trainer(tmp_path)
    with pytest.raises(RuntimeError, match=r"trainer\.train\(\)"):
        ours.epsilon()
    assert ours.privacy == Privacy(**PRIVACY)
    assert not list(Path(tmp_path).iterdir())


def test_a_list_of_records_is_a_data_set_like_any_other(tmp_path):
    """Its unused column is removed by Trainer's own wrapper of the collator, not from the data set."""
    ours = trainer(tmp_path, data=list(labelled()), arguments_={"max_steps": 2})
    ours.train()
    other = trainer(tmp_path, arguments_={"max_steps": 2})
    other.train()
    assert torch.equal(weights(ours.model), weights(other.model))


def test_saved_generators_do_not_tell_how_many_records_were_drawn(tmp_path):
    """A model that draws from Python's generator in each forward, as layer drop does."""

    class Dropping(type(bert())):
        def forward(self, input_ids=None, attention_mask=None, labels=None, **more):
            random.random()
            return super().forward(input_ids, attention_mask, labels=labels, **more)

    class Recording(TrainerCallback):
        def __init__(self):
            self.states = []

        def on_step_end(self, args, state, control, **kwargs):
            self.states.append(random.getstate())

    model, recording = bert(), Recording()
    model.__class__ = Dropping
    privacy = PRIVACY | {"loss": losses.classification}
    trainer(tmp_path, model=model, privacy=privacy, callbacks=[recording]).train()
    assert len(recording.states) == 6
    assert len(set(recording.states)) == 1
