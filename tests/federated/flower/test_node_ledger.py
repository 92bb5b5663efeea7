"""A node's ledger is charged before training, survives restarts, and is refused if damaged."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flwr.app import RecordDict

from adamas._words import rounded_up
from adamas.federated import ALGORITHMS
from adamas.federated.algorithm import Round
from adamas.federated.flower.node_config import NodeConfig, RefusedError
from adamas.federated.flower.node_ledger import node_ledger
from adamas.federated.settings import FederatedSettings
from tests.support import federated_blobs
from tests.support.federated_runs import blobs
from tests.support.flower_nodes import NOW, node, node_with_budget, trained
from tests.support.flower_requests import EXAMPLES, NOISE, REFUSED, Request, charged, reply_to


@pytest.mark.parametrize("where", ["in Flower's state", "in a file"])
def test_a_restarted_client_continues_its_ledger(where, tmp_path):
    settings = blobs(seed=None)
    config = {"ledger": str(tmp_path / "ledger.json")} if where == "in a file" else {}
    context = node(**config)
    trained(settings, context, round=Round(0, 3, 2))
    if where == "in a file":
        context = node(**config)  # as in another process or run: Flower's state is gone
    trained(settings, context)
    with node_ledger(NodeConfig.of(context.node_config).ledger, context.state) as kept:
        plan = settings.plan([federated_blobs.EXAMPLES])
        assert [count for _, count in kept.ledger.entries] == [2 * NOW.local_steps]
        assert kept.ledger.epsilon(1e-3, "rdp") == pytest.approx(plan.epsilon(1.0, rounds=2))


def test_a_round_is_charged_on_disk_before_the_data_are_touched(tmp_path, monkeypatch):
    file, seen = tmp_path / "ledger.json", tmp_path / "seen"

    def loss(model, batch):
        with seen.open("a") as notes:  # a loss may not keep state in memory
            notes.write(f"{json.loads(file.read_text())['entries'][0]['count']}\n")
        return plain(model, batch)

    plain = federated_blobs.loss
    monkeypatch.setattr(federated_blobs, "loss", loss)
    trained(blobs(seed=None), node(ledger=str(file)))
    assert set(seen.read_text().split()) == {str(NOW.local_steps)}


@pytest.mark.parametrize("algorithm", ["dp-fedavg", "dp-fedsam"])
def test_a_node_refuses_a_round_beyond_its_budget(algorithm, tmp_path):
    settings = blobs(algorithm=algorithm, seed=None)
    # Cost by the node's delta and accountant; the server's accountant is rdp.
    plan = blobs(algorithm=algorithm, delta=1e-5, accountant="pld").plan([federated_blobs.EXAMPLES])
    enough = plan.epsilon(1.0, rounds=2) * 1.0001
    config = {"max-epsilon": enough, "delta": 1e-5, "ledger": str(tmp_path / "ledger.json")}
    trained(settings, node(**config), round=Round(0, 3, 2))
    trained(settings, node(**config), round=Round(1, 3, 2))
    before = (tmp_path / "ledger.json").read_text()
    with pytest.raises(RefusedError, match=f"max-epsilon={rounded_up(enough)}"):
        trained(settings, node(**config), round=Round(2, 3, 2))
    assert (tmp_path / "ledger.json").read_text() == before  # nothing was released or charged
    with pytest.raises(RefusedError, match=r"noise_multiplier=0, and the node min-noise-multiplier=0.02"):
        trained(
            blobs(algorithm=algorithm, noise_multiplier=0.0, seed=None),
            node(**config | {"max-epsilon": 1e6, "ledger": str(tmp_path / "other.json")}),
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"unit": "client", "algorithm": "dp-fedavg", "seed": None},
            "unit='client' sends updates without noise",
        ),
        ({}, "the server knows the noise"),
    ],
)
def test_a_node_with_a_ledger_refuses_runs_that_would_make_it_wrong(options, message, tmp_path):
    with pytest.raises(RefusedError, match=message):
        trained(blobs(**options), node(ledger=str(tmp_path / "ledger.json")))
    assert not (tmp_path / "ledger.json").exists()
    trained(blobs(), node(**{"ledger": str(tmp_path / "ledger.json"), "allow-seed": True}))


@pytest.mark.slow
def test_a_node_logs_epsilons_rounded_up(same_examples, tmp_path, caplog):
    plan = FederatedSettings(**Request().settings | {"delta": 1e-5, "accountant": "pld"}).plan([EXAMPLES])
    one, two = (plan.epsilon(NOISE, rounds=rounds) for rounds in (1, 2))
    limit = (one + two) / 2
    for number, words in ((0, {}), (1, REFUSED)):
        context = node_with_budget(tmp_path, **{"max-epsilon": limit})
        assert reply_to(Request(number=number), context)[1] == words
    said = float(caplog.text.split("bring epsilon to ")[1].split(" ")[0])
    named = float(caplog.text.split("max-epsilon=")[1].split("\n")[0].rstrip("."))
    for shown, true in ((said, two), (named, limit)):
        assert 0 <= shown - true < 1e-3
    other = {"max-epsilon": 0.50001, "ledger": str(tmp_path / "other.json")}
    reply_to(Request(), node_with_budget(tmp_path, **other))
    assert "cost more than max-epsilon=0.5001 at" in caplog.text


@pytest.mark.slow
def test_a_damaged_ledger_is_detected_and_nothing_is_released(same_examples, tmp_path):
    context = node_with_budget(tmp_path)
    reply_to(Request(), context)
    file = tmp_path / "ledger.json"
    whole = file.read_bytes()
    before = charged(context)
    damaged = [whole[:length] for length in range(len(whole))]
    for place in range(len(whole)):
        for bit in (0, 2, 5):
            flipped = bytearray(whole)
            flipped[place] ^= 1 << bit
            damaged.append(bytes(flipped))
    found = 0
    for text in damaged:
        file.write_bytes(text)
        try:
            with node_ledger(file, RecordDict()) as kept:
                assert [count for _, count in kept.ledger.entries] == [count for _, count in before]
                assert kept.ledger.entries[0][0].event.noise_multiplier == before[0][0]
        except RefusedError:
            found += 1
    assert found >= len(damaged) - 8  # some flips change no value, such as e to E in a number
    file.write_bytes(whole[:-1])
    assert reply_to(Request(number=1), context) == ({}, REFUSED)
    assert file.read_bytes() == whole[:-1]


@pytest.mark.slow
def test_a_ledger_without_a_checksum_is_continued_and_gets_one(same_examples, tmp_path):
    file = tmp_path / "ledger.json"
    reply_to(Request(), node_with_budget(tmp_path))
    content = json.loads(file.read_text())
    file.write_text(json.dumps({name: content[name] for name in ("relation", "entries", "open")}))
    assert reply_to(Request(), node_with_budget(tmp_path))[1] == {}
    assert charged(node_with_budget(tmp_path)) == [(NOISE, 2)]
    assert json.loads(file.read_text()).keys() == content.keys()


@pytest.mark.slow
def test_an_update_that_cost_more_than_was_charged_is_not_sent(same_examples, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(ALGORITHMS["dp-fedsam"], "queries", 1)  # it makes two
    assert reply_to(Request(algorithm="dp-fedsam"), node_with_budget(tmp_path)) == ({}, {"failed": "Error"})
    assert "cost more than was charged" in caplog.text
    entries = json.loads((tmp_path / "ledger.json").read_text())["entries"]
    assert sum(entry["count"] for entry in entries) == 2  # the step that was charged and the one beyond it


@pytest.mark.subprocess
def test_two_processes_share_one_ledger_even_through_a_symlink(tmp_path):
    (tmp_path / "link.json").symlink_to(tmp_path / "ledger.json")
    script = """if True:
        import sys
        from tests.support.flower_nodes import node
        from tests.support.flower_requests import Request, reply_to
        limits = {"ledger": sys.argv[1], "max-epsilon": 100.0, "delta": 1e-5}
        context = node(run=int(sys.argv[2]), **limits)
        for number in range(2):
            assert reply_to(Request(number=number), context)[1] == {}
        """
    started = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path / name), str(run)],
            env={"PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"},
        )
        for run, name in enumerate(["ledger.json", "link.json"])
    ]
    assert [process.wait(timeout=300) for process in started] == [0, 0]
    assert sum(count for _, count in charged(node_with_budget(tmp_path))) == 4
    assert (tmp_path / "link.json").is_symlink()
