"""Trackers get no gradients without noise, and no checkpoint that holds a given seed."""

import pytest

pytest.importorskip("transformers")

from transformers import TrainerCallback

from adamas.errors import UnsupportedError
from adamas.integrations.transformers.trackers import UPLOADS
from tests.support.tiny_trainers import PRIVACY, arguments, trainer

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """Weights & Biases, writing to a folder."""
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    yield monkeypatch
    wandb.finish()


@pytest.mark.parametrize("watched", ["gradients", "parameters", "all"])
def test_passes_of_the_model_are_not_watched(tmp_path, offline, watched):
    offline.setenv("WANDB_WATCH", watched)
    with pytest.raises(UnsupportedError, match=f"Expected no WANDB_WATCH='{watched}'"):
        trainer(tmp_path, arguments_={"report_to": "wandb"})
    trainer(tmp_path)  # of a tracker that is not used


def test_gradients_without_noise_are_not_watched(tmp_path, offline):
    import wandb

    made = trainer(tmp_path)
    with wandb.init(mode="offline", dir=tmp_path):
        wandb.watch(made.model, log="gradients")
        with pytest.raises(UnsupportedError, match=r"gradient hook.*without noise.*wandb\.watch"):
            made.train()
    with pytest.raises(RuntimeError, match="Expected a training in progress"):
        print(made.run)  # none was made


def test_checkpoints_that_are_uploaded_hold_no_seed(tmp_path, offline):
    offline.setenv("WANDB_LOG_MODEL", "checkpoint")
    watched = {"report_to": "wandb"}
    with pytest.raises(UnsupportedError, match="no seed in Privacy with WANDB_LOG_MODEL='checkpoint'"):
        trainer(tmp_path, arguments_=watched)
    trainer(tmp_path, arguments_=watched, privacy=PRIVACY | {"seed": None})
    offline.setenv("WANDB_LOG_MODEL", "end")  # the model alone
    trainer(tmp_path, arguments_=watched)


@pytest.mark.parametrize("name", UPLOADS)
def test_every_tracker_that_uploads_checkpoints_is_known(tmp_path, monkeypatch, name):
    from transformers.integrations import integration_utils

    variable, default, uploading = UPLOADS[name]
    assert issubclass(getattr(integration_utils, name), TrainerCallback)
    tracker = type(name, (TrainerCallback,), {})  # the package of the real one is not installed
    monkeypatch.setenv(variable, max(uploading).upper())
    with pytest.raises(UnsupportedError, match=f"no seed in Privacy with {variable}="):
        trainer(tmp_path, callbacks=[tracker()])
    monkeypatch.setenv(variable, "false")
    made = trainer(tmp_path, callbacks=[tracker()])
    monkeypatch.delenv(variable)
    made.args = arguments(tmp_path)
    if default == "true":
        with pytest.raises(UnsupportedError, match="no seed in Privacy"):
            made.train()
    else:
        made._check()
