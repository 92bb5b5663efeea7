"""The client's side on Flower: what leaves a node, and what it keeps between rounds."""

from dataclasses import asdict

import pytest
import torch

pytest.importorskip("flwr")

from torch.utils.data import TensorDataset

import adamas.run.loop
from adamas.federated import ALGORITHMS
from adamas.federated.algorithm import Round
from adamas.federated.flower import client_app
from adamas.federated.flower.messages import pack, unpack
from adamas.federated.flower.node_config import NodeConfig, RefusedError
from tests.support import federated_blobs
from tests.support.federated_messages import sent
from tests.support.federated_runs import blobs
from tests.support.flower_nodes import NOW, node, trained


class Releases:
    """Records the releases of one training, then substitutes them for those of another."""

    def __init__(self, real):
        self.real, self.kept, self.replay = real, [], None

    def __call__(self, *arguments, **options):
        release = self.real(*arguments, **options)
        if self.replay is None:
            self.kept.append([value.clone() for value in release.mean.values()])
        else:
            for value, earlier in zip(release.mean.values(), self.replay.pop(0), strict=True):
                value.copy_(earlier)
        return release


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_reply_depends_on_the_data_only_through_releases(algorithm, monkeypatch):
    """With other data and the same releases, the reply is equal bit for bit."""
    releases = Releases(adamas.run.loop.privatize)
    monkeypatch.setattr(adamas.run.loop, "privatize", releases)
    settings = blobs(algorithm=algorithm)
    records, words = trained(settings, node())
    assert words == {}
    assert tuple(records) == settings.make_algorithm().uploads
    assert len(releases.kept) >= NOW.local_steps

    def other_data(client, clients):
        x, y = federated_blobs._points(99, federated_blobs.EXAMPLES).tensors
        return TensorDataset(3 * x, (y + 1) % 3)

    monkeypatch.setattr(federated_blobs, "client_data", other_data)
    own, _ = trained(settings, node())
    assert not _equal(own, records)  # other data change the reply
    releases.replay = list(releases.kept[: len(releases.kept) // 2])
    replayed, _ = trained(settings, node())
    assert _equal(replayed, records)
    assert not releases.replay


def _equal(left, right) -> bool:
    return all(torch.equal(left[name][key], value) for name in right for key, value in right[name].items())


def test_a_client_describes_itself_by_its_number_of_examples_only():
    context = node(client=2)
    request = pack({}, {"settings": blobs().to_json()})
    content = client_app._describe(request, NodeConfig.of(context.node_config), context)
    assert unpack(content) == ({}, {"client": 2, "examples": 42})


@pytest.mark.parametrize("trusting", [False, True])
@pytest.mark.parametrize("what", ["query", "train"])
def test_a_reply_never_carries_the_text_of_an_error_which_may_quote_examples(
    what, trusting, monkeypatch, caplog
):
    def client_data(client, clients):
        raise ArithmeticError("an example says Jane Roe")

    monkeypatch.setattr(federated_blobs, "client_data", client_data)
    words = {"settings": blobs().to_json()}
    if what == "train":
        words |= {"round": asdict(NOW), "noise_multiplier": 1.0, "examples": 40}
    reply = client_app.app(sent(pack({}, words), what), node(**{"trust-server": trusting}))
    assert unpack(reply.content) == ({}, {"failed": "ArithmeticError" if trusting else "Error"})
    assert "Jane Roe" in caplog.text  # in the node's own log


def test_a_client_whose_data_have_changed_refuses_to_train():
    with pytest.raises(RefusedError, match="has 40 examples now, and had 400 when the training began"):
        trained(blobs(), node(), examples=400)


def test_a_node_keeps_its_control_variate_between_rounds():
    settings = blobs(algorithm="dp-scaffold")
    context = node()
    trained(settings, context, round=Round(0, 3, 2))
    kept = context.state.array_records["memory/control"].to_torch_state_dict()
    first, _ = trained(settings, node())
    second, _ = trained(settings, context)
    assert any(bool(value.any()) for value in kept.values())
    assert not _equal(first, second)  # the control variate changes the update
