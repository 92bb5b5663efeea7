"""Checkpoints of a private Trainer hold the ledger, and a training resumes only with it."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")

import torch
from transformers import TrainerCallback

from adamas.errors import BudgetError
from tests.support.tiny_trainers import arguments, bert, labelled, trainer, weights
from tests.support.trainer_process import privacy

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
ROOT = Path(__file__).parents[3]


class Stop(TrainerCallback):
    """Raises after a step, as Ctrl-C does."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted training with a seed, saved at steps 3 and 6."""
    made = trainer(tmp_path_factory.mktemp("whole"), privacy=privacy(5))
    made.train()
    return made


def folder_of(made, step):
    return Path(made.args.output_dir) / f"checkpoint-{step}"


def copied(made, step, to):
    return Path(shutil.copytree(folder_of(made, step), to / f"checkpoint-{step}"))


def counts(made):
    return sum(count for _, count in made.run.ledger.entries)


def killed(folder, seed):
    """Trains in another process that is killed after step 5, two releases after its checkpoint."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.support.trainer_process", str(folder), str(seed), "5"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert [one.name for one in folder.iterdir()] == ["checkpoint-3"]


@pytest.mark.kills
def test_a_killed_training_with_a_seed_continues_bit_for_bit_and_spends_once(tmp_path, whole):
    killed(tmp_path, 5)
    resumed = trainer(tmp_path, privacy=privacy(5))
    resumed.train(resume_from_checkpoint=True)
    assert torch.equal(weights(resumed.model), weights(whole.model))
    assert resumed.epsilon() == whole.epsilon() <= 3.0
    assert resumed.run.ledger.entries == whole.run.ledger.entries
    assert resumed.state.log_history[-2]["privacy_epsilon"] == whole.state.log_history[-2]["privacy_epsilon"]


@pytest.mark.kills
def test_a_killed_training_without_a_seed_counts_what_it_released_and_stays_in_its_budget(tmp_path, whole):
    killed(tmp_path, "none")
    resumed = trainer(tmp_path, privacy=privacy(None))
    result = resumed.train(resume_from_checkpoint=True)
    assert result.global_step == resumed.run.steps_done == resumed.run.steps < 6  # fewer, as 4 and 5 count
    assert counts(resumed) == resumed.run.steps_done + 2
    assert resumed.epsilon() <= 3.0
    assert resumed.run.noise_multiplier == whole.run.noise_multiplier


def test_a_training_that_was_interrupted_continues_in_the_same_trainer(tmp_path, whole):
    made = trainer(tmp_path, privacy=privacy(5), callbacks=[Stop(4)])
    with pytest.raises(KeyboardInterrupt):
        made.train()
    assert made.run.steps_done == 4
    with pytest.raises(RuntimeError, match="Expected one train"):
        made.train()
    made.remove_callback(Stop)
    made.train(resume_from_checkpoint=True)
    assert torch.equal(weights(made.model), weights(whole.model))
    assert made.run.ledger.entries == whole.run.ledger.entries


class SaveFirstAndStop(TrainerCallback):
    """Saves before the first step, and raises before a step, as Ctrl-C does."""

    def __init__(self, *steps):
        self.steps = list(steps)
        self.trainer = None

    def on_train_begin(self, args, state, control, **kwargs):
        if state.global_step == 0 and not (Path(args.output_dir) / "checkpoint-0").exists():
            self.trainer._save_checkpoint(self.trainer.model, None)

    def on_step_begin(self, args, state, control, **kwargs):
        if self.steps and state.global_step == self.steps[0]:
            self.steps.pop(0)
            raise KeyboardInterrupt


@pytest.mark.parametrize("seed", [None, 5])
def test_no_training_anew_after_one_that_continued_without_a_step_of_its_own(tmp_path, seed):
    """The releases were made by the first training, and the second only knows of them."""
    stop = SaveFirstAndStop(4, 0)
    stop.trainer = made = trainer(
        tmp_path, privacy=privacy(seed), arguments_={"save_strategy": "no"}, callbacks=[stop]
    )
    with pytest.raises(KeyboardInterrupt):
        made.train()
    with pytest.raises(KeyboardInterrupt):
        made.train(resume_from_checkpoint=str(tmp_path / "checkpoint-0"))
    assert made.run.steps_done == 0
    assert counts(made) == (4 if seed is None else 0)  # with a seed they will be repeated
    with pytest.raises(RuntimeError, match="Expected one train"):
        made.train()
    again = trainer(tmp_path, privacy=privacy(seed), callbacks=[stop])
    stop.steps = [0]
    stop.trainer = again
    with pytest.raises(KeyboardInterrupt):  # in a process of its own
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-0"))
    with pytest.raises(RuntimeError, match="Expected one train"):
        again.train()


def test_an_older_checkpoint_counts_the_releases_that_followed_it(tmp_path):
    """Each checkpoint has a journal as long as it exists."""
    first = trainer(tmp_path, privacy=privacy(None), arguments_={"save_steps": 2}, callbacks=[Stop(5)])
    with pytest.raises(KeyboardInterrupt):
        first.train()
    again = trainer(tmp_path, privacy=privacy(None))
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert again.run.steps_done == 3  # one more: 3, 4 and 5 were made before
    assert counts(again) == 6
    assert 2.9 < again.epsilon() <= 3.0
    with pytest.raises(BudgetError, match="The budget pays for no step after step 2 of 6"):
        trainer(tmp_path, privacy=privacy(None)).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def test_a_checkpoint_without_its_ledger_is_refused(tmp_path, whole):
    folder = copied(whole, 3, tmp_path)
    (folder / "adamas.safetensors").unlink()
    made = trainer(tmp_path, privacy=privacy(5))
    for given in (True, str(folder)):
        with pytest.raises(FileNotFoundError, match=r"Expected adamas\.safetensors in .*without its ledger"):
            made.train(resume_from_checkpoint=given)
    folder = copied(whole, 6, tmp_path)
    (folder / "adamas.safetensors.journal").unlink()
    with pytest.raises(ValueError, match="journal"):
        made.train(resume_from_checkpoint=str(folder))
    with pytest.raises(FileNotFoundError, match="found none"):
        trainer(tmp_path / "empty", privacy=privacy(5)).train(resume_from_checkpoint=True)


class Until(TrainerCallback):
    """Replaces a method of the trainer after a step by one that raises, as Ctrl-C within it does."""

    def __init__(self, trainer, step, method):
        self.trainer, self.step, self.method = trainer, step, method

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            setattr(self.trainer, self.method, self.interrupted)

    def interrupted(self, *args, **kwargs):
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("method", "missing"),
    [("_save_optimizer_and_scheduler", r"adamas\.safetensors"), ("_save_rng_state", "trainer_state")],
)
def test_a_save_that_was_interrupted_is_refused_and_the_folder_before_counts_all(tmp_path, method, missing):
    first = trainer(tmp_path, privacy=privacy(None), arguments_={"save_steps": 2})
    first.add_callback(Until(first, 3, method))
    with pytest.raises(KeyboardInterrupt):
        first.train()
    made = trainer(tmp_path, privacy=privacy(None))
    with pytest.raises(FileNotFoundError, match=f"{missing}.*save was interrupted.*the one before"):
        made.train(resume_from_checkpoint=True)
    shutil.rmtree(tmp_path / "checkpoint-4")
    made.train(resume_from_checkpoint=True)
    assert made.run.steps_done == 4  # 3 and 4 were made twice
    assert counts(made) == 6


def test_a_state_of_the_rule_from_elsewhere_is_noticed(tmp_path, whole):
    folder = copied(whole, 3, tmp_path)
    shutil.copy(folder_of(whole, 6) / "optimizer.pt", folder)
    made = trainer(tmp_path, privacy=privacy(5))
    with pytest.raises(ValueError, match=r"optimizer\.pt to be the state of the rule.*another training"):
        made.train(resume_from_checkpoint=True)


def test_the_weights_come_from_the_file_with_the_ledger(tmp_path, whole):
    folder = copied(whole, 3, tmp_path)
    shutil.copy(folder_of(whole, 6) / "model.safetensors", folder)
    made = trainer(tmp_path, privacy=privacy(5))
    made.train(resume_from_checkpoint=True)
    assert torch.equal(weights(made.model), weights(whole.model))


def test_a_state_of_the_trainer_from_elsewhere_is_noticed(tmp_path, whole):
    folder = copied(whole, 3, tmp_path)
    state = (folder / "trainer_state.json").read_text()
    (folder / "trainer_state.json").write_text(state.replace('"global_step": 3', '"global_step": 2'))
    made = trainer(tmp_path, privacy=privacy(5))
    with pytest.raises(RuntimeError, match="Expected the trainer at step 3 of the run, found it at 2"):
        made.train(resume_from_checkpoint=True)
    assert made.run.steps_done == 3


def test_a_training_that_ended_within_an_epoch_makes_no_step_when_it_is_resumed(tmp_path):
    half = {"max_steps": 3, "save_steps": 3}  # of 6 in an epoch
    trainer(tmp_path, privacy=privacy(5), arguments_=half).train()
    again = trainer(tmp_path, privacy=privacy(5), arguments_=half)
    result = again.train(resume_from_checkpoint=True)
    assert result.global_step == again.run.steps_done == counts(again) == 3


def test_a_step_that_is_repeated_with_other_bits_says_so(tmp_path):
    """With a seed a step is made again. What differs would be charged, which the budget does not pay for."""
    first = trainer(tmp_path, privacy=privacy(5), callbacks=[Stop(5)])
    with pytest.raises(KeyboardInterrupt):
        first.train()
    again = trainer(tmp_path, privacy=privacy(5), arguments_={"label_smoothing_factor": 0.3})
    with pytest.raises(
        BudgetError, match=r"Step 4 was released before.*differs now.*restore what has changed"
    ):
        again.train(resume_from_checkpoint=True)
    assert again.epsilon() <= 3.0


@pytest.mark.parametrize(
    ("changes", "name"),
    [({"gradient_accumulation_steps": 3}, "batch_size"), ({"max_steps": 7}, "steps")],
)
def test_other_settings_are_refused(tmp_path, whole, changes, name):
    copied(whole, 3, tmp_path)
    made = trainer(tmp_path, privacy=privacy(5), arguments_=changes)
    with pytest.raises(ValueError, match=f"{name}="):
        made.train(resume_from_checkpoint=True)


def test_checkpoints_that_are_rotated_away_break_nothing(tmp_path, whole):
    made = trainer(
        tmp_path, privacy=privacy(5), arguments_={"save_steps": 1, "save_total_limit": 2}, callbacks=[Stop(6)]
    )
    with pytest.raises(KeyboardInterrupt):
        made.train()
    assert {one.name for one in tmp_path.glob("checkpoint-*")} == {"checkpoint-4", "checkpoint-5"}
    resumed = trainer(tmp_path, privacy=privacy(5))
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert torch.equal(weights(resumed.model), weights(whole.model))
    assert resumed.run.ledger.entries == whole.run.ledger.entries


def test_a_checkpoint_of_the_model_alone_cannot_be_resumed(tmp_path):
    made = trainer(tmp_path, privacy=privacy(5), arguments_={"save_only_model": True, "max_steps": 3})
    made.train()
    assert (tmp_path / "checkpoint-3" / "model.safetensors").exists()
    with pytest.raises(FileNotFoundError, match=r"adamas\.safetensors"):
        trainer(tmp_path, privacy=privacy(5)).train(resume_from_checkpoint=True)


def test_a_secret_seed_is_in_no_file(tmp_path):
    """The arguments' public seed does not decide the noise."""
    once = {"max_steps": 1, "warmup_steps": 0}
    made = [trainer(tmp_path / str(i), privacy=privacy(None), arguments_=once) for i in range(2)]
    for one in made:
        one.train()
    assert made[0].args.seed == made[1].args.seed
    assert not torch.equal(weights(made[0].model), weights(made[1].model))
    assert not torch.equal(weights(made[0].model), weights(bert()))
    assert arguments(tmp_path).seed == 42
    assert len(labelled()) == 24
