"""Runs with secure noise train, resume with a new secret, and never write or show it."""

import copy
import json
import pickle

import pytest
import torch
from typer.testing import CliRunner

from adamas import rules
from adamas._streams import Seed
from adamas.cli import app
from adamas.engines import ENGINES
from adamas.experiment.training import Settings, train_and_save
from adamas.rules import RULES
from adamas.secure_noise import _STEPS, SecureNoise
from tests.support import small_runs


def make_run(rule="adam-bc", *, noise="secure", **options):
    model = small_runs.make_model()
    made = RULES[rule](model.parameters()) if isinstance(rule, str) else rule(model.parameters())
    return small_runs.make_run(model, made, **{"steps": 4, "seed": None, "noise": noise} | options)


@pytest.mark.parametrize("rule", [*RULES, lambda params: torch.optim.Adam(params)])
def test_every_rule_trains(rule):
    run = make_run(rule)
    before = [p.detach().clone() for p in run.model.parameters()]
    small_runs.finish(run)
    after = list(run.model.parameters())
    assert all(p.isfinite().all() for p in after)
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert run.noise.draws >= 4


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("micro_batch_size", [None, 3])
def test_releases_of_a_run_are_on_the_grid(engine, micro_batch_size):
    run = make_run("sgd", engine=engine, micro_batch_size=micro_batch_size, clip_norm=0.5)
    for step in run:
        for mean in step.release.mean.values():
            steps = mean.double() / (0.5 * 1.0 / 12) * _STEPS
            rounding = steps.abs() * 2.0**-24  # to float32
            assert ((steps - steps.round()).abs() <= rounding).all()
    assert run.noise.draws == 4


def test_epsilon_equals_that_of_a_reproducible_run():
    secure, reproducible = make_run(), make_run(noise="reproducible")
    for run in (secure, reproducible):
        small_runs.finish(run)
    assert secure.epsilon() == reproducible.epsilon()
    assert secure.ledger.entries == reproducible.ledger.entries


@pytest.mark.parametrize("sampling", ["poisson", "truncated-poisson", "shuffled"])
def test_every_kind_of_sampling_trains(sampling):
    run = make_run(sampling=sampling, max_batch_size=12 if sampling == "truncated-poisson" else None)
    assert len([step for step in run]) == 4


def test_a_seed_is_refused():
    with pytest.raises(ValueError, match=r"seed=None with noise='secure', got seed=3.*Leave seed= out"):
        make_run(seed=3)
    with pytest.raises(ValueError, match="secure seed"):
        SecureNoise(Seed(3))
    with pytest.raises(ValueError, match="secure seed"):
        SecureNoise(Seed())


def test_unknown_noise_is_refused():
    with pytest.raises(ValueError, match="noise='safe' to be one of 'reproducible', 'secure'"):
        make_run(noise="safe")


def test_the_privacy_statement_names_the_noise():
    assert "The noise is secure: the exact Gaussian mechanism" in make_run().privacy_statement()
    assert "The noise is reproducible" in make_run(noise="reproducible").privacy_statement()


def test_a_secure_run_resumes_only_as_secure_and_with_a_new_secret():
    run = make_run()
    steps = iter(run)
    next(steps), next(steps)
    state = copy.deepcopy(run.state_dict())
    steps.close()
    resumed = make_run()
    resumed.load_state_dict(state)
    assert [step.number for step in resumed] == [3, 4]
    assert resumed.noise.seed._secret != run.noise.seed._secret
    with pytest.raises(ValueError, match="noise='reproducible'"):
        make_run(noise="reproducible").load_state_dict(state)


def test_a_state_that_does_not_name_its_noise_is_refused():
    state = make_run(noise="reproducible", seed=1).state_dict()
    del state["settings"]["noise"]
    with pytest.raises(ValueError, match="noise='reproducible'"):
        make_run(noise="reproducible", seed=1).load_state_dict(state)
    state["settings"]["seed"] = None
    with pytest.raises(ValueError, match="noise='secure'"):
        make_run().load_state_dict(state)


def forms(secret):
    """Lists the forms in which the bytes of a secret could be written."""
    number = int.from_bytes(secret, "big")
    texts = [
        secret.hex(),
        str(number),
        str(int.from_bytes(secret, "little")),
        repr(secret),
        str(list(secret)),
    ]
    return [secret, secret[::-1], secret[:16], secret[16:], *(text.encode() for text in texts)]


def test_the_secret_is_in_no_state_repr_or_pickle(capsys, caplog):
    run = make_run(ema=0.9)
    small_runs.finish(run)
    secret = run.noise.seed._secret
    texts = [repr(run), repr(run.noise), repr(run.noise.seed), str(vars(run)), run.privacy_statement()]
    written = pickle.dumps(run.state_dict()) + "".join(texts).encode() + caplog.text.encode()
    written += "".join(capsys.readouterr()).encode()
    for form in forms(secret):
        assert form not in written
    assert "seed" not in run.state_dict()["noise"]
    assert run.state_dict()["settings"]["seed"] is None
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="secret seed"):
            copied(run.noise.seed)
    with pytest.raises(TypeError, match="secret seed"):
        pickle.dumps(run.noise)


def test_the_secret_is_in_no_file(tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    secrets = []
    make = Seed.__init__

    def remember(self, *arguments, **options):
        make(self, *arguments, **options)
        secrets.append(self._secret)

    monkeypatch.setattr(Seed, "__init__", remember)
    chosen = Settings(
        data="digits", model="linear", rule="sgd", batch_size=64, delta=1e-5, steps=3, noise="secure",
        noise_multiplier=1.0,
    )  # fmt: skip
    result = train_and_save(chosen, tmp_path / "out", progress=False, diagnose=True)
    files = [file for file in (tmp_path / "out").rglob("*") if file.is_file()]
    assert {file.name for file in files} >= {"result.json", "ledger.json", "model.safetensors"}
    written = b"".join(file.read_bytes() for file in files)
    assert secrets
    for secret in secrets:
        if secret != bytes(32):  # the public seed 0 of the layout check
            assert not any(form in written for form in forms(secret))
    assert result["noise"] == result["settings"]["noise"] == "secure"
    assert result["settings"]["seed"] is None
    assert "note" not in result
    assert "The noise is secure" in result["privacy"]


def test_settings_refuse_a_seed_and_unknown_noise():
    common = {"data": "digits", "model": "linear", "rule": "sgd", "batch_size": 64, "delta": 1e-5}
    with pytest.raises(ValueError, match="seed=None with noise='secure'"):
        Settings(**common, noise="secure", seed=0)
    with pytest.raises(ValueError, match="noise="):
        Settings(**common, noise="discrete")


def test_the_command_line_trains_securely(tmp_path):
    pytest.importorskip("sklearn")
    arguments = ["train", "--model", "linear", "--rule", "sgd", "--noise-multiplier", "1", "--steps", "2"]
    arguments += ["--noise", "secure", "--no-progress"]
    out = tmp_path / "out"
    done = CliRunner().invoke(app, [*arguments, "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "secure" in done.output
    assert json.loads((out / "result.json").read_text())["noise"] == "secure"
    refused = CliRunner().invoke(app, [*arguments, "--seed", "1", "--out", str(tmp_path / "other")])
    assert refused.exit_code != 0
    assert not (tmp_path / "other").exists()


def test_sgd_with_secure_noise_learns():
    torch.manual_seed(0)
    data, model = small_runs.make_data(2000), torch.nn.Linear(5, 2)
    rule = rules.SGD(model.parameters(), lr=1.0)
    options = {"batch_size": 200, "steps": 30, "delta": 1e-4, "seed": None, "noise": "secure"}
    small_runs.finish(small_runs.make_run(model, rule, data, **options))
    x, y = data.tensors
    assert float((model(x).argmax(1) == y).float().mean()) > 0.9
