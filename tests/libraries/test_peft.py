"""peft: adapters are trained, merged, saved and loaded on hetero."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.utils import infer_device
from tiny import causal_model, devices, recording, sentences, tokenizer
from torch import nn

CONFIGS: dict[str, Any] = {
    "lora": lambda: LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
    "dora": lambda: LoraConfig(r=4, target_modules=["q_proj", "up_proj"], use_dora=True, task_type="CAUSAL_LM"),
    "ia3": lambda: peft.IA3Config(target_modules=["v_proj"], feedforward_modules=[], task_type="CAUSAL_LM"),
    "oft": lambda: peft.OFTConfig(oft_block_size=16, target_modules=["q_proj"], task_type="CAUSAL_LM"),
    "prompt": lambda: peft.PromptTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"),
}


def batch(device: str) -> dict[str, torch.Tensor]:
    rows = tokenizer()(sentences(4), return_tensors="pt").to(device)
    return {"input_ids": rows["input_ids"], "attention_mask": rows["attention_mask"], "labels": rows["input_ids"]}


def train(name: str, device: str, steps: int = 4) -> tuple[PeftModel, list[float]]:
    torch.manual_seed(2)
    model = get_peft_model(causal_model(), CONFIGS[name]()).to(device)
    optimizer = torch.optim.AdamW((part for part in model.parameters() if part.requires_grad), lr=1e-2)
    losses = []
    for _ in range(steps):
        loss = model(**batch(device)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return model.eval(), losses


def test_the_inferred_device_is_hetero() -> None:
    assert infer_device() == "hetero"


@pytest.mark.parametrize("name", CONFIGS)
def test_adapters_train_and_load_as_on_the_cpu(name: str, tmp_path: Path) -> None:
    expected, expected_losses = train(name, "cpu")
    with recording(100):
        model, losses = train(name, "hetero")
    assert devices(model) == {"hetero"}
    torch.testing.assert_close(losses, expected_losses, rtol=1e-3, atol=1e-4)
    model.save_pretrained(tmp_path)
    for chosen in ({}, {"torch_device": "hetero"}, {"torch_device": "cpu"}):
        loaded = PeftModel.from_pretrained(causal_model().to("hetero"), tmp_path, **chosen)
        assert devices(loaded) == {"hetero"}
        with torch.no_grad():
            torch.testing.assert_close(
                loaded(**batch("hetero")).logits.cpu(), expected(**batch("cpu")).logits, rtol=1e-2, atol=1e-3
            )


def test_a_model_on_the_cpu_gets_its_adapter_there(tmp_path: Path) -> None:
    train("lora", "cpu")[0].save_pretrained(tmp_path)
    assert devices(PeftModel.from_pretrained(causal_model(), tmp_path)) == {"cpu"}


def test_lora_merges_and_switches_adapters() -> None:
    model, _ = train("lora", "hetero")
    with torch.no_grad():
        expected = model(**batch("hetero")).logits.cpu()
        with model.disable_adapter():
            plain = model(**batch("hetero")).logits.cpu()
        torch.testing.assert_close(plain, causal_model().eval()(**batch("cpu")).logits, rtol=1e-4, atol=1e-5)
        model.add_adapter("other", CONFIGS["lora"]())
        model.set_adapter("other")
        torch.testing.assert_close(model(**batch("hetero")).logits.cpu(), plain, rtol=1e-4, atol=1e-5)
        model.set_adapter("default")
        model.delete_adapter("other")
        merged = model.merge_and_unload()
        assert not any("lora" in name for name, _ in merged.named_parameters())
        torch.testing.assert_close(merged(**batch("hetero")).logits.cpu(), expected, rtol=1e-3, atol=1e-4)
    assert not torch.equal(plain, expected)
    assert devices(merged) == {"hetero"}
    assert isinstance(merged, nn.Module)
