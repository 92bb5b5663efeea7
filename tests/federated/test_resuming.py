"""A stopped training resumes from its folder, and what it asked before stays charged."""

import pytest
import torch
from safetensors.torch import load_file

from adamas.federated.task import make_task
from adamas.federated.training import train
from tests.support.federated_runs import blobs, lines, run, saved_state


class Stop(Exception):
    pass


def stop_after(round, settings, out):
    """Trains until `round` is finished, and then stops."""

    def stop(line):
        if line["round"] == round:
            raise Stop

    with pytest.raises(Stop):
        run(settings, out, progress=stop)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["dp-fedadamw", "dp-fedopt", "dp-fafed"])
def test_a_resumed_training_equals_one_that_was_never_stopped(algorithm, tmp_path):
    settings = blobs(algorithm=algorithm)
    whole = run(settings, tmp_path / "whole")
    stop_after(2, settings, tmp_path / "parts")
    assert not (tmp_path / "parts" / "result.json").exists()
    with (tmp_path / "parts" / "rounds.jsonl").open("a") as file:
        file.write('{"round": 3, "ans')  # a truncated line
    parts = run(settings, tmp_path / "parts")
    assert parts == whole
    assert [line["round"] for line in lines(tmp_path / "parts")] == [1, 2, 3]
    mine, others = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(mine[name], others[name]) for name in mine)


def test_the_folder_of_a_different_or_finished_training_is_refused(tmp_path):
    stop_after(1, blobs(), tmp_path)
    with pytest.raises(ValueError, match=r"local_steps=3.*has one with 2"):
        run(blobs(local_steps=3), tmp_path)
    run(blobs(), tmp_path)
    with pytest.raises(ValueError, match="without a finished training"):
        run(blobs(), tmp_path)


def test_a_training_whose_clients_keep_state_cannot_be_resumed(tmp_path):
    stop_after(1, blobs(algorithm="dp-scaffold"), tmp_path)
    with pytest.raises(ValueError, match="clients of dp-scaffold keep state that a restart does not find"):
        run(blobs(algorithm="dp-scaffold"), tmp_path)


class Broken:
    """A transport that fails when clients are asked."""

    def sizes(self):
        return [40, 41, 42, 43]

    def ask(self, clients, records, round):
        raise Stop


def test_a_round_is_charged_on_disk_before_clients_are_asked_and_the_budget_holds(tmp_path):
    settings = blobs(participation=1.0)
    task = make_task(settings)
    for times in (1, 2):
        with pytest.raises(Stop):
            train(settings, task, tmp_path, sizes=[40, 41, 42, 43], connect=lambda _: Broken())
        assert saved_state(tmp_path)["asked"] == [times] * 4
    result = run(settings, tmp_path)
    assert [line["round"] for line in lines(tmp_path)] == [3]  # the two failed rounds are lost
    assert (result["rounds"], result["lost_rounds"]) == (3, 2)
    assert result["rounds_asked"] == [3] * 4
    assert result["epsilon"] == pytest.approx(settings.plan([40]).epsilon(1.0))


def test_a_damaged_state_is_refused(tmp_path):
    stop_after(1, blobs(), tmp_path)
    file = tmp_path / "state.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"state.safetensors is damaged .* also count what was released"):
        run(blobs(), tmp_path)


@pytest.mark.slow
def test_a_training_with_other_clients_cannot_be_resumed(tmp_path):
    settings = blobs(noise_multiplier=None, epsilon=3.0)
    with pytest.raises(Stop):
        train(settings, make_task(settings), tmp_path, sizes=Broken().sizes(), connect=lambda _: Broken())
    with pytest.raises(ValueError, match=r"state with sizes=\[400, 400, 400, 400\], got \[40, 41, 42, 43\]"):
        train(settings, make_task(settings), tmp_path, sizes=[400] * 4, connect=lambda _: Broken())


def test_two_trainings_cannot_share_a_folder(tmp_path):
    def again(line):
        run(blobs(), tmp_path)

    with pytest.raises(RuntimeError, match="Another training is writing to"):
        run(blobs(), tmp_path, progress=again)
