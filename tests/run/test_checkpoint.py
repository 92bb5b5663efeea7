"""Runs that are saved, die, and go on: nothing is lost, nothing is spent without a record."""

import errno
import json
import os
import random
import shutil
import time
from pathlib import Path

import dp_accounting
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

import adamas
from adamas import rules
from adamas._storage import archive as _archive
from adamas._storage.archive import read_archive, write_archive
from adamas.accounting.journal import Journal, Release, _records
from adamas.engines import ENGINES
from adamas.privatize import privatize
from adamas.run import checkpoint
from tests.support.processes import fork_server
from tests.support.small_runs import N, finish, make_data, make_model, make_run
from tests.support.stopped_runs import counted, parameters, stopped


def journaled(file):
    """The releases in a checkpoint's journal, those of each process."""
    path = Journal(file).path
    return _records(path.read_bytes(), path)[0]


# --- resuming -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", rules.RULES)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_from_a_file_is_bit_equal(name, engine, tmp_path):
    def fresh():
        model = make_model()
        rule = rules.RULES[name](model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(rule, T_max=6)
        return make_run(model, rule, scheduler=scheduler, ema=0.9, engine=engine, micro_batch_size=5)

    whole = fresh()
    expected = finish(whole)
    stopped(fresh_run := fresh(), 3).save(tmp_path / "run.safetensors")
    resumed = adamas.load(tmp_path / "run.safetensors", fresh())
    assert resumed.steps_done == 3
    assert torch.equal(parameters(resumed), parameters(fresh_run))
    assert torch.equal(finish(resumed), expected)
    assert resumed.ledger.entries == whole.ledger.entries
    assert resumed.epsilon() == whole.epsilon()
    for p, q in zip(resumed.ema_model.parameters(), whole.ema_model.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("after", range(6))
@pytest.mark.parametrize("sampling", ["poisson", "truncated-poisson", "shuffled"])
def test_a_run_resumes_from_any_step(after, sampling, tmp_path):
    def fresh():
        return make_run(sampling=sampling, max_batch_size=20 if sampling == "truncated-poisson" else None)

    run = fresh()
    if after:
        stopped(run, after)
    run.save(tmp_path / "run.safetensors")
    assert torch.equal(finish(adamas.load(tmp_path / "run.safetensors", fresh())), finish(fresh()))


def test_tied_weights_and_other_types_of_numbers_survive(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(5, 5, bias=False).double()
            self.second = self.first

        def forward(self, x):
            return self.second(torch.tanh(self.first(x.double())))[:, :2]

    def fresh():
        torch.manual_seed(0)
        return make_run(Tied())

    stopped(fresh(), 2).save(tmp_path / "run.safetensors")
    resumed = adamas.load(tmp_path / "run.safetensors", fresh())
    assert resumed.model.second.weight is resumed.model.first.weight
    assert torch.equal(finish(resumed), finish(fresh()))


def test_a_saved_run_goes_on_unchanged(tmp_path):
    run = stopped(make_run(), 2)
    run.save(tmp_path / "run.safetensors")
    assert torch.equal(finish(run), finish(make_run()))


# --- automatic checkpoints ------------------------------------------------------------------------------


def test_automatic_checkpoints_come_when_they_should(tmp_path, monkeypatch):
    file = tmp_path / "new" / "run.safetensors"
    saved = []
    save = checkpoint.Checkpoints.save
    monkeypatch.setattr(
        checkpoint.Checkpoints,
        "save",
        lambda self, state: (saved.append(state["spending"]["steps_done"]), save(self, state)),
    )
    run = make_run(steps=7, checkpoint=file, checkpoint_every=3)
    expected = finish(make_run(steps=7))
    assert torch.equal(finish(run), expected)
    assert saved == [0, 3, 6, 7]
    assert journaled(file) == []
    again = make_run(steps=7, checkpoint=file, checkpoint_every=3, resume=True)
    assert again.steps_done == 7
    assert list(again) == []
    assert torch.equal(parameters(again), expected)


def test_a_run_that_stopped_resumes_by_the_same_call(tmp_path):
    def fresh():
        return make_run(checkpoint=tmp_path / "run.safetensors", checkpoint_every=2, resume=True)

    assert fresh().steps_done == 0  # there is no file yet
    stopped(fresh(), 5)
    resumed = fresh()
    assert resumed.steps_done == 4
    assert torch.equal(finish(resumed), finish(make_run()))
    assert resumed.ledger.entries == make_finished().ledger.entries


def make_finished():
    run = make_run()
    finish(run)
    return run


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"checkpoint": "x"}, "checkpoint_every=None"),
        ({"checkpoint_every": 3}, "checkpoint=None"),
        ({"resume": True}, "checkpoint with resume=True"),
        ({"checkpoint": "x", "checkpoint_every": 0}, "checkpoint_every=0"),
    ],
)
def test_wrong_arguments(changes, message):
    with pytest.raises(ValueError, match=message):
        make_run(**changes)


def test_an_existing_file_is_neither_overwritten_nor_continued_by_accident(tmp_path):
    file = tmp_path / "run.safetensors"
    stopped(make_run(), 2).save(file)
    before = file.read_bytes()
    with pytest.raises(ValueError, match=r"checkpoint=.*resume=True"):
        make_run(checkpoint=file, checkpoint_every=1)
    assert file.read_bytes() == before


# --- crashes --------------------------------------------------------------------------------------------

STEPS = 2 * 150  # more than fifty short lives make


def live(folder, seed, ready):
    """One life of a run: continues it, and notes each release after it was made."""
    torch.set_num_threads(1)
    run = make_run(
        steps=STEPS,
        seed=seed,
        checkpoint=Path(folder) / "run.safetensors",
        checkpoint_every=4,
        resume=True,
    )
    with (Path(folder) / "made").open("ab", buffering=0) as made:
        for number, step in enumerate(run):
            made.write(step.number.to_bytes(4, "big"))
            if number == 0:
                ready.set()
    np.save(Path(folder) / "end.npy", parameters(run).numpy())
    (Path(folder) / "ledger.json").write_text(json.dumps(run.ledger.state_dict()))
    ready.set()


def recorded(folder, seed):
    """How many releases the files know after a death."""
    content = read_archive(folder / "run.safetensors", "checkpoint", 2)
    state = content["state"]["spending"]
    ledger = adamas.Ledger()
    ledger.load_state_dict(state["ledger"])
    again = {step for step, *_ in state["to_record"]}
    begun = Journal(folder / "run.safetensors").token() == content["journal"]
    parts = journaled(folder / "run.safetensors") if begun else []
    lost = [release.step for part in parts for release in part]
    repeated = len(again | set(lost)) if seed is not None else len(lost)
    return sum(count for _, count in ledger.entries) + repeated, state["steps_done"]


@pytest.mark.kills
@pytest.mark.parametrize("seed", [3, None])
def test_fifty_kills_lose_neither_the_run_nor_a_release(seed, tmp_path):
    """Each process is killed as `kill -9` does, at a random moment after its first step.

    With a given seed the end is that of a run that nobody killed, bit for bit. Without one steps are made
    again with other noise, and every release of every life is in the ledger.
    """
    context = fork_server()
    moments = random.Random(0)
    kills = 0
    while not (tmp_path / "end.npy").exists():
        ready = context.Event()
        process = context.Process(target=live, args=(str(tmp_path), seed, ready))
        process.start()
        assert ready.wait(60), "no step in a minute"
        if kills < 50:
            time.sleep(moments.uniform(0, 0.02))
            process.kill()
        process.join(60)
        kills += process.exitcode == -9
        made = (tmp_path / "made").stat().st_size // 4
        known, done = recorded(tmp_path, seed)
        if seed is None:
            assert known >= made
        else:
            numbers = np.frombuffer((tmp_path / "made").read_bytes(), dtype=">u4")
            assert known >= numbers.max()
            assert done <= numbers.max()
    assert kills == 50
    ledger = adamas.Ledger()
    ledger.load_state_dict(json.loads((tmp_path / "ledger.json").read_text()))
    total = sum(count for _, count in ledger.entries)
    if seed is None:
        assert total >= made > STEPS
    else:
        assert total == STEPS
        whole = finish(make_run(steps=STEPS, seed=seed))
        assert np.array_equal(np.load(tmp_path / "end.npy"), whole.numpy())


def test_what_a_run_without_a_seed_lost_is_charged(tmp_path):
    file = tmp_path / "run.safetensors"
    run = make_run(seed=None)
    stopped(run, 2).save(file)
    for batch in run.batches():  # two releases on each batch, and then it dies
        run.privatize(batch)
        run.privatize(batch)
        if batch.step == 3:
            break
    resumed = adamas.load(file, make_run(seed=None))
    assert resumed.steps_done == 2
    assert counted(resumed) == counted(run)
    assert resumed.epsilon() == pytest.approx(run.epsilon(), rel=1e-9)


@pytest.mark.slow
def test_a_budget_holds_across_crashes(tmp_path):
    """A run without a seed that makes steps again ends before its budget, not after it."""
    arguments = {"seed": None, "noise_multiplier": None, "epsilon": 2.0, "accountant": "rdp"}
    file = tmp_path / "run.safetensors"
    run = make_run(**arguments)
    run.save(file)
    stopped(run, 4)
    resumed = adamas.load(file, make_run(**arguments))
    assert resumed.steps == 2  # what is left of the budget
    finish(resumed)
    assert resumed.steps_done == 2
    assert sum(count for _, count in resumed.ledger.entries) == 6
    assert resumed.epsilon() <= 2.0


def test_a_release_that_is_not_repeated_is_charged(tmp_path):
    file = tmp_path / "run.safetensors"
    run = make_run()
    run.save(file)
    for batch in run.batches():  # two releases on the first batch, and then it dies
        run.privatize(batch)
        run.privatize(batch)
        break
    spent = run.epsilon()
    resumed = adamas.load(file, make_run())
    assert resumed.epsilon() == spent
    stopped(resumed, 1)
    assert resumed.epsilon() >= spent
    finish(resumed)  # makes one release on each batch
    event, count = resumed.ledger.entries[0]
    assert (len(event.event.events), count) == (2, 1)
    assert sum(count for _, count in resumed.ledger.entries) == 6


def test_lives_without_a_checkpoint_between_them_are_the_same_steps(tmp_path):
    file = tmp_path / "run.safetensors"
    run = make_run()
    run.save(file)
    spent = stopped(run, 3).epsilon()
    stopped(adamas.load(file, make_run()), 2)
    resumed = adamas.load(file, make_run())
    assert resumed.epsilon() == spent
    finish(resumed)
    assert resumed.epsilon() == make_finished().epsilon()
    assert [[release.step for release in part] for part in journaled(file)] == [[0, 1, 2], [3, 4, 5]]


def test_a_second_crash_does_not_forget_the_first(tmp_path):
    def fresh():
        return make_run(checkpoint=tmp_path / "run.safetensors", checkpoint_every=6, resume=True)

    run = stopped(fresh(), 4)
    spent = run.epsilon()
    stopped(fresh(), 1)
    resumed = fresh()
    assert resumed.steps_done == 0
    assert resumed.epsilon() >= spent
    finish(resumed)
    assert resumed.epsilon() == make_finished().epsilon()


@pytest.mark.parametrize("name", ["run", "copy"])
def test_a_copy_by_hand_leaves_no_file_without_its_journal(name, tmp_path):
    run = make_run(seed=None, steps=9, checkpoint=tmp_path / "run", checkpoint_every=4)
    stopped(run, 2)
    run.save(tmp_path / "copy")
    stopped(run, 3)
    resumed = adamas.load(tmp_path / name, make_run(seed=None, steps=9))
    assert counted(resumed) == counted(run)
    finish(run)
    assert adamas.load(tmp_path / "run", make_run(seed=None, steps=9)).steps_done == 9


def test_steps_that_come_out_otherwise_are_charged_even_with_a_seed(tmp_path):
    file = tmp_path / "run.safetensors"
    run = make_run()
    run.save(file)
    stopped(run, 2)
    resumed = adamas.load(file, make_run())
    assert resumed.ledger.entries == []
    assert resumed.epsilon() == run.epsilon()  # it may be the same steps, and they were made
    with torch.no_grad():
        next(resumed.model.parameters()).mul_(1 + 1e-6)  # as another version of torch might round
    stopped(resumed, 2)
    ((event, count),) = resumed.ledger.entries
    assert (len(event.event.events), count) == (2, 2)


def test_the_journal_is_on_disk_before_the_noise_is_drawn(tmp_path, monkeypatch):
    file = tmp_path / "run.safetensors"
    run = make_run()
    run.save(file)
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (synced.append(handle), fsync(handle)))
    for name in ("normal_", "add_normal_"):
        original = getattr(type(run.noise), name)

        def seen(self, *arguments, original=original, **options):
            assert len(journaled(file)) == 1
            assert synced
            return original(self, *arguments, **options)

        monkeypatch.setattr(type(run.noise), name, seen)
    stopped(run, 1)
    ((release,),) = journaled(file)
    assert release[:2] == (0, 1.0)


def test_a_torn_record_was_not_followed_by_a_release(tmp_path):
    journal = Journal(tmp_path / "run.safetensors")
    token = journal.restart()
    journal.append([Release(0, 1.0), Release(1, 1.5)])
    with journal.path.open("ab") as file:
        file.write(b"torn")
    other = Journal(tmp_path / "run.safetensors")  # of the next process
    assert other.read(token) == [[Release(0, 1.0), Release(1, 1.5)]]
    other.append([Release(1, 1.5)])
    assert journaled(tmp_path / "run.safetensors") == [[Release(0, 1.0), Release(1, 1.5)], [Release(1, 1.5)]]
    with journal.path.open("ab") as file:
        file.write(bytes(200))  # a loss of power may leave room without content
    assert len(journaled(tmp_path / "run.safetensors")) == 2


# --- full disks and damaged files -----------------------------------------------------------------------


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    file = tmp_path / "run.safetensors"
    run = stopped(make_run(), 2)
    run.save(file)
    before = file.read_bytes()
    stopped(run, 3)
    write = _archive.save_file

    def full(tensors, path, metadata):
        write(tensors, path, metadata)
        Path(path).write_bytes(Path(path).read_bytes()[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(_archive, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        run.save(file)
    monkeypatch.undo()
    assert file.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.safetensors", "run.safetensors.journal"]
    shutil.copytree(tmp_path, tmp_path / "copy")
    resumed = adamas.load(tmp_path / "copy" / file.name, make_run())
    assert torch.equal(finish(resumed), finish(make_run()))
    run.save(file)  # there is space again
    assert torch.equal(finish(run), finish(make_run()))


@pytest.mark.parametrize("fault", ["none", "part", "sync"])
def test_without_a_journal_nothing_is_released(tmp_path, monkeypatch, fault):
    file = tmp_path / "run.safetensors"
    run = make_run()
    run.save(file)
    before = parameters(run)
    write = os.pwrite

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    if fault == "sync":
        monkeypatch.setattr(os, "fsync", full)
    else:
        some = (lambda handle, data, at: write(handle, data[:10], at)) if fault == "part" else full
        monkeypatch.setattr(os, "pwrite", some)
    with pytest.raises(OSError, match=r"[Nn]o space|disk full"):
        finish(run)
    monkeypatch.undo()
    assert run.ledger.entries == []
    assert run.noise.draws == 0
    assert torch.equal(parameters(run), before)
    assert torch.equal(finish(run), finish(make_run()))


@pytest.fixture(scope="module")
def whole_file(tmp_path_factory):
    file = tmp_path_factory.mktemp("checkpoint") / "run.safetensors"
    stopped(make_run(), 2).save(file)
    return file


def test_a_file_that_is_cut_short_is_refused(whole_file, tmp_path):
    data = whole_file.read_bytes()
    for length in [0, 1, 8, 100, len(data) // 2, len(data) - 1]:
        (tmp_path / "cut").write_bytes(data[:length])
        with pytest.raises(ValueError, match="damaged"):
            adamas.load(tmp_path / "cut", make_run())


def test_a_flipped_bit_is_noticed_wherever_it_is(whole_file, tmp_path):
    """300 random bits, and each bit of the length of the header: refused, or read as what was written.

    The header ends with spaces and may have an order that means nothing: only there a bit may pass.
    """
    data = whole_file.read_bytes()
    intact = read_archive(whole_file, "checkpoint", 2)
    places = [*range(64), *random.Random(0).sample(range(len(data) * 8), 300)]
    refused = 0
    for place in places:
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << (place % 8)
        (tmp_path / "flipped").write_bytes(flipped)
        try:
            content = read_archive(tmp_path / "flipped", "checkpoint", 2)
        except ValueError:
            refused += 1
        else:
            assert str(content) == str(intact)
    assert refused > 0.99 * len(places)


def test_a_damaged_file_leaves_the_run_as_it_was(whole_file, tmp_path):
    data = bytearray(whole_file.read_bytes())
    data[-3] ^= 4
    (tmp_path / "flipped").write_bytes(data)
    run = make_run()
    with pytest.raises(ValueError, match="digest"):
        adamas.load(tmp_path / "flipped", run)
    assert torch.equal(finish(run), finish(make_run()))


# --- files of something else ----------------------------------------------------------------------------


def test_other_files_are_refused_by_what_they_are(tmp_path, whole_file):
    with pytest.raises(FileNotFoundError, match="nothing-here"):
        adamas.load(tmp_path / "nothing-here", make_run())
    save_file({"weight": torch.zeros(2)}, tmp_path / "weights.safetensors")
    with pytest.raises(ValueError, match="to be a checkpoint of adamas"):
        adamas.load(tmp_path / "weights.safetensors", make_run())
    (tmp_path / "text").write_text("hello" * 100)
    with pytest.raises(ValueError, match="damaged"):
        adamas.load(tmp_path / "text", make_run())
    content = read_archive(whole_file, "checkpoint", 2)
    write_archive(tmp_path / "newer", "checkpoint", 3, content)
    with pytest.raises(ValueError, match="newer adamas"):
        adamas.load(tmp_path / "newer", make_run())
    write_archive(tmp_path / "older", "checkpoint", 0, content)
    with pytest.raises(ValueError, match="version of adamas that wrote it"):
        adamas.load(tmp_path / "older", make_run())


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: make_run(noise_multiplier=2.0), "noise_multiplier=2.0"),
        (lambda: make_run(steps=9), "steps=9"),
        (lambda: make_run(seed=8), "seed=8"),
        (lambda: make_run(data=make_data(N + 1)), "dataset_size=61"),
        (lambda: make_run(ema=0.9), "ema="),
        (lambda: make_run(nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 2))), "0.weight of shape"),
        (lambda: make_run(nn.Linear(5, 2)), "only one of them has weight"),
        (lambda: make_run(make_model(dtype=torch.float64), data=make_double()), "torch.float64"),
    ],
)
def test_another_run_or_model_is_refused_and_stays_as_it_was(whole_file, made, message):
    run = made()
    before = parameters(run)
    with pytest.raises(ValueError, match=message):
        adamas.load(whole_file, run)
    assert torch.equal(parameters(run), before)
    assert run.steps_done == 0
    assert run.checkpoints is None


def make_double():
    x, y = make_data().tensors
    return torch.utils.data.TensorDataset(x.double(), y)


def test_a_run_that_has_released_something_is_refused(whole_file):
    run = stopped(make_run(), 1)
    with pytest.raises(RuntimeError, match="released nothing"):
        adamas.load(whole_file, run)


# --- what is in a file ----------------------------------------------------------------------------------


def test_no_file_holds_anything_without_noise(tmp_path, monkeypatch):
    """Compares every saved tensor with the sums before the noise: none is a multiple of one."""
    file = tmp_path / "run.safetensors"
    clean = []

    def spy(*arguments, **options):
        silent = options | {"noise_multiplier": 0.0, "charge": lambda _: (), "raw": None}
        engines = list(arguments[0])
        clean.extend(privatize(engines, *arguments[1:], **silent).mean.values())
        return privatize(engines, *arguments[1:], **options)

    monkeypatch.setattr("adamas.run.loop.privatize", spy)
    run = make_run(raw=True, checkpoint=file, checkpoint_every=1, engine="loop")
    finish(run)
    content = read_archive(file, "checkpoint", 2)
    found = tensors_in(content)
    assert len(found) > 8
    assert len(clean) == 6 * 4

    def like(x, y):
        if x.shape != y.shape or x.numel() < 4:
            return False
        x, y = x.double().flatten(), y.double().flatten()
        return abs(float(x @ y)) > 0.9999 * float(x.norm() * y.norm()) > 0

    assert any(like(x, 3 * x) for x in found)
    assert not any(like(x, g) for x in found for g in clean)
    # Moments with raw=True are of gradients without noise, and are kept in memory alone.
    assert "raw" not in str(content["state"].keys())


def tensors_in(value):
    if isinstance(value, torch.Tensor):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else []
    return [tensor for item in inner for tensor in tensors_in(item)]


def test_a_secret_seed_is_in_no_file(tmp_path):
    file = tmp_path / "run.safetensors"
    run = make_run(seed=None, checkpoint=file, checkpoint_every=4)
    stopped(run, 5)
    secret = run.noise.seed._secret
    for path in tmp_path.iterdir():
        data = path.read_bytes()
        assert secret not in data
        assert secret.hex().encode() not in data
        assert str(int.from_bytes(secret, "big")).encode() not in data
    assert Journal(file).path.exists()


def test_a_file_says_which_packages_wrote_it(whole_file):
    versions = read_archive(whole_file, "checkpoint", 2)["versions"]
    assert versions["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert versions["adamas"] == adamas.__version__
    assert versions["threads"] == str(torch.get_num_threads())  # on which the last bits of sums depend
    assert versions["compiled"] in ("True", "False")


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(0, 9) | st.just("$tensor"), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(PLAIN)
def test_plain_data_comes_back_as_it_was(tmp_path_factory, value):
    file = tmp_path_factory.mktemp("archive") / "file"
    write_archive(file, "test", 1, {"value": value})
    assert read_archive(file, "test", 1) == {"value": value}


def test_what_is_no_data_is_refused_with_its_place(tmp_path):
    with pytest.raises(TypeError, match=r"function at content\['a'\]\[1\]"):
        write_archive(tmp_path / "file", "test", 1, {"a": [0, lambda: None]})
    assert list(tmp_path.iterdir()) == []


# --- more steps -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_extended_run_resumes_into_one_made_as_before(tmp_path):
    def fresh():
        return make_run(noise_multiplier=None, epsilon=1.0, accountant="rdp")

    def extended():
        run = fresh()
        finish(run)
        run.extend(steps=4, epsilon=2.0)
        return run

    expected = finish(extended())
    stopped(extended(), 8).save(tmp_path / "run.safetensors")
    resumed = adamas.load(tmp_path / "run.safetensors", fresh())
    assert (resumed.steps, resumed.steps_done, resumed.budget) == (10, 8, 2.0)
    assert torch.equal(finish(resumed), expected)
    assert 1.9 < resumed.epsilon() <= 2.0
    assert len(resumed.ledger.entries) == 2
    assert all(isinstance(event, dp_accounting.PoissonSampledDpEvent) for event, _ in resumed.ledger.entries)
