"""A private trainer spends what it may, and no more."""

import pytest

pytest.importorskip("transformers")

from transformers import EarlyStoppingCallback

from adamas import DataLedger
from tests.support.tiny_trainers import PRIVACY, labelled, trainer

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def test_a_budget_pays_for_all_planned_steps_and_is_not_exceeded(tmp_path):
    ours = trainer(tmp_path, privacy={"epsilon": 3.0, "accountant": "rdp"})
    result = ours.train()
    assert 2.9 < ours.epsilon() <= 3.0
    assert ours.epsilon() <= result.metrics["privacy_epsilon"] <= 3.0
    assert result.metrics["privacy_noise_multiplier"] == ours.run.noise_multiplier


def test_a_training_with_given_noise_ends_at_its_largest_epsilon(tmp_path):
    without = trainer(tmp_path / "without")
    without.train()
    ours = trainer(tmp_path / "with", privacy=PRIVACY | {"max_epsilon": without.epsilon() / 1.2})
    ours.train()
    assert 0 < ours.state.global_step == ours.run.steps_done < without.state.global_step
    assert ours.epsilon() <= without.epsilon() / 1.2
    assert ours.run.noise_multiplier == without.run.noise_multiplier


def test_the_ledger_of_the_data_set_gets_back_what_was_not_released(tmp_path):
    ledger = DataLedger.create(tmp_path / "data.ledger", epsilon=5.0, delta=1e-3, accountant="rdp")
    ours = trainer(
        tmp_path,
        privacy={"epsilon": 3.0, "delta": 1e-3, "accountant": "rdp", "data_ledger": ledger},
        eval_dataset=labelled(8, seed=9),
        callbacks=[EarlyStoppingCallback(1, early_stopping_threshold=1e9)],
        arguments_={
            **{"eval_strategy": "steps", "eval_steps": 1, "save_steps": 1},
            **{"load_best_model_at_end": True, "metric_for_best_model": "loss"},
        },
    )
    ours.train()
    assert ours.run.steps_done == 2 < ours.run.steps
    assert ledger.epsilon() == pytest.approx(ours.epsilon())
