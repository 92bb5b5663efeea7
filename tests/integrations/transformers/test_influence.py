"""One record moves the clipped sum behind a step of a private trainer by at most 1."""

import pytest

pytest.importorskip("trl")

import torch
from transformers import TrainerCallback

from tests.support.tiny_sft import sft
from tests.support.tiny_trainers import bert, labelled, texts, trainer

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

CLIP = 0.1  # below the gradients of these models


class Grads(TrainerCallback):
    """Keeps what the rule steps on: it comes after the callback that writes the release."""

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        grads = [p.grad.detach().flatten() for p in model.parameters() if p.requires_grad]
        self.seen = torch.cat(grads).double()


def summed(folder, make, data, *, clip=CLIP, **changes):
    """Returns the noisy sum of a step in which all records take part."""
    grads, n = Grads(), len(data)
    parts = 2 if n % 2 == 0 else 1  # micro-batches
    sizes = {"per_device_train_batch_size": n // parts, "gradient_accumulation_steps": parts}
    made = make(
        folder / str(n),
        data=data,
        callbacks=[grads],
        privacy={"noise_multiplier": 1.0, "accountant": "rdp", "seed": 5, "clip_norm": clip},
        arguments_=sizes | {"max_steps": 1, "save_strategy": "no"} | changes,
    )
    made.train()
    assert made.run.loader.sampler.batch_size == made.run.loader.sampler.dataset_size == n
    return grads.seen * n


def classifier(folder, **more):
    return trainer(folder, model=bert(dropout=0.0), **more)


def with_last(data, **values):
    """Replaces the last record by one that is longer than all others."""
    rows = data.to_list()
    return data.from_list([*rows[:-1], rows[-1] | values])


def padded():
    return with_last(labelled(8), input_ids=list(range(3, 23)), attention_mask=[1] * 20, label=1)


def truncated():
    return with_last(texts(8), completion=" " + " ".join(f"w{i}" for i in range(30)))


@pytest.mark.parametrize(
    ("make", "data"), [(classifier, padded), (sft, truncated)], ids=["padded", "TRL, truncated"]
)
@pytest.mark.parametrize("bf16", [False, True])
def test_a_record_has_influence_at_most_1(tmp_path, make, data, bf16):
    data = data()
    with_, without = (
        summed(tmp_path, make, data.select(range(n)), bf16=bf16, gradient_checkpointing=bf16) for n in (8, 7)
    )
    influence = float((with_ - without).norm()) / CLIP
    assert 0.99 < influence <= 1 + 1e-5


def test_the_measure_sees_a_record_that_is_not_clipped(tmp_path):
    with_, without = (summed(tmp_path, classifier, padded().select(range(n)), clip=100.0) for n in (8, 7))
    assert (with_ - without).norm() > 2 * CLIP
