"""TRL's SFTTrainer, made private: its own records, masks and adapters, the same steps as a plain loop."""

import dataclasses

import pytest

pytest.importorskip("trl")
pytest.importorskip("peft")

import torch
from peft import LoraConfig, OFTConfig
from transformers import get_scheduler
from trl import DPOConfig, DPOTrainer, SFTConfig

import adamas
from adamas import rules
from adamas.errors import UnsupportedError
from adamas.integrations import losses
from adamas.integrations.transformers import Privacy, PrivateTrainerMixin
from adamas.integrations.transformers.arguments import MAPPED, REFUSED, SUPPORTED
from tests.support.tiny_sft import PrivateSFT, sft, sft_arguments
from tests.support.tiny_trainers import PRIVACY, llama, texts, tokenizer, weights

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

LORA = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.1)


def test_completions_are_trained_as_by_a_plain_loop_on_trl_s_own_records(tmp_path):
    ours = sft(tmp_path, eval_dataset=texts(4, seed=3), arguments_={"eval_strategy": "epoch", "bf16": False})
    ours.train()
    model = llama()
    rule = rules.AdamBC(model.parameters(), lr=1e-2)
    run = adamas.make_private(
        model.train(),
        rule,
        ours.train_dataset.select_columns(["input_ids", "labels"]),
        losses.causal_lm,
        batch_size=4,
        steps=6,
        delta=1 / 240,
        micro_batch_size=2,
        collate_fn=ours.data_collator,
        **PRIVACY,
    )
    schedule = get_scheduler("linear", rule, num_warmup_steps=2, num_training_steps=6)
    for batch in run.batches():
        run.privatize(batch).write_to(rule)
        rule.step()
        schedule.step()
    assert torch.equal(weights(ours.model), weights(model))
    assert ours.run.ledger.entries == run.ledger.entries
    row = ours.train_dataset[0]
    assert row["labels"][0] == -100 != row["labels"][-1]  # prompts do not count
    training = [row for row in ours.state.log_history if "learning_rate" in row]
    assert training
    assert not {"loss", "grad_norm", "entropy", "mean_token_accuracy", "num_tokens"} & set().union(*training)
    assert any("eval_mean_token_accuracy" in row for row in ours.state.log_history)


def test_adapters_train_in_bfloat16_and_resume_bit_for_bit(tmp_path):
    """With TRL's defaults: bf16 autocast and gradient checkpointing."""
    whole = sft(tmp_path / "a", peft_config=LORA)
    assert whole.args.bf16
    assert whole.args.gradient_checkpointing
    frozen = whole.model.base_model.model.model.embed_tokens.weight.clone()
    before = weights(whole.model).clone()
    whole.train()
    assert torch.equal(whole.model.base_model.model.model.embed_tokens.weight, frozen)
    assert not torch.equal(weights(whole.model), before)
    trained = {name for name, p in whole.model.named_parameters() if p.requires_grad}
    assert trained == {name for name, _ in whole.model.named_parameters() if "lora_" in name}
    again = sft(tmp_path / "b", peft_config=LORA)
    again.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-3"))
    assert torch.equal(weights(again.model), weights(whole.model))
    assert again.run.ledger.entries == whole.run.ledger.entries
    assert (tmp_path / "b" / "checkpoint-6" / "adapter_model.safetensors").exists()


def test_adapters_that_a_checkpoint_repeats_with_other_tensors_train_on_another_engine(tmp_path):
    """OFT under TRL's default of gradient checkpointing."""
    rotations = OFTConfig(r=0, oft_block_size=4, target_modules=["q_proj", "v_proj"])
    made = sft(tmp_path, peft_config=rotations, arguments_={"max_steps": 1})
    made.train()
    assert made.run.engine == "loop"
    fast = sft(tmp_path, peft_config=rotations, privacy=PRIVACY | {"engine": "bookkeeping"})
    with pytest.raises(
        UnsupportedError, match=r"engine='bookkeeping' cannot run.*gradient_checkpointing=False"
    ):
        fast.train()
    plain = sft(tmp_path, peft_config=rotations, arguments_={"gradient_checkpointing": False, "max_steps": 1})
    plain.train()
    assert plain.run.engine == "bookkeeping"


@pytest.mark.parametrize(
    ("name", "value"),
    [("packing", True), ("padding_free", True), ("loss_type", "dft")],
)
def test_what_joins_records_is_refused(tmp_path, name, value):
    changes = {name: value} | ({"max_length": None} if name == "padding_free" else {})
    with pytest.raises(UnsupportedError, match=f"Expected {name}=.*got {value!r}"):
        sft(tmp_path, arguments_=changes)


def test_every_field_of_sft_s_arguments_has_one_place():
    fields = {one.name for one in dataclasses.fields(SFTConfig)}
    assert not fields - SUPPORTED - MAPPED.keys() - REFUSED.keys()


def test_a_stream_is_refused(tmp_path):
    with pytest.raises(TypeError, match=r"map-style|__len__"):
        sft(tmp_path, data=texts().to_iterable_dataset())


def test_records_that_train_are_not_evaluated_though_trl_makes_data_sets_of_its_own(tmp_path):
    data = texts()
    by_position = (llama(), sft_arguments(tmp_path), None, data, data)
    with pytest.raises(ValueError, match="Expected an eval_dataset other than train_dataset"):
        PrivateSFT(*by_position, processing_class=tokenizer(), privacy=Privacy(**PRIVACY))
    made = sft(tmp_path, data=data)
    assert made.train_dataset is not data
    for known in (data, made.train_dataset):
        with pytest.raises(ValueError, match="Expected an eval_dataset other than train_dataset"):
            made.evaluate(known)


def test_preferences_are_refused_with_the_reason(tmp_path):
    class PrivateDPO(PrivateTrainerMixin, DPOTrainer):
        pass

    pairs = texts(4).map(lambda row: {"chosen": row["completion"], "rejected": " w1"})
    with pytest.raises(UnsupportedError, match="DPOTrainer has its own compute_loss"):
        PrivateDPO(
            llama(),
            ref_model=llama(),
            args=DPOConfig(str(tmp_path), max_steps=1, use_cpu=True, report_to="none"),
            train_dataset=pairs.remove_columns("completion"),
            processing_class=tokenizer(),
            privacy=Privacy(),
        )
