"""The server's side on Flower: which nodes it finds, what it tells them, which replies it takes."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import RecordDict

from adamas.federated.flower import server_app
from adamas.federated.flower.messages import pack, unpack
from tests.support import federated_blobs
from tests.support.federated_runs import blobs
from tests.support.flower_nodes import NOW


class Reply:
    """A message as the grid delivers it."""

    def __init__(self, node, content=None, code=None):
        self.metadata, self.content = SimpleNamespace(src_node_id=node), content
        self.error = SimpleNamespace(code=code)

    def has_error(self):
        return self.content is None


class Grid:
    """A grid whose nodes 10, 11, ... are clients 0, 1, ...; it replies to a round with `answers`."""

    def __init__(self, clients=4):
        self.nodes = {10 + client: client for client in range(clients)}
        self.sizes = {client: federated_blobs.EXAMPLES + client for client in range(clients)}
        self.answers = []

    def get_node_ids(self):
        return list(self.nodes)

    def send_and_receive(self, messages, timeout):
        if messages and messages[0].message_type == "train":
            self.asked = [(message.node, unpack(message.content)[1]) for message in messages]
            return self.answers
        found = []
        for message in messages:
            client = self.nodes[message.node]
            failed = isinstance(client, str)
            said = {"failed": client} if failed else {"client": client, "examples": self.sizes[client]}
            found.append(Reply(message.node, pack({}, said)))
        return found


@pytest.fixture
def grid(monkeypatch):
    def message(content, node, message_type, group_id=None):
        return SimpleNamespace(content=content, node=node, message_type=message_type)

    monkeypatch.setattr(server_app, "Message", message)
    return Grid()


def asked(grid, nodes):
    return server_app.OverGrid(grid, blobs(), nodes, 1.0, timeout=1.0).ask([0, 1, 2, 3], {}, NOW)


def test_clients_are_told_what_they_are_charged_for(grid):
    nodes = server_app.Nodes(grid, blobs(), timeout=1.0)
    assert nodes.sizes == [40, 41, 42, 43]
    asked(grid, nodes)
    assert [(node, words["examples"], words["noise_multiplier"]) for node, words in grid.asked] == [
        (10 + client, 40 + client, 1.0) for client in range(4)
    ]


def test_errors_and_unreadable_replies_are_named_and_the_others_kept(grid):
    nodes = server_app.Nodes(grid, blobs(), timeout=1.0)
    grid.answers = [
        Reply(1, code=3),  # Flower's own reply about an absent node; no client sent it
        Reply(10, pack({"increment": {"x": torch.ones(1)}}, {})),
        Reply(11, code=5),
        Reply(12, RecordDict()),
    ]
    answers = asked(grid, nodes)
    assert torch.equal(answers[0]["increment"]["x"], torch.ones(1))
    assert answers[1] == "Flower's error 5"
    assert "cannot be read" in answers[2]
    assert 3 not in answers


def test_a_restarted_node_is_found_again_if_it_has_as_many_examples(grid):
    nodes = server_app.Nodes(grid, blobs(), timeout=1.0)
    del grid.nodes[12]
    grid.nodes[99] = 2
    asked(grid, nodes)
    assert [node for node, _ in grid.asked] == [10, 11, 99, 13]
    del grid.nodes[99]
    grid.nodes[100], grid.sizes[2] = 2, 7
    asked(grid, nodes)
    assert [node for node, _ in grid.asked] == [
        10,
        11,
        99,
        13,
    ]  # the new node has other data, so the old one is still asked


def test_a_node_that_takes_the_number_of_another_is_ignored(grid):
    nodes = server_app.Nodes(grid, blobs(), timeout=1.0)
    del grid.nodes[12]
    grid.nodes[99] = 1
    asked(grid, nodes)
    assert [node for node, _ in grid.asked] == [10, 11, 12, 13]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "reason"),
    [("ValueError", "Node 12: ValueError"), (1, "Node 12: another node has partition-id=1")],
)
def test_training_starts_without_a_node_that_cannot_take_part_and_names_it(said, reason, grid, caplog):
    grid.nodes[12] = said
    nodes = server_app.Nodes(grid, blobs(), timeout=0.1)
    assert nodes.sizes == [40, 41, 0, 43]
    assert nodes.ids == {0: 10, 1: 11, 3: 13}
    assert "without clients [2]" in caplog.text
    assert reason in caplog.text


@pytest.mark.slow
def test_missing_nodes_are_named(grid):
    del grid.nodes[12]
    with pytest.raises(RuntimeError, match=r"did not come up in 0.1 seconds: \[2\]"):
        server_app.Nodes(grid, blobs(), timeout=0.1)
    grid.nodes = dict.fromkeys(range(10, 14), "OSError")
    with pytest.raises(RuntimeError, match=r"\[0, 1, 2, 3\]. Node 10: OSError"):
        server_app.Nodes(grid, blobs(), timeout=0.1)
