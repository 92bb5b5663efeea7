"""Trackers write the public metrics of a run, with the real packages."""

import math
import sys

import pytest

from adamas.callbacks import MLflow, TensorBoard, WandB
from tests.support.small_runs import finish, make_run

NAMES = {
    f"private/{name}"
    for name in (
        *("epoch", "epsilon", "delta", "noise_multiplier", "lr"),
        *("release_norm", "noise_norm", "signal_to_noise"),
    )
}


class Recording:
    """Stands for a run of Weights & Biases."""

    def __init__(self):
        self.logged = []

    def log(self, metrics, step):
        self.logged.append((step, metrics))


def test_a_tracker_writes_every_few_steps_and_at_the_end():
    recording = Recording()
    run = make_run(steps=7, callbacks=[WandB(recording, every=3)])
    finish(run)
    assert [step for step, _ in recording.logged] == [3, 6, 7]
    assert all(metrics.keys() == NAMES for _, metrics in recording.logged)
    assert recording.logged[-1][1]["private/epsilon"] == run.epsilon()


@pytest.mark.parametrize("stop_at", [2, 3, 5])
@pytest.mark.parametrize("by", ["callback", "loop"])
def test_the_last_entry_of_a_stopped_run_has_all_that_it_spent(stop_at, by):
    def stop(run, step):
        if step.number == stop_at and by == "callback":
            run.stop()

    recording = Recording()
    run = make_run(steps=7, callbacks=[WandB(recording, every=3), stop])
    for step in run:
        if step.number == stop_at and by == "loop":
            run.stop()
    assert [number for number, _ in recording.logged] == sorted({*range(3, stop_at, 3), stop_at})
    assert recording.logged[-1][1]["private/epsilon"] >= run.epsilon()


@pytest.mark.parametrize("stops", [True, False])
def test_the_last_entry_before_a_break_has_all_that_was_spent(stops):
    recording = Recording()
    run = make_run(steps=7, callbacks=[WandB(recording, every=3)])
    for step in run:
        if step.number == 4:
            if stops:
                run.stop()
            break
    assert [number for number, _ in recording.logged] == [3, 4]
    assert recording.logged[-1][1]["private/epsilon"] >= run.epsilon()
    finish(run)  # goes on
    assert [number for number, _ in recording.logged] == [3, 4, 6, 7]


def test_infinite_numbers_are_left_out():
    recording = Recording()
    finish(make_run(noise_multiplier=0.0, steps=1, callbacks=[WandB(recording)]))
    names = {name.partition("/")[2] for name in recording.logged[0][1]}
    assert names == {name.partition("/")[2] for name in NAMES} - {"epsilon", "signal_to_noise"}


def test_numbers_of_a_run_without_noise_are_marked():
    for changes in ({"noise_multiplier": 0.0}, {"raw": True}):
        recording = Recording()
        finish(make_run(steps=1, callbacks=[WandB(recording)], **changes))
        assert all(name.startswith("NOT_PRIVATE/") for name in recording.logged[0][1])


def test_bad_settings_are_refused():
    with pytest.raises(TypeError, match=r"wandb\.init"):
        WandB(None)
    with pytest.raises(ValueError, match="every=0"):
        WandB(Recording(), every=0)


@pytest.mark.parametrize(("tracker", "module"), [(TensorBoard, "tensorboard"), (MLflow, "mlflow")])
def test_a_missing_package_is_named_with_its_extra(tracker, module, monkeypatch, tmp_path):
    for name in [*sys.modules]:
        if name.partition(".")[0] == module or name.startswith("torch.utils.tensorboard"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"adamas\[{module}\]"):
        tracker(str(tmp_path))


@pytest.mark.slow
def test_tensorboard_holds_the_metrics_of_each_step(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = make_run(callbacks=[TensorBoard(tmp_path, every=2)])
    finish(run)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert set(events.Tags()["scalars"]) == NAMES
    seen = events.Scalars("private/epsilon")
    assert [event.step for event in seen] == [2, 4, 6]
    assert run.epsilon() <= seen[-1].value <= run.epsilon() * (1 + 1e-6)
    assert all(event.value >= run.delta for event in events.Scalars("private/delta"))


@pytest.mark.slow
def test_single_precision_rounds_no_bound_down(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    given = {"private/epsilon": 2.4507415785483997, "private/delta": 1e-5}
    TensorBoard(tmp_path).write(given, 1)
    events = EventAccumulator(str(tmp_path)).Reload()
    for name, value in given.items():
        assert value <= events.Scalars(name)[0].value <= value * (1 + 1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the package's own
def test_wandb_takes_the_metrics_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with wandb.init(mode="offline", dir=tmp_path, project="adamas") as logging:
        run = make_run(callbacks=[WandB(logging)])
        finish(run)
        assert logging.summary["private/epsilon"] == pytest.approx(run.epsilon())
        assert logging.step in (6, 7)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the package's own
def test_mlflow_holds_the_metrics_of_each_step(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    with mlflow.start_run() as active:
        run = make_run(callbacks=[MLflow(every=3)])
        finish(run)
    history = mlflow.MlflowClient().get_metric_history(active.info.run_id, "private/epsilon")
    assert [entry.step for entry in history] == [3, 6]
    assert math.isclose(history[-1].value, run.epsilon())
