"""Hostile clients on Flower: the server leaves out their malformed replies, and training continues."""

import math

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from adamas.federated import ALGORITHMS, NoAnswerError
from adamas.federated.flower import client_app, server_app
from adamas.federated.flower.messages import pack, unpack
from tests.support.federated_messages import sent
from tests.support.flower_nodes import node
from tests.support.hostile_client import HOSTILE, assert_unharmed, everybody

pytestmark = pytest.mark.slow  # a quarter of a second each


class Grid:
    """Four nodes that run the client's app. Those in `hostile` change their replies as a test says."""

    def __init__(self, describe=None, answer=None, hostile=(HOSTILE,)):
        self.changes = {"query": describe, "train": answer}
        self.contexts = {10 + client: node(client) for client in range(4)}
        self.hostile = {10 + client for client in hostile}

    def get_node_ids(self):
        return list(self.contexts)

    def send_and_receive(self, messages, timeout):
        for message in messages:
            target, kind = message.metadata.dst_node_id, message.metadata.message_type
            content = client_app.app(message, self.contexts[target]).content
            change = self.changes[kind]
            if target in self.hostile and change is not None:
                content = change(*unpack(content))
            yield sent(content, kind, source=target)


@pytest.fixture
def over_grid(monkeypatch, tmp_path):
    """Trains over a `Grid` with the given hostile replies."""

    def message(content, node, kind, group_id=None):
        return sent(content, kind, target=node)

    monkeypatch.setattr(server_app, "Message", message)

    def serve(settings, **hostile):
        return server_app.serve(Grid(**hostile), settings, tmp_path, timeout=0.0)

    return serve


def records_with(make, record="increment"):
    """Changes the first tensor of a record."""

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
    "words are not a string": content_with(adamas=ConfigRecord({"json": 3.5})),
    "words nested 10000 levels deep": content_with(adamas=ConfigRecord({"json": "[" * 10_000})),
    "failed is a number": words_with(failed=3),
    "failed is a long string": words_with(failed="x\n\x1b[2J" * 10**5),
    "an unknown word": words_with(loss=math.nan),
    "metrics": content_with(metrics=MetricRecord({"loss": 0.0})),
}
DESCRIPTIONS = CONTENTS | {
    "no client": lambda records, words: pack({}, {"examples": words["examples"]}),
    "client is a string": words_with(client="one"),
    "client is null": words_with(client=None),
    "client is true": words_with(client=True),
    "fractional client": words_with(client=1.0),
    "client below 0": words_with(client=-1),
    "client beyond the last": words_with(client=4),
    "client has 400 digits": words_with(client=10**400),
    "the number of another client": words_with(client=0),
    "no examples": lambda records, words: pack({}, {"client": HOSTILE}),
    "examples are null": words_with(examples=None),
    "examples are a list": words_with(examples=[40]),
    "examples are NaN": words_with(examples=math.nan),
    "examples are 0": words_with(examples=0),
    "fewer examples than in a batch": words_with(examples=1),
    "examples have 400 digits": words_with(examples=10**400),
    "more examples than one over delta": words_with(examples=10**6),
    "arrays": lambda records, words: pack({"x": {"x": torch.zeros(1)}}, words),
}
ANSWERS = CONTENTS | {
    "an unreadable array": content_with(
        increment=ArrayRecord({"weight": Array("float32", (3, 4), "numpy.ndarray", b"x")})
    ),
    "an array of an unknown kind": content_with(
        increment=ArrayRecord({"weight": Array("float32", (3, 4), "pickle", b"x")})
    ),
    "a shorter tensor": records_with(lambda value: value[:1]),
    "one more dimension": records_with(lambda value: value[None]),
    "a scalar": records_with(lambda value: value.sum()),
    "complex": records_with(lambda value: value.to(torch.complex64)),
    "double complex": records_with(lambda value: value.to(torch.complex128)),
    "float64": records_with(lambda value: value.double()),
    "float16": records_with(lambda value: value.half()),
    "integers": records_with(lambda value: value.long()),
    "booleans": records_with(lambda value: value > 0),
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
    "an array of strings": content_with(increment=ArrayRecord([np.array(["a", "b"])])),
}


def test_there_are_enough_hostile_replies():
    assert len(DESCRIPTIONS) + len(ANSWERS) >= 25


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_a_node_with_a_hostile_description_is_left_out_and_training_continues(
    name, over_grid, tmp_path, caplog
):
    settings = everybody()
    over_grid(settings, describe=DESCRIPTIONS[name])
    assert_unharmed(tmp_path, settings, asked=[2, 0, 2, 2])
    assert f"begins without clients [{HOSTILE}]. Node {10 + HOSTILE}: " in caplog.text


@pytest.mark.parametrize("name", ANSWERS)
def test_a_hostile_answer_is_left_out_and_training_continues(name, over_grid, tmp_path, caplog):
    settings = everybody()
    over_grid(settings, answer=ANSWERS[name])
    assert_unharmed(tmp_path, settings, asked=[2, 2, 2, 2])  # a client that is left out is charged
    assert f"Client {HOSTILE} is left out of round 1: " in caplog.text


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_record_of_every_algorithm_is_checked(algorithm, over_grid, tmp_path):
    settings = everybody(algorithm=algorithm)
    for number, record in enumerate(settings.make_algorithm().uploads):
        out = tmp_path / str(number)
        change = records_with(lambda value: value.to(torch.complex64), record)
        server_app.serve(Grid(answer=change), settings, out, timeout=0.0)
        assert_unharmed(out, settings, asked=[2, 2, 2, 2])


def test_training_fails_and_names_every_client_if_no_answer_is_usable(over_grid):
    with pytest.raises(NoAnswerError, match=r"Round 0 has no update .*client 0: .*client 3: "):
        over_grid(everybody(), answer=nothing, hostile=range(4))
