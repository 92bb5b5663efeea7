"""Rules and schedulers that `accelerate` has prepared: the run uses what is inside, or refuses them."""

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from adamas import rules
from tests.support.custom_losses import make_run_with
from tests.support.small_runs import finish, loss, make_model

ROOT = Path(__file__).parents[2]


# --- other wrappers ----------------------------------------------------------------------------------------


class Around(torch.optim.Optimizer):
    """Steps another optimizer, and shows its groups as its own."""

    def __init__(self, inner):
        self.inner, self.defaults = inner, {}
        self.param_groups, self.state = inner.param_groups, inner.state

    def step(self, closure=None):
        self.inner.step()


class Complete(Around):
    def __init__(self, inner):
        torch.optim.Optimizer.__init__(self, inner.param_groups, {})
        self.inner = inner


@pytest.mark.parametrize(
    ("wrapper", "inner"), [(Around, rules.SGD), (Around, torch.optim.SGD), (Complete, rules.SGD)]
)
def test_a_wrapper_that_would_not_hand_over_the_release_is_refused_before_anything_is_spent(wrapper, inner):
    model = make_model()
    rule = wrapper(inner(model.parameters(), lr=0.1))
    with pytest.raises(TypeError, match=rf"{wrapper.__name__} around SGD.*Pass the inner optimizer"):
        make_run_with(loss, model, rule)
    run = make_run_with(loss, model)
    with pytest.raises(TypeError, match="Pass the inner optimizer"):
        run.rule = rule
    assert not run.ledger.entries


def test_a_wrapper_that_only_reads_gradients_is_a_rule():
    model = make_model()
    run = make_run_with(loss, model, Complete(torch.optim.SGD(model.parameters(), lr=0.1)))
    assert torch.equal(finish(run), finish(make_run_with(loss)))


# --- accelerate --------------------------------------------------------------------------------------------


@pytest.fixture
def prepare():
    """Makes an accelerator in this process, and resets its state afterwards."""
    accelerate = pytest.importorskip("accelerate")

    def made(**options):
        accelerate.state.AcceleratorState._reset_state(True)
        accelerate.state.GradientState._reset_state()
        return accelerate.Accelerator(cpu=True, **options).prepare

    yield made
    accelerate.state.AcceleratorState._reset_state(True)
    accelerate.state.GradientState._reset_state()


def parts(rule=rules.AdamBC):
    model = make_model()
    rule = rule(model.parameters(), lr=0.1)
    return model, rule, StepLR(rule, 1, gamma=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [rules.AdamBC, torch.optim.Adam])
def test_prepared_parts_train_as_they_would_alone(prepare, kind, tmp_path):
    model, rule, scheduler = parts(kind)
    whole = make_run_with(loss, model, rule, scheduler=scheduler)
    expected = finish(whole)
    plain = parts(kind)
    model, prepared, scheduler = prepare()(*plain)
    options = {"checkpoint": tmp_path / "run", "checkpoint_every": 1}
    run = make_run_with(loss, model, prepared, scheduler=scheduler, **options)
    assert run.rule is plain[1]
    assert run.scheduler is plain[2]
    for step in run:
        if step.number == 2:
            break
    assert prepared.param_groups[0]["lr"] == scheduler.get_last_lr()[0] == 0.1 / 4
    assert prepared.state is run.rule.state
    model, prepared, scheduler = prepare()(*parts(kind))
    run = make_run_with(loss, model, prepared, scheduler=scheduler, resume=True, **options)
    assert 0 < run.steps_done < 4
    assert torch.equal(finish(run), expected)
    assert run.epsilon() == whole.epsilon()


@pytest.mark.parametrize("kind", [rules.AdamBC, torch.optim.Adam])
def test_a_loop_of_its_own_writes_releases_to_prepared_parts(prepare, kind):
    expected = finish(make_run_with(loss, *(plain := parts(kind))[:2], scheduler=plain[2]))
    model, rule, scheduler = prepare()(*parts(kind))
    run = make_run_with(loss, model, rule, scheduler=scheduler)
    for batch in run.batches():
        run.privatize(batch).write_to(rule)
        rule.step()
        scheduler.step()
        rule.zero_grad()
    assert torch.equal(torch.cat([p.detach().flatten() for p in model.parameters()]), expected)


def test_a_gradient_that_the_accelerator_clips_is_not_the_release(prepare):
    model, rule, _ = prepare()(*parts())
    run = make_run_with(loss, model, rule)
    run.privatize(next(run.batches())).write_to(rule)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    with pytest.raises(RuntimeError, match="not the release's any more"):
        rule.step()


def test_a_scheduler_of_the_prepared_rule_is_refused(prepare):
    model, rule, _ = parts()
    prepared = prepare()(rule)
    with pytest.raises(ValueError, match=r"before accelerator\.prepare"):
        make_run_with(loss, model, prepared, scheduler=StepLR(prepared, 1))


@pytest.mark.slow
def test_a_rule_that_replaces_another_is_found_inside(prepare):
    model, rule, _ = parts()
    run = make_run_with(loss, model)
    run.rule = prepare()(rule)
    assert run.rule is rule
    assert finish(run).isfinite().all()


@pytest.mark.slow
def test_a_factory_makes_the_scheduler_of_the_rule_inside(prepare):
    model, rule, _ = parts()
    run = make_run_with(loss, model, prepare()(rule), scheduler=lambda rule, steps: StepLR(rule, steps))
    assert run.scheduler.optimizer is rule


@pytest.mark.slow
def test_bfloat16_of_an_accelerator_trains(prepare):
    model, rule, scheduler = prepare(mixed_precision="bf16")(*parts())
    run = make_run_with(loss, model, rule, scheduler=scheduler)
    assert finish(run).isfinite().all()


@pytest.mark.slow
def test_what_a_wrapper_would_do_besides_is_refused(prepare):
    model, rule, _ = parts()
    prepared = prepare(gradient_accumulation_steps=4)(rule)
    with pytest.raises(TypeError, match=r"gradient_accumulation_steps=1.*got 4.*micro_batch_size"):
        make_run_with(loss, model, prepared)
    prepared = prepare()(rule)
    prepared.scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(TypeError, match="AcceleratedOptimizer that scales gradients"):
        make_run_with(loss, model, prepared)
    prepared.scaler = None
    inside = prepare()(StepLR(prepared, 1))
    with pytest.raises(TypeError, match="Build it on the rule before prepare"):
        make_run_with(loss, model, prepared, scheduler=inside)
    plateau = prepare()(ReduceLROnPlateau(rule))
    with pytest.raises(TypeError, match="needs no metric"):
        make_run_with(loss, model, prepared, scheduler=plateau)


@pytest.mark.slow
def test_the_optimizer_of_opacus_is_refused():
    optimizers = pytest.importorskip("opacus.optimizers")
    model = make_model()
    rule = optimizers.DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=12,
    )  # fmt: skip
    with pytest.raises(TypeError, match="DPOptimizer around SGD"):
        make_run_with(loss, model, rule)


# --- several processes -------------------------------------------------------------------------------------

ON_EACH_RANK = """
import torch
from accelerate import Accelerator

from adamas import rules
from tests.support.custom_losses import make_run_with
from tests.support.small_runs import finish, loss, make_model

accelerator = Accelerator(cpu=True)
assert accelerator.num_processes == 2
model = make_model()
rule = rules.SGD(model.parameters(), lr=0.1)
wrapped, prepared = accelerator.prepare(model, rule)
for arguments in ((model, prepared), (wrapped, rule)):
    try:
        make_run_with(loss, *arguments, distributed=True)
    except (TypeError, ValueError) as error:
        accelerator.print("refused:", error)
run = make_run_with(loss, accelerator.unwrap_model(wrapped), rule, distributed=True)
accelerator.print("trained:", finish(run).tolist())
accelerator.end_training()
"""


@pytest.mark.subprocess
def test_two_ranks_refuse_prepared_parts_and_train_the_plain_ones(tmp_path):
    pytest.importorskip("accelerate")
    script = tmp_path / "on_each_rank.py"
    script.write_text(ON_EACH_RANK)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*launch, str(script)], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    rule, model, trained = done.stdout.splitlines()
    assert re.match(r"refused: .*each of 2 ranks.*AcceleratedOptimizer.*distributed=True", rule)
    assert re.match(r"refused: .*DistributedDataParallel.*accelerator\.unwrap_model\(model\)", model)
    weights = torch.tensor(json.loads(trained.removeprefix("trained: ")))
    torch.testing.assert_close(weights, finish(make_run_with(loss)), rtol=1e-5, atol=1e-6)


# --- the example -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_example_trains_within_its_budget(prepare, monkeypatch, capsys):
    pytest.importorskip("sklearn")
    monkeypatch.setenv("EPOCHS", "2")
    prepare()  # resets the accelerator
    runpy.run_path(str(ROOT / "examples" / "accelerate" / "train.py"), run_name="__main__")
    line = capsys.readouterr().out.strip().splitlines()[-1]
    epsilon = float(re.match(r"1 ranks, epsilon (\d\.\d+), test accuracy \d+\.\d%$", line)[1])
    assert 2.9 < epsilon <= 3.0
