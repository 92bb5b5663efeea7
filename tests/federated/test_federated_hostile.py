"""Hostile peers: servers that ask a node for more than it allows, clients that answer what cannot be.

Nodes are attacked by messages to Flower's ClientApp, servers by replies to a whole training: over Flower's
grid, and in one process.
"""

import json
import math
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict
from torch.utils.data import TensorDataset

from adamas.federated import ALGORITHMS, InProcess, NoAnswerError
from adamas.federated.algorithm import Round
from adamas.federated.flower import client_app, server_app
from adamas.federated.flower.messages import pack, unpack
from adamas.federated.flower.node_config import NodeConfig, RefusedError
from adamas.federated.flower.node_ledger import node_ledger
from adamas.federated.settings import FederatedSettings
from adamas.federated.task import make_task
from adamas.federated.training import client_sizes, in_process, make_server, train
from tests.support import federated_blobs
from tests.support.federated_messages import sent
from tests.support.federated_runs import blobs, lines, run, saved_state

pytestmark = pytest.mark.slow  # a quarter of a second each

ROOT = Path(__file__).parents[2]
EXAMPLES, BATCH, NOISE, LR = 40, 10, 2.0, 1.0
HOSTILE = 1  # the client that answers what cannot be


@pytest.fixture(autouse=True)
def no_task_of_an_earlier_test():
    client_app._task.cache_clear()


# --- servers that attack a node -------------------------------------------------------------------------


@pytest.fixture
def same_examples(monkeypatch):
    """All examples are one: a release without noise is along one direction, whichever batch was drawn."""

    def client_data(client, clients):
        x = torch.tensor([[0.5, -1.0, 2.0, 0.25]]).expand(EXAMPLES, 4).clone()
        return TensorDataset(x, torch.zeros(EXAMPLES, dtype=torch.long))

    monkeypatch.setattr(federated_blobs, "client_data", client_data)


def node(folder, **config) -> Context:
    """A node with a budget for a few honest rounds."""
    own = {"partition-id": 0, "task": "tests.support.federated_blobs", "ledger": str(folder / "ledger.json")}
    return Context(1, 1, own | {"max-epsilon": 4.0, "delta": 1e-5} | config, RecordDict(), {})


class Request:
    """What a server asks: honest as it is made, and free to be changed."""

    def __init__(self, **settings):
        plain = {"algorithm": "dp-fedavg", "algorithm_options": {"lr": LR}, "noise_multiplier": NOISE}
        made = blobs(**plain | {"local_steps": 1, "batch_size": BATCH, "seed": None} | settings)
        self.settings = json.loads(made.to_json())
        self.words = {
            "noise_multiplier": made.noise_multiplier,
            "round": asdict(Round(0, made.rounds, made.local_steps)),
            "examples": EXAMPLES,
        }
        self.records = made.make_algorithm().start(federated_blobs.make_model())
        self.text = None

    def set(self, **settings):
        self.settings |= settings
        if "noise_multiplier" in settings:
            self.words["noise_multiplier"] = settings["noise_multiplier"]

    def content(self) -> RecordDict:
        text = json.dumps(self.settings) if self.text is None else self.text
        return pack(self.records, {"settings": text, **self.words})


def asked(request, context):
    """The node's answer, through the door that Flower uses."""
    content = request if isinstance(request, RecordDict) else request.content()
    return unpack(client_app.app(sent(content, "train"), context).content)


def noise_of(records) -> tuple[float, int]:
    """The mean square of the answer across the direction of the only example, and of how many coordinates."""
    model = federated_blobs.make_model()
    example = federated_blobs.client_data(0, 4)[:1]
    gradients = torch.autograd.grad(federated_blobs.loss(model, example).sum(), list(model.parameters()))
    direction = torch.cat([gradient.flatten() for gradient in gradients]).double()
    direction /= direction.norm()
    answer = torch.cat([value.flatten() for value in records["increment"].values()]).double() / LR
    across = answer - (answer @ direction) * direction
    return float(across.square().sum()) / (len(answer) - 1), len(answer) - 1


def charged(context) -> list[tuple[float, int]]:
    """The noise multiplier and the number of the steps in the node's ledger."""
    file = Path(context.node_config["ledger"])
    if not file.exists():
        return []
    entries = json.loads(file.read_text())["entries"]
    return [(entry["event"]["event"]["noise_multiplier"], entry["count"]) for entry in entries]


def has_the_noise(records, noise_multiplier, clip_norm) -> bool:
    """Whether the noise of an answer is what was charged: 14 squares, each side wrong but for about 1e-6.

    The mean of 14 squares of normal values is below 0.12 with probability 2e-6, above 3.9 with 1e-6.
    """
    square, count = noise_of(records)
    assert count == 14
    return 0.12 < square / (noise_multiplier * clip_norm / BATCH) ** 2 < 3.9


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"accountant": "rdp"},
        {"noise_multiplier": 5.0},
        {"clip_norm": 0.1},
        {"delta": 1e-3},
        {"participation": 0.25, "count_on_participation": True},
    ],
    ids=str,
)
def test_a_node_answers_what_is_as_strict_or_stricter_with_the_noise_that_it_charges(
    settings, same_examples, tmp_path
):
    context = node(tmp_path)
    records, words = asked(Request(**settings), context)
    assert words == {}
    ((noise_multiplier, count),) = charged(context)
    assert count == 1
    clip_norm = settings.get("clip_norm", 1.0)
    assert has_the_noise(records, noise_multiplier, clip_norm)
    assert not has_the_noise(records, noise_multiplier * 6, clip_norm)
    assert not has_the_noise(records, noise_multiplier / 6, clip_norm)


def setting(**values):
    return lambda request: request.set(**values)


def word(name, value):
    return lambda request: request.words.__setitem__(name, value)


def now(**values):
    return lambda request: request.words["round"].update(values)


def parameter(make):
    def change(request):
        arrays = request.records["parameters"]
        arrays["weight"] = make(arrays["weight"])

    return change


def with_both(*changes):
    return lambda request: [change(request) for change in changes][-1]


def raw(make):
    """A content that `pack` does not make, from an honest one."""

    def change(request):
        content = request.content()
        make(content)
        return content

    return change


TINY = 5e-324
REQUESTS = {
    # noise that an accountant cannot see, or none
    "z = 1e-160 by rdp": setting(noise_multiplier=1e-160, accountant="rdp"),
    "z = 1e-160 by pld": setting(noise_multiplier=1e-160, accountant="pld"),
    "z = 1e-160 by rdp at q = 1": setting(noise_multiplier=1e-160, accountant="rdp", batch_size=EXAMPLES),
    "z is the least float": setting(noise_multiplier=TINY, accountant="rdp"),
    "z = 0.019": setting(noise_multiplier=0.019, accountant="rdp"),
    "z = 0.02": setting(noise_multiplier=0.02, accountant="rdp"),
    "z = 0": setting(noise_multiplier=0.0),
    "z = -0.0": setting(noise_multiplier=-0.0),
    "z < 0": setting(noise_multiplier=-2.0),
    "z is NaN": setting(noise_multiplier=math.nan),
    "z is infinite": setting(noise_multiplier=math.inf),
    "z is 1e300": setting(noise_multiplier=1e300),
    "z is a text": setting(noise_multiplier="2.0"),
    "z is true": setting(noise_multiplier=True),
    "z is a list": setting(noise_multiplier=[2.0]),
    "z is a number of 400 digits": setting(noise_multiplier=10**400),
    "z differs from the settings": word("noise_multiplier", 1.5),
    "tiny z, settings say epsilon": with_both(
        setting(noise_multiplier=None, epsilon=1.0), word("noise_multiplier", 1e-160)
    ),
    "no z": lambda request: request.words.pop("noise_multiplier"),
    # privacy left to the server
    "unit client": setting(unit="client"),
    "a seed": setting(seed=3),
    "a seed that is true": setting(seed=True),
    "a negative seed": setting(seed=-1),
    # clipping
    "clip norm in denormal numbers": setting(clip_norm=1e-44),
    "clip norm beyond float32": setting(clip_norm=1e39),
    "clip norm is a whole number of 400 digits": setting(clip_norm=10**400),
    "clip norm 0": setting(clip_norm=0.0),
    "clip norm is NaN": setting(clip_norm=math.nan),
    "clip norm is infinite": setting(clip_norm=math.inf),
    # steps and examples
    "a million steps": with_both(setting(local_steps=10**6), now(local_steps=10**6)),
    "more steps than the settings have": now(local_steps=500),
    "steps are a fraction": with_both(setting(local_steps=1.5), now(local_steps=1.5)),
    "steps are true": now(local_steps=True),
    "no steps": with_both(setting(local_steps=0), now(local_steps=0)),
    "more examples in a step than there are": setting(batch_size=EXAMPLES + 1),
    "batch size of 400 digits": setting(batch_size=10**400),
    "batch size is a fraction": setting(batch_size=0.5),
    "another number of examples": word("examples", 10**6),
    "examples are a fraction": word("examples", float(EXAMPLES)),
    "examples are a text": word("examples", str(EXAMPLES)),
    # rounds
    "round below 0": now(number=-1),
    "round beyond the last": now(number=3),
    "round is a text": now(number="0"),
    "round is true": now(number=True),
    "another number of rounds": now(total=10**9),
    "more lost rounds than rounds": now(lost=7),
    "an unknown field of the round": now(noise_multiplier=0.0),
    "a round without a number": lambda request: request.words["round"].pop("number"),
    "the round is a list": word("round", [0, 3, 1, 0]),
    # settings
    "an unknown setting": setting(max_epsilon=1e9),
    "an unknown word": word("accountant", "rdp"),
    "settings are a list": lambda request: setattr(request, "text", "[1, 2]"),
    "settings are no JSON": lambda request: setattr(request, "text", "{"),
    "settings of 10000 levels": lambda request: setattr(request, "text", "[" * 10_000),
    "settings with a name twice": lambda request: setattr(
        request, "text", json.dumps(request.settings)[:-1] + ', "noise_multiplier": 1e-160}'
    ),
    "a module to import": setting(task="antigravity"),
    "data of the package": setting(task="", data="digits", model="mlp"),
    "delta is 1": setting(delta=1.0),
    "lr is NaN": setting(algorithm_options={"lr": math.nan}),
    "lr of 400 digits": setting(algorithm_options={"lr": 10**400}),
    "an unknown algorithm": setting(algorithm="dp-none"),
    "fewer clients than this one": setting(clients=0),
    # parameters
    "another shape": parameter(lambda p: torch.zeros(2, 4)),
    "float64": parameter(lambda p: p.double()),
    "complex": parameter(lambda p: p.to(torch.complex64)),
    "whole numbers": parameter(lambda p: p.int()),
    "NaN": parameter(lambda p: p * math.nan),
    "infinite": parameter(lambda p: p + math.inf),
    "an unknown parameter": lambda request: request.records["parameters"].update(x=torch.zeros(1)),
    "a missing parameter": lambda request: request.records["parameters"].pop("bias"),
    "an unknown record": lambda request: request.records.update(control={"weight": torch.zeros(3, 4)}),
    "no record": lambda request: request.records.clear(),
    # what no server packs
    "no words": raw(lambda content: content.pop("adamas")),
    "words are a number": raw(lambda content: content.update({"adamas": ConfigRecord({"json": 7})})),
    "words are bytes": raw(lambda content: content.update({"adamas": ConfigRecord({"json": b"{}"})})),
    "metrics": raw(lambda content: content.update({"metrics": MetricRecord({"loss": 0.0})})),
    "an array that is no array": raw(
        lambda content: content.update(
            {"parameters": ArrayRecord({"weight": Array("float32", (3, 4), "numpy.ndarray", b"x")})}
        )
    ),
    "an array of another kind": raw(
        lambda content: content.update(
            {"parameters": ArrayRecord({"weight": Array("float32", (3, 4), "pickle", b"x")})}
        )
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_hostile_server_gets_no_answer_and_learns_nothing(name, same_examples, tmp_path):
    context, request = node(tmp_path), Request()
    changed = REQUESTS[name](request)
    records, words = asked(changed if isinstance(changed, RecordDict) else request, context)
    if records:  # what a node without a check would show
        ((noise_multiplier, _),) = charged(context)
        assert has_the_noise(records, noise_multiplier, 1.0), "less noise than was charged"
    assert records == {}
    assert words == {"failed": "RefusedError"}
    assert charged(context) == []  # nothing was released
    records, words = asked(Request(), context)  # and the node still works
    assert words == {}
    assert has_the_noise(records, NOISE, 1.0)


def test_the_node_charges_by_its_own_accountant_and_limits(same_examples, tmp_path):
    limits = {"min-noise-multiplier": 2.5, "max-batch-size": 9, "max-local-steps": 1, "min-clip-norm": 2.0}
    for name, value in limits.items():
        assert asked(Request(), node(tmp_path, **{name: value}))[1] == (
            {} if value == 1 else {"failed": "RefusedError"}
        )
    assert len(charged(node(tmp_path))) == 1  # of the one with max-local-steps=1, which is enough
    # The budget that rdp would find enough for a round is not enough by the node's pld, and the other way.
    settings = FederatedSettings(**Request().settings | {"delta": 1e-5})
    cost = {
        name: FederatedSettings(**asdict(settings) | {"accountant": name})
        .plan([EXAMPLES])
        .epsilon(NOISE, rounds=1)
        for name in ("pld", "rdp")
    }
    assert cost["pld"] < cost["rdp"]
    between = (cost["pld"] + cost["rdp"]) / 2
    for mine, word_of in (("pld", {}), ("rdp", {"failed": "RefusedError"})):
        for theirs in ("pld", "rdp"):
            file = str(tmp_path / f"{mine}-{theirs}.json")
            context = node(tmp_path, **{"ledger": file, "max-epsilon": between, "accountant": mine})
            assert asked(Request(accountant=theirs), context)[1] == word_of


def test_a_round_is_answered_once_in_a_run(same_examples, tmp_path):
    context = node(tmp_path)
    for number, answered in ((1, True), (1, False), (0, False), (2, True), (2, False)):
        request = Request()
        request.words["round"]["number"] = number
        restarted = node(tmp_path)
        assert (asked(request, restarted)[1] == {}) is answered
    assert charged(context) == [(NOISE, 2)]
    assert asked(Request(), Context(2, 1, context.node_config, RecordDict(), {}))[1] == {}  # another run


def test_only_a_node_that_trusts_the_server_sends_updates_without_noise(same_examples, tmp_path):
    for settings in ({"noise_multiplier": 0.0}, {"unit": "client"}, {"seed": 0}):
        for trusting in (False, True):
            config = {"partition-id": 0, "task": "tests.support.federated_blobs", "trust-server": trusting}
            _, words = asked(Request(**settings), Context(1, 1, config, RecordDict(), {}))
            assert words == ({} if trusting else {"failed": "RefusedError"})
    records, _ = asked(Request(noise_multiplier=0.0), Context(1, 1, config, RecordDict(), {}))
    assert not has_the_noise(records, 0.02, 1.0)  # the test can tell


@pytest.mark.parametrize(
    "name", ["no settings", "arrays", "an unknown word", "a module to import", "z = 1e-160"]
)
def test_a_hostile_question_is_refused_too(name, tmp_path):
    request = Request()
    if name in REQUESTS:
        REQUESTS[name](request)
    if name == "z = 1e-160":
        request.set(noise_multiplier=1e-160)
    words = {} if name == "no settings" else {"settings": json.dumps(request.settings)}
    words |= {"x": 1} if name == "an unknown word" else {}
    content = pack(request.records if name == "arrays" else {}, words)
    reply = client_app.app(sent(content, "query"), node(tmp_path))
    assert unpack(reply.content) == ({}, {"failed": "RefusedError"})


# --- the node's ledger file -----------------------------------------------------------------------------


def test_a_flipped_bit_or_a_cut_in_the_ledger_is_found_and_nothing_is_released(same_examples, tmp_path):
    context = node(tmp_path)
    asked(Request(), context)
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
    assert found >= len(damaged) - 8  # such as an E for an e in a number
    file.write_bytes(whole[:-1])
    request = Request()
    request.words["round"]["number"] = 1
    assert asked(request, context) == ({}, {"failed": "RefusedError"})
    assert file.read_bytes() == whole[:-1]


def test_a_ledger_of_an_earlier_version_goes_on_and_gets_a_checksum(same_examples, tmp_path):
    file = tmp_path / "ledger.json"
    asked(Request(), node(tmp_path))
    content = json.loads(file.read_text())
    file.write_text(json.dumps({name: content[name] for name in ("relation", "entries", "open")}))
    assert asked(Request(), node(tmp_path))[1] == {}
    assert charged(node(tmp_path)) == [(NOISE, 2)]
    assert json.loads(file.read_text()).keys() == content.keys()


def test_an_update_that_cost_more_than_was_charged_does_not_leave(
    same_examples, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(ALGORITHMS["dp-fedsam"], "queries", 1)  # it makes two
    assert asked(Request(algorithm="dp-fedsam"), node(tmp_path)) == ({}, {"failed": "Error"})
    assert "cost more than was charged" in caplog.text
    entries = json.loads((tmp_path / "ledger.json").read_text())["entries"]
    assert sum(entry["count"] for entry in entries) == 2  # what was charged, and what was released


@pytest.mark.subprocess
def test_two_processes_and_a_link_count_on_one_ledger(tmp_path):
    (tmp_path / "link.json").symlink_to(tmp_path / "ledger.json")
    script = """if True:
        import sys
        from tests.federated.test_federated_hostile import Context, Path, RecordDict, Request, asked, node
        context = node(Path(sys.argv[1]), **{"ledger": sys.argv[1] + "/" + sys.argv[2], "max-epsilon": 100.0})
        context = Context(int(sys.argv[3]), 1, context.node_config, RecordDict(), {})
        for number in range(2):
            request = Request()
            request.words["round"]["number"] = number
            assert asked(request, context)[1] == {}
        """
    started = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path), name, str(number)],
            env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )
        for number, name in enumerate(["ledger.json", "link.json"])
    ]
    assert [process.wait(timeout=300) for process in started] == [0, 0]
    assert sum(count for _, count in charged(node(tmp_path))) == 4
    assert (tmp_path / "link.json").is_symlink()


# --- clients that attack a server -----------------------------------------------------------------------


class Grid:
    """Four nodes that are Flower's ClientApp, one of which answers what a test says."""

    def __init__(self, describe=None, answer=None):
        self.describe, self.answer = describe, answer
        config = {"task": "tests.support.federated_blobs", "allow-seed": True}
        self.contexts = {
            10 + client: Context(1, 10 + client, {"partition-id": client, **config}, RecordDict(), {})
            for client in range(4)
        }

    def get_node_ids(self):
        return list(self.contexts)

    def send_and_receive(self, messages, timeout):
        for message in messages:
            target, kind = message.metadata.dst_node_id, message.metadata.message_type
            content = client_app.app(message, self.contexts[target]).content
            change = self.describe if kind == "query" else self.answer
            if target == 10 + HOSTILE and change is not None:
                content = change(*unpack(content))
            yield sent(content, kind, source=target)


@pytest.fixture
def over_grid(monkeypatch, tmp_path):
    def message(content, node, kind, group_id=None):
        return sent(content, kind, target=node)

    monkeypatch.setattr(server_app, "Message", message)

    def serve(settings, **hostile):
        return server_app.serve(Grid(**hostile), settings, tmp_path, timeout=0.0)

    return serve


def records_with(make, record="increment"):
    """An answer one of whose records is another."""

    def change(records, words):
        first = next(iter(records[record]))
        return pack(records | {record: records[record] | {first: make(records[record][first])}}, words)

    return change


def words_with(**values):
    return lambda records, words: pack(records, words | values)


def content_with(**more):
    def change(records, words):
        content = pack(records, words)
        content.update(more)
        return content

    return change


def nothing(*_):
    return RecordDict()


CONTENTS = {
    "nothing": nothing,
    "words are a list": content_with(adamas=ConfigRecord({"json": "[1]"})),
    "words are a number": content_with(adamas=ConfigRecord({"json": "7"})),
    "words are null": content_with(adamas=ConfigRecord({"json": "null"})),
    "words are no text": content_with(adamas=ConfigRecord({"json": 3.5})),
    "words of 10000 levels": content_with(adamas=ConfigRecord({"json": "[" * 10_000})),
    "failed is a number": words_with(failed=3),
    "failed is a long text": words_with(failed="x\n\x1b[2J" * 10**5),
    "an unknown word": words_with(loss=math.nan),
    "metrics": content_with(metrics=MetricRecord({"loss": 0.0})),
    "an array that is no array": content_with(
        increment=ArrayRecord({"weight": Array("float32", (3, 4), "numpy.ndarray", b"x")})
    ),
    "an array of another kind": content_with(
        increment=ArrayRecord({"weight": Array("float32", (3, 4), "pickle", b"x")})
    ),
}
DESCRIPTIONS = {name: make for name, make in CONTENTS.items() if not name.startswith("an array")} | {
    "no client": lambda records, words: pack({}, {"examples": words["examples"]}),
    "client is a text": words_with(client="one"),
    "client is null": words_with(client=None),
    "client is true": words_with(client=True),
    "client is a fraction": words_with(client=1.0),
    "client below 0": words_with(client=-1),
    "client beyond the last": words_with(client=4),
    "client of 400 digits": words_with(client=10**400),
    "another node's client": words_with(client=0),
    "no examples": lambda records, words: pack({}, {"client": HOSTILE}),
    "examples are null": words_with(examples=None),
    "examples are a list": words_with(examples=[40]),
    "examples are NaN": words_with(examples=math.nan),
    "examples are 0": words_with(examples=0),
    "fewer examples than a batch": words_with(examples=1),
    "examples of 400 digits": words_with(examples=10**400),
    "more examples than one over delta": words_with(examples=10**6),
    "arrays": lambda records, words: pack({"x": {"x": torch.zeros(1)}}, words),
}
ANSWERS = CONTENTS | {
    "a shorter tensor": records_with(lambda value: value[:1]),
    "one more dimension": records_with(lambda value: value[None]),
    "a number for a tensor": records_with(lambda value: value.sum()),
    "complex": records_with(lambda value: value.to(torch.complex64)),
    "complex of more digits": records_with(lambda value: value.to(torch.complex128)),
    "float64": records_with(lambda value: value.double()),
    "float16": records_with(lambda value: value.half()),
    "whole numbers": records_with(lambda value: value.long()),
    "truth values": records_with(lambda value: value > 0),
    "NaN": records_with(lambda value: value * math.nan),
    "infinite": records_with(lambda value: value + math.inf),
    "one value is -inf": records_with(
        lambda value: value.clone().view(-1).index_fill(0, torch.tensor([0]), -math.inf).view_as(value)
    ),
    "values that overflow": records_with(lambda value: torch.full_like(value, 3e38)),
    "second moments below 0": records_with(lambda value: -value - 1, "second-moments"),
    "complex second moments": records_with(lambda value: value.to(torch.complex64), "second-moments"),
    "too many second moments": records_with(lambda value: value.repeat(2), "second-moments"),
    "an unknown tensor": lambda records, words: pack(
        records | {"increment": records["increment"] | {"x" * 10**4: torch.zeros(1)}}, words
    ),
    "a missing tensor": lambda records, words: pack(
        records | {"increment": {"bias": records["increment"]["bias"]}}, words
    ),
    "an unknown record": lambda records, words: pack(records | {"x": {"x": torch.zeros(1)}}, words),
    "a missing record": lambda records, words: pack({"increment": records["increment"]}, words),
    "no record": lambda records, words: pack({}, words),
    "texts as an array": content_with(increment=ArrayRecord([np.array(["a", "b"])])),
}


def assert_sound(out, settings, *, answered, asked):
    """The training has ended well, its state is of the same types, and what was charged is right."""
    result = json.loads((out / "result.json").read_text())
    assert result["rounds"] == settings.rounds
    assert result["rounds_asked"] == asked
    for line in lines(out):
        assert line["answered"] == answered
        ((client, reason),) = line["left_out"].items()
        assert client == str(HOSTILE)
        assert reason
        assert len(reason) < 400
        assert reason.isprintable()
    fresh = settings.make_algorithm().start(federated_blobs.make_model())
    state = saved_state(out)["state"]
    assert state.keys() == fresh.keys()
    for name, arrays in fresh.items():
        for key, value in arrays.items():
            assert state[name][key].dtype == value.dtype
            assert state[name][key].layout == torch.strided
            assert state[name][key].shape == value.shape
            assert bool(state[name][key].isfinite().all())
    smallest = min(size for size in result["sizes"] if size)
    cost = settings.plan([smallest]).epsilon(settings.noise_multiplier)
    assert result["epsilon"] == pytest.approx(cost)


def everybody(**options) -> FederatedSettings:
    return blobs(participation=1.0, rounds=2, local_steps=1, **options)


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_a_hostile_description_leaves_a_node_out_and_the_training_goes_on(name, over_grid, tmp_path, caplog):
    settings = everybody()
    over_grid(settings, describe=DESCRIPTIONS[name])
    assert_sound(tmp_path, settings, answered=[0, 2, 3], asked=[2, 0, 2, 2])
    assert f"begins without clients [{HOSTILE}]. Node {10 + HOSTILE}: " in caplog.text


@pytest.mark.parametrize("name", ANSWERS)
def test_a_hostile_answer_is_left_out_and_the_training_goes_on(name, over_grid, tmp_path, caplog):
    settings = everybody()
    over_grid(settings, answer=ANSWERS[name])
    assert_sound(tmp_path, settings, answered=[0, 2, 3], asked=[2, 2, 2, 2])  # who is left out is charged
    assert f"Client {HOSTILE} is left out of round 1: " in caplog.text


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_record_of_every_algorithm_is_checked(algorithm, over_grid, tmp_path):
    settings = everybody(algorithm=algorithm)
    for number, record in enumerate(settings.make_algorithm().uploads):
        out = tmp_path / str(number)
        change = records_with(lambda value: value.to(torch.complex64), record)
        server_app.serve(Grid(answer=change), settings, out, timeout=0.0)
        assert_sound(out, settings, answered=[0, 2, 3], asked=[2, 2, 2, 2])


class OneAnswersOtherwise(InProcess):
    """Clients in this process, one of which answers what a test says."""

    def __init__(self, real, answer):
        self._real, self._answer = real, answer

    def sizes(self):
        return self._real.sizes()

    def ask(self, clients, records, round):
        answers = dict(self._real.ask(clients, records, round))
        answers[HOSTILE] = self._answer(answers[HOSTILE])
        return answers


def weight(make):
    return lambda update: (
        update | {"increment": update["increment"] | {"weight": make(update["increment"]["weight"])}}
    )


class Subclass(torch.Tensor):
    pass


OBJECTS = {
    "nothing": lambda update: None,
    "a list": lambda update: [update],
    "a tensor": lambda update: update["increment"]["weight"],
    "a record is a list": lambda update: update | {"increment": [1.0]},
    "a record is nothing": lambda update: update | {"increment": None},
    "names are numbers": lambda update: {1: update["increment"]},
    "a tensor is a number": weight(lambda value: 1.0),
    "a tensor is an array": weight(lambda value: value.numpy()),
    "sparse": weight(lambda value: value.to_sparse()),
    "sparse in rows": weight(lambda value: value.to_sparse_csr()),
    "nested": weight(lambda value: torch.nested.nested_tensor(list(value))),
    "quantized": weight(lambda value: torch.quantize_per_tensor(value, 0.1, 0, torch.qint8)),
    "complex": weight(lambda value: value.to(torch.complex64)),
    "on no device": weight(lambda value: value.to("meta")),
    "a class of its own": weight(lambda value: value.as_subclass(Subclass)),
    "with a gradient": weight(lambda value: value.clone().requires_grad_()),
}


@pytest.mark.filterwarnings("ignore")  # of torch, about what is hostile
@pytest.mark.parametrize("name", OBJECTS)
def test_a_hostile_answer_in_one_process_is_left_out_too(name, tmp_path):
    settings = everybody()
    task = make_task(settings)
    train(
        settings,
        task,
        tmp_path,
        sizes=client_sizes(settings, task),
        connect=lambda server: OneAnswersOtherwise(in_process(server, settings, task), OBJECTS[name]),
    )
    assert_sound(tmp_path, settings, answered=[0, 2, 3], asked=[2, 2, 2, 2])


def test_where_the_choice_is_secret_a_hostile_client_is_left_out_and_not_named(tmp_path, caplog):
    settings = everybody(unit="client", algorithm="dp-fedavg", seed=None)
    task = make_task(settings)

    def connect(server):
        return OneAnswersOtherwise(in_process(server, settings, task), OBJECTS["complex"])

    train(settings, task, tmp_path, sizes=client_sizes(settings, task), connect=connect)
    assert [line.keys() & {"answered", "left_out"} for line in lines(tmp_path)] == [set(), set()]
    assert f"lient {HOSTILE}" not in caplog.text
    state = saved_state(tmp_path)
    assert {value.dtype for value in state["state"]["parameters"].values()} == {torch.float32}
    assert sum(entry["count"] for entry in state["ledger"]["entries"]) + bool(state["ledger"]["open"]) == 2


def test_there_are_enough_hostile_messages():
    assert len(REQUESTS) >= 25
    assert len(DESCRIPTIONS) + len(ANSWERS) >= 25


@pytest.mark.parametrize("unit", ["record", "client"])
def test_a_round_in_which_only_a_hostile_client_is_asked_is_lost_and_the_training_goes_on(unit, tmp_path):
    settings = blobs(participation=0.25, rounds=12, local_steps=1, unit=unit, algorithm="dp-fedavg")
    task = make_task(settings)

    class Hostile(OneAnswersOtherwise):
        def ask(self, clients, records, round):
            answers = dict(self._real.ask(clients, records, round))
            return answers | ({HOSTILE: None} if HOSTILE in clients else {})

    result = train(
        settings,
        task,
        tmp_path,
        sizes=client_sizes(settings, task),
        connect=lambda server: Hostile(in_process(server, settings, task), None),
    )
    assert result["rounds"] == 12
    assert len(lines(tmp_path)) == 12
    if unit == "record":
        assert 0 < result["lost_rounds"] < 12
        assert result["lost_rounds"] == result["rounds_asked"][HOSTILE]  # each was charged
    else:  # that a round was lost would tell who was asked
        assert result["lost_rounds"] == 0
        assert result["epsilon"] == pytest.approx(settings.plan([40, 41, 42, 43]).epsilon(1.0))


def test_if_nobody_can_be_used_the_training_ends_with_an_error_that_names_all(over_grid, monkeypatch):
    monkeypatch.setattr(Grid, "send_and_receive", _all_hostile)
    with pytest.raises(NoAnswerError, match=r"Round 0 has no update .*client 0: .*client 3: "):
        over_grid(everybody())


def _all_hostile(grid, messages, timeout):
    for message in messages:
        target, kind = message.metadata.dst_node_id, message.metadata.message_type
        content = client_app.app(message, grid.contexts[target]).content
        yield sent(content if kind == "query" else RecordDict(), kind, source=target)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_honest_rounds_do_not_change_the_types_of_the_state(algorithm, dtype, monkeypatch, tmp_path):
    make_model, loss = federated_blobs.make_model, federated_blobs.loss
    monkeypatch.setattr(federated_blobs, "make_model", lambda: make_model().to(dtype))
    monkeypatch.setattr(
        federated_blobs, "loss", lambda model, batch: loss(model, (batch[0].to(dtype), batch[1]))
    )
    monkeypatch.setattr(federated_blobs, "test_data", lambda: None)
    settings = everybody(algorithm=algorithm)
    run(settings, tmp_path)
    fresh = settings.make_algorithm().start(federated_blobs.make_model())
    state = saved_state(tmp_path)["state"]
    for name, arrays in fresh.items():
        assert {value.dtype for value in arrays.values()} == {value.dtype for value in state[name].values()}
    assert [line["answered"] for line in lines(tmp_path)] == [[0, 1, 2, 3]] * 2


def test_updates_that_overflow_together_are_left_out_the_largest_first(monkeypatch):
    make_model = federated_blobs.make_model
    monkeypatch.setattr(federated_blobs, "make_model", lambda: make_model().half())
    settings = everybody(algorithm="dp-fedavg")
    server = make_server(settings, make_task(settings), [40, 41, 42, 43])
    for taken in ((0, 1, 2, 3), (0, 2, 3)):
        clients, records = server.open_round()
        answers = {
            client: {
                "increment": {
                    name: torch.full_like(value, 6.5e4 if client == HOSTILE else 1.0)
                    for name, value in records["parameters"].items()
                }
            }
            for client in clients
        }
        for value in server.state["parameters"].values():
            value.fill_(0.0 if taken == (0, 1, 2, 3) else 6.0e4)
        assert server.close_round(answers).answered == taken
        assert all(bool(value.isfinite().all()) for value in server.state["parameters"].values())


def test_a_node_says_every_epsilon_rounded_up(same_examples, tmp_path, caplog):
    plan = FederatedSettings(**Request().settings | {"delta": 1e-5, "accountant": "pld"}).plan([EXAMPLES])
    one, two = (plan.epsilon(NOISE, rounds=rounds) for rounds in (1, 2))
    limit = (one + two) / 2
    for number, words in ((0, {}), (1, {"failed": "RefusedError"})):
        request = Request()
        request.words["round"]["number"] = number
        assert asked(request, node(tmp_path, **{"max-epsilon": limit}))[1] == words
    said = float(caplog.text.split("bring epsilon to ")[1].split(" ")[0])
    named = float(caplog.text.split("max-epsilon=")[1].split("\n")[0].rstrip("."))
    for shown, true in ((said, two), (named, limit)):
        assert 0 <= shown - true < 1e-3
    asked(Request(), node(tmp_path, **{"max-epsilon": 0.50001, "ledger": str(tmp_path / "other.json")}))
    assert "cost more than max-epsilon=0.5001 at" in caplog.text


def test_a_limit_of_a_node_may_not_be_looser_than_what_can_be_accounted_for():
    assert NodeConfig.of({"partition-id": 0}).min_noise_multiplier == 0.02
    assert NodeConfig.of({"partition-id": 0}).accountant == "pld"
