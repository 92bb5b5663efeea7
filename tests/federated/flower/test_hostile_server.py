"""Hostile servers: a node refuses requests beyond its limits, and its answers carry the noise it charges."""

import json
import math
from dataclasses import asdict

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from adamas.federated.flower import client_app
from adamas.federated.flower.messages import pack, unpack
from adamas.federated.settings import FederatedSettings
from tests.support import federated_blobs
from tests.support.federated_messages import sent
from tests.support.flower_nodes import node, node_with_budget
from tests.support.flower_requests import BATCH, EXAMPLES, LR, NOISE, REFUSED, Request, charged, reply_to

pytestmark = pytest.mark.slow  # a quarter of a second each


def noise_of(records) -> tuple[float, int]:
    """Returns the mean square of an update across the example's gradient, and its degrees of freedom."""
    model = federated_blobs.make_model()
    example = federated_blobs.client_data(0, 4)[:1]
    gradients = torch.autograd.grad(federated_blobs.loss(model, example).sum(), list(model.parameters()))
    direction = torch.cat([gradient.flatten() for gradient in gradients]).double()
    direction /= direction.norm()
    update = torch.cat([value.flatten() for value in records["increment"].values()]).double() / LR
    noise = update - (update @ direction) * direction
    return float(noise.square().sum()) / (len(update) - 1), len(update) - 1


def has_the_noise(records, noise_multiplier, clip_norm) -> bool:
    """Tells whether an update has the noise that was charged, by the mean of 14 squares.

    If it has, that mean is below 0.12 with probability 2e-6 and above 3.9 with probability 1e-6.
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
def test_a_node_answers_an_acceptable_request_with_the_noise_it_charges(settings, same_examples, tmp_path):
    context = node_with_budget(tmp_path)
    records, words = reply_to(Request(**settings), context)
    assert words == {}
    ((noise_multiplier, count),) = charged(context)
    assert count == 1
    clip_norm = settings.get("clip_norm", 1.0)
    assert has_the_noise(records, noise_multiplier, clip_norm)
    assert not has_the_noise(records, noise_multiplier * 6, clip_norm)
    assert not has_the_noise(records, noise_multiplier / 6, clip_norm)


def settings_with(**values):
    return lambda request: request.set(**values)


def word_with(name, value):
    return lambda request: request.words.__setitem__(name, value)


def round_with(**values):
    return lambda request: request.words["round"].update(values)


def weight_with(make):
    def change(request):
        arrays = request.records["parameters"]
        arrays["weight"] = make(arrays["weight"])

    return change


def all_of(*changes):
    return lambda request: [change(request) for change in changes][-1]


def content_with(make):
    """Changes the content of an honest request into one that `pack` never makes."""

    def change(request):
        content = request.content()
        make(content)
        return content

    return change


TINY = 5e-324
REQUESTS = {
    # noise that an accountant cannot account for, or none
    "z = 1e-160 by rdp": settings_with(noise_multiplier=1e-160, accountant="rdp"),
    "z = 1e-160 by pld": settings_with(noise_multiplier=1e-160, accountant="pld"),
    "z = 1e-160 by rdp at q = 1": settings_with(
        noise_multiplier=1e-160, accountant="rdp", batch_size=EXAMPLES
    ),
    "z is the smallest float": settings_with(noise_multiplier=TINY, accountant="rdp"),
    "z = 0.019": settings_with(noise_multiplier=0.019, accountant="rdp"),
    "z = 0.02": settings_with(noise_multiplier=0.02, accountant="rdp"),
    "z = 0": settings_with(noise_multiplier=0.0),
    "z = -0.0": settings_with(noise_multiplier=-0.0),
    "z < 0": settings_with(noise_multiplier=-2.0),
    "z is NaN": settings_with(noise_multiplier=math.nan),
    "z is infinite": settings_with(noise_multiplier=math.inf),
    "z is 1e300": settings_with(noise_multiplier=1e300),
    "z is a string": settings_with(noise_multiplier="2.0"),
    "z is true": settings_with(noise_multiplier=True),
    "z is a list": settings_with(noise_multiplier=[2.0]),
    "z has 400 digits": settings_with(noise_multiplier=10**400),
    "z differs from the settings": word_with("noise_multiplier", 1.5),
    "tiny z, settings say epsilon": all_of(
        settings_with(noise_multiplier=None, epsilon=1.0), word_with("noise_multiplier", 1e-160)
    ),
    "no z": lambda request: request.words.pop("noise_multiplier"),
    # privacy left to the server
    "unit client": settings_with(unit="client"),
    "a seed": settings_with(seed=3),
    "a seed that is true": settings_with(seed=True),
    "a negative seed": settings_with(seed=-1),
    # clipping
    "clip norm is denormal": settings_with(clip_norm=1e-44),
    "clip norm beyond float32": settings_with(clip_norm=1e39),
    "clip norm has 400 digits": settings_with(clip_norm=10**400),
    "clip norm 0": settings_with(clip_norm=0.0),
    "clip norm is NaN": settings_with(clip_norm=math.nan),
    "clip norm is infinite": settings_with(clip_norm=math.inf),
    # steps and examples
    "a million steps": all_of(settings_with(local_steps=10**6), round_with(local_steps=10**6)),
    "more steps than in the settings": round_with(local_steps=500),
    "fractional steps": all_of(settings_with(local_steps=1.5), round_with(local_steps=1.5)),
    "steps are true": round_with(local_steps=True),
    "no steps": all_of(settings_with(local_steps=0), round_with(local_steps=0)),
    "batch size above the number of examples": settings_with(batch_size=EXAMPLES + 1),
    "batch size has 400 digits": settings_with(batch_size=10**400),
    "fractional batch size": settings_with(batch_size=0.5),
    "another number of examples": word_with("examples", 10**6),
    "fractional examples": word_with("examples", float(EXAMPLES)),
    "examples are a string": word_with("examples", str(EXAMPLES)),
    # rounds
    "round below 0": round_with(number=-1),
    "round beyond the last": round_with(number=3),
    "round is a string": round_with(number="0"),
    "round is true": round_with(number=True),
    "another number of rounds": round_with(total=10**9),
    "more lost rounds than rounds": round_with(lost=7),
    "an unknown field of the round": round_with(noise_multiplier=0.0),
    "a round without a number": lambda request: request.words["round"].pop("number"),
    "the round is a list": word_with("round", [0, 3, 1, 0]),
    # settings
    "an unknown setting": settings_with(max_epsilon=1e9),
    "an unknown word": word_with("accountant", "rdp"),
    "settings are a list": lambda request: setattr(request, "text", "[1, 2]"),
    "settings are not JSON": lambda request: setattr(request, "text", "{"),
    "settings nested 10000 levels deep": lambda request: setattr(request, "text", "[" * 10_000),
    "settings with a duplicate name": lambda request: setattr(
        request, "text", json.dumps(request.settings)[:-1] + ', "noise_multiplier": 1e-160}'
    ),
    "a module to import": settings_with(task="antigravity"),
    "data of the package": settings_with(task="", data="digits", model="mlp"),
    "delta is 1": settings_with(delta=1.0),
    "lr is NaN": settings_with(algorithm_options={"lr": math.nan}),
    "lr has 400 digits": settings_with(algorithm_options={"lr": 10**400}),
    "an unknown algorithm": settings_with(algorithm="dp-none"),
    "fewer clients than this one": settings_with(clients=0),
    # parameters
    "another shape": weight_with(lambda p: torch.zeros(2, 4)),
    "float64": weight_with(lambda p: p.double()),
    "complex": weight_with(lambda p: p.to(torch.complex64)),
    "integers": weight_with(lambda p: p.int()),
    "NaN": weight_with(lambda p: p * math.nan),
    "infinite": weight_with(lambda p: p + math.inf),
    "an unknown parameter": lambda request: request.records["parameters"].update(x=torch.zeros(1)),
    "a missing parameter": lambda request: request.records["parameters"].pop("bias"),
    "an unknown record": lambda request: request.records.update(control={"weight": torch.zeros(3, 4)}),
    "no record": lambda request: request.records.clear(),
    # contents that no server packs
    "no words": content_with(lambda content: content.pop("adamas")),
    "words are a number": content_with(lambda content: content.update({"adamas": ConfigRecord({"json": 7})})),
    "words are bytes": content_with(
        lambda content: content.update({"adamas": ConfigRecord({"json": b"{}"})})
    ),
    "metrics": content_with(lambda content: content.update({"metrics": MetricRecord({"loss": 0.0})})),
    "an unreadable array": content_with(
        lambda content: content.update(
            {"parameters": ArrayRecord({"weight": Array("float32", (3, 4), "numpy.ndarray", b"x")})}
        )
    ),
    "an array of an unknown kind": content_with(
        lambda content: content.update(
            {"parameters": ArrayRecord({"weight": Array("float32", (3, 4), "pickle", b"x")})}
        )
    ),
}


def test_there_are_enough_hostile_requests():
    assert len(REQUESTS) >= 25


@pytest.mark.parametrize("name", REQUESTS)
def test_a_hostile_request_gets_no_update_and_costs_nothing(name, same_examples, tmp_path):
    context, request = node_with_budget(tmp_path), Request()
    changed = REQUESTS[name](request)
    records, words = reply_to(changed if isinstance(changed, RecordDict) else request, context)
    if records:  # a node without the check fails here
        ((noise_multiplier, _),) = charged(context)
        assert has_the_noise(records, noise_multiplier, 1.0), "less noise than was charged"
    assert records == {}
    assert words == REFUSED
    assert charged(context) == []  # nothing was released
    records, words = reply_to(Request(), context)  # the node still works
    assert words == {}
    assert has_the_noise(records, NOISE, 1.0)


def test_a_node_enforces_its_own_limits_and_accountant(same_examples, tmp_path):
    limits = {"min-noise-multiplier": 2.5, "max-batch-size": 9, "max-local-steps": 1, "min-clip-norm": 2.0}
    for name, value in limits.items():
        assert reply_to(Request(), node_with_budget(tmp_path, **{name: value}))[1] == (
            {} if value == 1 else REFUSED
        )
    assert len(charged(node_with_budget(tmp_path))) == 1  # only max-local-steps=1 allows the request
    # With a budget between the two costs, the node's accountant decides, whatever the server's is.
    settings = FederatedSettings(**Request().settings | {"delta": 1e-5})
    cost = {
        name: FederatedSettings(**asdict(settings) | {"accountant": name})
        .plan([EXAMPLES])
        .epsilon(NOISE, rounds=1)
        for name in ("pld", "rdp")
    }
    assert cost["pld"] < cost["rdp"]
    between = (cost["pld"] + cost["rdp"]) / 2
    for mine, expected in (("pld", {}), ("rdp", REFUSED)):
        for theirs in ("pld", "rdp"):
            file = str(tmp_path / f"{mine}-{theirs}.json")
            context = node_with_budget(
                tmp_path, **{"ledger": file, "max-epsilon": between, "accountant": mine}
            )
            assert reply_to(Request(accountant=theirs), context)[1] == expected


def test_a_node_answers_each_round_of_a_run_once(same_examples, tmp_path):
    context = node_with_budget(tmp_path)
    for number, answered in ((1, True), (1, False), (0, False), (2, True), (2, False)):
        restarted = node_with_budget(tmp_path)
        assert (reply_to(Request(number=number), restarted)[1] == {}) is answered
    assert charged(context) == [(NOISE, 2)]
    assert reply_to(Request(), node_with_budget(tmp_path, run=2))[1] == {}


def test_only_a_node_that_trusts_the_server_sends_updates_without_noise(same_examples, tmp_path):
    for settings in ({"noise_multiplier": 0.0}, {"unit": "client"}, {"seed": 0}):
        for trusting in (False, True):
            context = node(**{"allow-seed": False, "trust-server": trusting})
            assert reply_to(Request(**settings), context)[1] == ({} if trusting else REFUSED)
    records, _ = reply_to(Request(noise_multiplier=0.0), node(**{"trust-server": True}))
    assert not has_the_noise(records, 0.02, 1.0)  # the test detects missing noise


@pytest.mark.parametrize(
    "name", ["no settings", "arrays", "an unknown word", "a module to import", "z = 1e-160"]
)
def test_a_hostile_query_is_refused(name, tmp_path):
    request = Request()
    if name in REQUESTS:
        REQUESTS[name](request)
    if name == "z = 1e-160":
        request.set(noise_multiplier=1e-160)
    words = {} if name == "no settings" else {"settings": json.dumps(request.settings)}
    words |= {"x": 1} if name == "an unknown word" else {}
    content = pack(request.records if name == "arrays" else {}, words)
    reply = client_app.app(sent(content, "query"), node_with_budget(tmp_path))
    assert unpack(reply.content) == ({}, REFUSED)
