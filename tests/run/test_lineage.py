"""Going back to another file of a run counts what every run of its lineage has released."""

import gc
import json
import math

import dp_accounting
import pytest
import torch

import adamas
from adamas.run.siblings import siblings_of, write_siblings
from tests.support.small_runs import make_data, make_run
from tests.support.stopped_runs import counted


def advance(run, to):
    """Trains until a step is done."""
    for step in run:
        if step.number == to:
            break


def die(run):
    """Ends a run as its process would, and returns nothing."""
    del run
    gc.collect()


def first_life(folder, **options):
    """Saves a run at steps 2 and 4, and dies after step 5. Returns the two files."""
    files = [folder / "early.safetensors", folder / "late.safetensors"]
    run = make_run(steps=12, **options)
    for step, file in zip((2, 4), files, strict=True):
        advance(run, step)
        run.save(file)
    advance(run, 5)
    die(run)
    return files


@pytest.mark.parametrize("order", [(1, 0), (0, 1)], ids=["newer, then older", "older, then newer"])
def test_a_file_knows_what_was_released_after_another_file_was_continued(tmp_path, order):
    """The second life makes four more releases; both lives and the third are in one ledger."""
    files = first_life(tmp_path, seed=None)
    second = adamas.load(files[order[0]], make_run(steps=12, seed=None))
    before = sum(counted(second).values())
    assert before == 5
    advance(second, second.steps_done + 4)
    assert sum(counted(second).values()) == 9
    die(second)
    del second
    third = adamas.load(files[order[1]], make_run(steps=12, seed=None))
    assert sum(counted(third).values()) == 9
    advance(third, third.steps_done + 1)
    event = dp_accounting.PoissonSampledDpEvent(12 / 60, dp_accounting.GaussianDpEvent(1.0))
    exact = adamas.Ledger.of([(event, 10)], third.ledger.relation)
    assert math.isclose(third.epsilon(), exact.epsilon(1e-3), rel_tol=1e-9)


def test_a_budget_holds_over_all_continuations(tmp_path):
    options = {"seed": None, "epsilon": 3.0, "noise_multiplier": None}
    files = first_life(tmp_path, **options)
    released = 5
    for file in (files[1], files[0], files[1], files[0]):
        run = adamas.load(file, make_run(steps=12, **options))
        start = run.steps_done
        for step in run:
            released += 1
            if step.number == start + 2:
                break
        assert sum(counted(run).values()) == released
        assert run.epsilon() <= 3.0
        die(run)
        del run
    assert released <= 12


def test_with_a_seed_no_noise_is_used_for_two_sums(tmp_path):
    files = first_life(tmp_path, seed=7)
    second = adamas.load(files[1], make_run(steps=12, seed=7))
    released = {}
    for step in second:
        released[step.number] = step.release
        if step.number == 9:
            break
    names = [name for name, _ in second.model.named_parameters()]
    seconds = {n: [r.mean[p] for p in r.mean] for n, r in released.items()}
    die(second)
    del second
    x, y = make_data().tensors
    changed = torch.utils.data.TensorDataset(torch.where(torch.arange(60)[:, None] == 3, -x, x), y)
    third = adamas.load(files[0], make_run(steps=12, seed=7, data=changed))
    for step in third:
        if step.number in seconds:
            for name, a, b in zip(names, seconds[step.number], step.release.mean.values(), strict=True):
                noise = 1.0 / 12
                distance = float((a - b).norm()) / math.sqrt(2 * a.numel())
                assert distance > 0.2 * noise, (step.number, name)  # equal noise leaves the sums' difference
        if step.number == 9:
            break
    joint = [event for event in counted(third) if "ComposedDpEvent" in event]
    assert sum(counted(third)[event] for event in joint) == 7  # two releases on each batch from step 3 on


def test_with_a_seed_a_finished_step_with_another_release_is_refused(tmp_path):
    files = first_life(tmp_path, seed=7)
    x, y = make_data().tensors
    second = adamas.load(files[0], make_run(steps=12, seed=7, data=torch.utils.data.TensorDataset(-x, y)))
    advance(second, 6)
    die(second)
    del second
    third = make_run(steps=12, seed=7)
    with pytest.raises(ValueError, match="older file"):
        adamas.load(files[1], third)
    with pytest.raises(RuntimeError):
        advance(third, 5)


def test_with_a_seed_the_same_steps_count_once_over_all_files(tmp_path):
    files = first_life(tmp_path, seed=7)
    for file in (files[0], files[1], files[0]):
        run = adamas.load(file, make_run(steps=12, seed=7))
        advance(run, 8)
        assert sum(counted(run).values()) == 8
        assert not any("ComposedDpEvent" in event for event in counted(run))
        die(run)
        del run


def test_a_run_that_is_alive_keeps_its_first_file(tmp_path):
    files = [tmp_path / "early.safetensors", tmp_path / "late.safetensors"]
    run = make_run(steps=12, seed=None)
    for step, file in zip((2, 4), files, strict=True):
        advance(run, step)
        run.save(file)
    other = adamas.load(files[0], make_run(steps=12, seed=None))
    advance(other, 3)
    advance(run, 6)
    assert sum(counted(run).values()) == 6


def test_a_deleted_sibling_is_forgotten(tmp_path):
    files = first_life(tmp_path, seed=None)
    for path in tmp_path.glob("early*"):
        path.unlink()
    run = adamas.load(files[1], make_run(steps=12, seed=None))
    advance(run, 6)
    run.save(tmp_path / "third.safetensors")
    assert siblings_of(files[1]) == [tmp_path / "third.safetensors"]


def test_a_sibling_that_another_run_has_replaced_is_left_alone(tmp_path):
    files = first_life(tmp_path, seed=None)
    for path in tmp_path.glob("early*"):
        path.unlink()
    foreign = make_run(steps=12, seed=None)
    foreign.save(files[0])
    run = adamas.load(files[1], make_run(steps=12, seed=None))
    advance(run, 6)
    advance(foreign, 2)
    assert sum(counted(foreign).values()) == 2
    die(foreign)
    del foreign
    assert sum(counted(adamas.load(files[0], make_run(steps=12, seed=None))).values()) == 2


def test_files_that_were_moved_together_find_one_another(tmp_path):
    old = tmp_path / "old"
    old.mkdir()
    first_life(old, seed=None)
    new = old.rename(tmp_path / "new")
    second = adamas.load(new / "late.safetensors", make_run(steps=12, seed=None))
    advance(second, 8)
    die(second)
    del second
    third = adamas.load(new / "early.safetensors", make_run(steps=12, seed=None))
    assert sum(counted(third).values()) == 9


def test_one_file_has_no_list_and_a_damaged_list_is_refused(tmp_path):
    run = make_run(seed=None)
    run.save(tmp_path / "run.safetensors")
    assert not list(tmp_path.glob("*.siblings"))
    (tmp_path / "run.safetensors.siblings").write_text("{")
    die(run)
    del run
    other = make_run(seed=None)
    with pytest.raises(ValueError, match="siblings"):
        adamas.load(tmp_path / "run.safetensors", other)
    with pytest.raises(RuntimeError):  # it does not know whom it must tell
        advance(other, 1)


def test_a_list_names_the_others_beside_each_file(tmp_path):
    paths = [tmp_path / "a" / "run", tmp_path / "b" / "run"]
    for path in paths:
        path.parent.mkdir()
        path.touch()
    write_siblings(paths)
    assert json.loads((tmp_path / "a" / "run.siblings").read_text())[0][0] == "../b/run"
    assert siblings_of(paths[0]) == [paths[1]]
    paths[1].unlink()
    assert siblings_of(paths[0]) == []
