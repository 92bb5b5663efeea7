"""The fast engine on the architectures of `architectures.py`, against plain autograd one example at a time.

Whatever the engine accepts is exact, an architecture that it is expected to serve is not refused, and what
mixes the examples of a batch is.
"""

import pytest
from architectures import ARCHITECTURES, MIXED, N, T, judged

# Expected on the fast engine, and not yet there. A name that works must leave this list.
PENDING = {
    "video, frames folded into the batch",
    "video, frames folded by sizes",
    "video, frames folded, time first",
    "LSTM, packed",
    "LSTM, packed, one direction",
    "LSTM, packed, sorted",
    "GRU, packed",
    "GRU, packed, one direction",
    "GRU, packed, sorted",
    "RNN, packed",
    "GRU, learned initial state",
    "mixture of experts, rows of each expert",
    "mixture of experts, weights of each token",
    "multi-head attention, biases",
    "relative position bias",
    "window attention",
    "class token",
    "tokens by a boolean mask",
    "tokens by a boolean mask, put back",
    "BERT, token classes",
    "BERT, multiple choice",
    "DeBERTa-v2",
    "XLNet",
    "Funnel",
    "Mixtral, batched",
    "Qwen2-MoE, batched",
    "RecurrentGemma",
    "Mixtral, grouped",
    "BEiT, sdpa",
    "Swin",
    "Swin-v2",
    "SigLIP, images",
    "TimeSformer",
    "ViT-MAE, with its own noise",
    "Wav2Vec2",
    "Hubert",
    "WavLM",
    "Wav2Vec2, CTC",
    "Whisper",
    "BERT, prompt tuning",
    "BERT, LoHa",
    "BERT, OFT",
    "GPT-2, prompt tuning",
    "GPT-2, p-tuning",
    "Llama, adaption prompt",
}
# Mixed, and not yet refused.
UNSEEN = {
    "mean of a batch above four",
    "the fifth example for all",
    "experts with a capacity that three examples do not fill",
}

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

every_architecture = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.xfail(strict=True, reason="pending"))
        if name in PENDING
        else name
        for name in ARCHITECTURES
    ],
)


# Five examples, and as many as there are words in a text, so that sizes do not tell the axes from each other.
@pytest.mark.parametrize("n", [N, T])
@every_architecture
def test_fast_and_exact_as_expected(name, n):
    architecture = ARCHITECTURES[name]
    verdict = judged(architecture, n)
    assert len(verdict.idle) <= verdict.trainable / 3, f"{verdict.idle} prove nothing"
    allowed = {"exact"} if architecture.expected == "fast" else {"exact", "refused"}
    assert verdict.outcome in allowed, f"{verdict.outcome}: {verdict.text} ({verdict.error:g})"


@pytest.mark.parametrize("name", sorted(PENDING))
def test_not_wrong_meanwhile(name):
    verdict = judged(ARCHITECTURES[name])
    assert verdict.outcome != "wrong", f"{verdict.text} ({verdict.error:g})"


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_batch_of_one_is_exact_or_refused(name):
    verdict = judged(ARCHITECTURES[name], 1)
    assert verdict.outcome != "wrong", f"{verdict.text} ({verdict.error:g})"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.xfail(strict=True, reason="unseen")) if name in UNSEEN else name
        for name in MIXED
    ],
)
def test_mixed_examples_are_refused(name):
    verdict = judged(MIXED[name])
    assert verdict.outcome == "refused", f"{verdict.outcome}: {verdict.text} ({verdict.error:g})"
