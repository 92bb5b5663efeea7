"""The fast engine on architectures as people train them, compared with plain autograd, one example at a time.

Norms and sums of an accepted architecture must be exact. An architecture registered as fast must be accepted,
and one that mixes examples must be refused.
"""

import pytest

from tests.support.architectures import ARCHITECTURES, MIXED, N, T, judged

pytestmark = [
    pytest.mark.whole_models,
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


# N is five; with T examples, the batch axis is as long as a text, so that sizes do not tell them apart.
@pytest.mark.parametrize("n", [N, T])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_is_exact_and_fast_if_registered_so(name, n):
    architecture = ARCHITECTURES[name]
    verdict = judged(architecture, n)
    assert len(verdict.idle) <= verdict.trainable / 3, f"no gradient reaches {verdict.idle}"
    allowed = {"exact"} if architecture.expected == "fast" else {"exact", "refused"}
    assert verdict.outcome in allowed, f"{verdict.outcome}: {verdict.text} ({verdict.error:g})"


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_batch_of_one_is_exact_or_refused(name):
    verdict = judged(ARCHITECTURES[name], 1)
    assert verdict.outcome != "wrong", f"{verdict.text} ({verdict.error:g})"


@pytest.mark.parametrize("name", MIXED)
def test_an_architecture_that_mixes_examples_is_refused(name):
    verdict = judged(MIXED[name])
    assert verdict.outcome == "refused", f"{verdict.outcome}: {verdict.text} ({verdict.error:g})"
