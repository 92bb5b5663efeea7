"""The fast engine on architectures as people train them, against plain autograd one example at a time.

An architecture that the engine accepts must be exact, one that it is expected to serve must not be refused,
and one that mixes the examples of a batch must be.
"""

import pytest

from tests.support.architectures import ARCHITECTURES, MIXED, N, T, judged

pytestmark = [
    pytest.mark.whole_models,
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


# Five examples, and as many as there are words in a text, so that sizes do not tell the axes from each other.
@pytest.mark.parametrize("n", [N, T])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_fast_and_exact_as_expected(name, n):
    architecture = ARCHITECTURES[name]
    verdict = judged(architecture, n)
    assert len(verdict.idle) <= verdict.trainable / 3, f"{verdict.idle} prove nothing"
    allowed = {"exact"} if architecture.expected == "fast" else {"exact", "refused"}
    assert verdict.outcome in allowed, f"{verdict.outcome}: {verdict.text} ({verdict.error:g})"


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_batch_of_one_is_exact_or_refused(name):
    verdict = judged(ARCHITECTURES[name], 1)
    assert verdict.outcome != "wrong", f"{verdict.text} ({verdict.error:g})"


@pytest.mark.parametrize("name", MIXED)
def test_mixed_examples_are_refused(name):
    verdict = judged(MIXED[name])
    assert verdict.outcome == "refused", f"{verdict.outcome}: {verdict.text} ({verdict.error:g})"
