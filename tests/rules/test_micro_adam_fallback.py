"""MicroAdam uses its compiled step where it applies, and torch elsewhere; both refuse damaged states."""

import subprocess
import sys
from contextlib import suppress

import pytest
import torch
from torch import nn

from adamas import rules
from adamas.rules import _micro_adam_kernel as kernel
from adamas.rules import micro_adam
from adamas.rules._micro_adam_state import BLOCK
from tests.support.micro_adam_kernels import needs_numba, rule_for, step, steps_by


@needs_numba
def test_the_kernel_compiles_and_is_used():
    assert kernel.available()
    assert micro_adam._kernel() is kernel


@needs_numba
def test_autograd_notices_the_in_place_change():
    p = nn.Parameter(torch.ones(4))
    rule = rules.MicroAdam([p])
    loss = (p * p).sum()
    with steps_by(True) as seen:
        step(rule, [torch.ones(4)])
    assert seen
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize(
    ("options", "dtype", "n"),
    [
        ({"bits": None}, torch.float32, 1000),
        ({"rounding": "stochastic"}, torch.float32, 1000),
        ({"scope": "tensor"}, torch.float32, 1000),
        ({"scope": "global"}, torch.float32, 1000),
        ({}, torch.float64, 1000),
        ({}, torch.bfloat16, 1000),
        ({"bucket_size": 1000}, torch.float32, BLOCK + 1),
    ],
    ids=str,
)
def test_other_options_and_dtypes_are_left_to_torch(options, dtype, n):
    p = nn.Parameter(torch.ones(n, dtype=dtype))
    rule = rules.MicroAdam([p], lr=0.1, **options)
    with steps_by(True) as seen:
        step(rule, [torch.linspace(-1, 1, n).to(dtype)])
    assert not seen
    assert (p != 1).any()


@needs_numba
@pytest.mark.parametrize("n", [10, 1500, BLOCK, 3 * BLOCK])
def test_a_state_of_another_size_is_left_to_torch_which_checks_its_indices(n):
    rule, other = rule_for([1000]), rule_for([n])
    step(rule, [torch.ones(1000)])
    other.load_state_dict(rule.state_dict())
    with steps_by(True) as seen, suppress(RuntimeError):
        step(other, [torch.ones(n)])
    assert not seen


@needs_numba
@pytest.mark.parametrize("index", [-1, -32768, 1000, 32767])
@pytest.mark.parametrize("compiled", [True, False])
def test_a_damaged_state_is_refused(index, compiled):
    rule = rule_for([1000])
    with steps_by(compiled):
        step(rule, [torch.ones(1000)])
        (state,) = rule.state.values()
        state["indices"][3] = index
        with pytest.raises(RuntimeError, match=r"indices|index"):
            step(rule, [torch.ones(1000)])


# Ways in which Numba is unusable.
BROKEN = {
    "missing": "sys.modules['numba'] = None",
    "broken": "sys.path.insert(0, broken)",
    "switched off": "import os; os.environ['NUMBA_DISABLE_JIT'] = '1'",
}


@pytest.mark.subprocess
@pytest.mark.parametrize("way", BROKEN)
def test_without_numba_torch_makes_the_step(way, tmp_path):
    (tmp_path / "numba.py").write_text("raise OSError('libllvmlite.so: cannot open shared object file')\n")
    code = (
        f"import sys\nbroken = {str(tmp_path)!r}\n{BROKEN[way]}\n"
        "import torch\nfrom adamas import PrivateGradient, rules\nfrom adamas.rules import micro_adam\n"
        "p = torch.nn.Parameter(torch.zeros(4))\nrule = rules.MicroAdam([p], lr=0.1, density=0.25)\n"
        "for _ in range(2):\n"
        "    PrivateGradient({p: torch.tensor([1.0, -3.0, 2.0, 0.0])}, {p: 0.0}).write_to(rule)\n"
        "    rule.step()\n"
        "print(micro_adam._kernel(), [round(x, 4) for x in p.tolist()])\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "None [0.0, 0.167, -0.0744, 0.0]"
    assert not done.stderr
