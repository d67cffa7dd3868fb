"""TRL: fine-tuning of a tiny model on hetero, which its trainers pick as transformers' does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from tiny import causal_model, devices, recording, sentences, tokenizer
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, RewardConfig, RewardTrainer, SFTConfig, SFTTrainer

SETTINGS: dict[str, Any] = dict(
    max_steps=3, per_device_train_batch_size=2, logging_steps=1, report_to=[], disable_tqdm=True, save_strategy="no",
    learning_rate=1e-3, seed=0, bf16=False, gradient_checkpointing=False,
)


def texts() -> Dataset:
    return Dataset.from_dict({"text": sentences(8)})


def preferences() -> Dataset:
    return Dataset.from_dict({"prompt": sentences(8), "chosen": sentences(8, seed=1), "rejected": sentences(8, seed=2)})


def losses(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def check(make: Any, tolerance: float = 1e-3, values: tuple[str, ...] = ()) -> None:
    """Trains on the CPU, and where nothing is chosen."""
    expected = make(use_cpu=True)
    expected.train()
    assert devices(expected.model) == {"cpu"}
    with recording(100, values):
        trainer = make()
        trainer.train()
    assert devices(trainer.model) == {"hetero"}
    assert len(losses(trainer)) == 3
    torch.testing.assert_close(losses(trainer), losses(expected), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("chosen", [{}, {"gradient_checkpointing": True}, {"bf16": True}, {"packing": True},
                                    {"activation_offloading": True}], ids=str)
def test_sft_trains_as_on_the_cpu(chosen: dict[str, Any], tmp_path: Path) -> None:
    def make(**where: Any) -> SFTTrainer:
        settings = {**SETTINGS, **chosen, **where}
        if where:
            settings["activation_offloading"] = False  # for accelerators
        return SFTTrainer(
            causal_model(), SFTConfig(output_dir=str(tmp_path), max_length=32, **settings), train_dataset=texts(),
            processing_class=tokenizer(),
        )

    check(make, tolerance=0.02 if "bf16" in chosen else 1e-3)


def test_sft_with_lora_trains_as_on_the_cpu(tmp_path: Path) -> None:
    check(lambda **where: SFTTrainer(
        causal_model(), SFTConfig(output_dir=str(tmp_path), max_length=32, **SETTINGS, **where), train_dataset=texts(),
        processing_class=tokenizer(), peft_config=LoraConfig(r=4, lora_dropout=0.0, task_type="CAUSAL_LM"),
    ))


def test_dpo_trains_as_on_the_cpu(tmp_path: Path) -> None:
    check(lambda **where: DPOTrainer(
        causal_model(), causal_model(), DPOConfig(output_dir=str(tmp_path), max_length=32, **SETTINGS, **where),
        train_dataset=preferences(), processing_class=tokenizer(),
    ), values=("index.Tensor",))  # a mask of the completions


def test_reward_models_train_as_on_the_cpu(tmp_path: Path) -> None:
    from transformers import LlamaForSequenceClassification

    def make(**where: Any) -> RewardTrainer:
        config = causal_model().config
        config.num_labels = 1
        torch.manual_seed(0)
        return RewardTrainer(
            LlamaForSequenceClassification(config), RewardConfig(output_dir=str(tmp_path), **SETTINGS, **where),
            train_dataset=preferences(), processing_class=tokenizer(),
        )

    check(make)


def test_grpo_generates_and_trains(tmp_path: Path) -> None:
    def lengths(completions: list[str], **named: Any) -> list[float]:
        return [float(len(set(text.split()))) for text in completions]

    settings = {**SETTINGS, "per_device_train_batch_size": 4, "max_steps": 2}
    with recording(100, values=("multinomial", "index.Tensor")):
        trainer = GRPOTrainer(
            causal_model(), lengths, GRPOConfig(output_dir=str(tmp_path), num_generations=4, max_completion_length=8,
                                                **settings),
            train_dataset=Dataset.from_dict({"prompt": sentences(8)}), processing_class=tokenizer(),
        )
        before = causal_model().state_dict()
        trainer.train()
    assert devices(trainer.model) == {"hetero"}
    assert all(torch.isfinite(torch.tensor(losses(trainer))))
    assert any(not torch.equal(part.cpu(), before[name]) for name, part in trainer.model.state_dict().items())
