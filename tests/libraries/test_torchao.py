"""torchao on hetero: quantized weights, and optimizers with small states, whose steps are compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from on_device import assert_same, devices_of, recording
from torch import nn
from torchao.optim import AdamW4bit, AdamW8bit
from torchao.quantization import (
    Int8DynamicActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    quantize_,
)
from torchao.quantization.granularity import PerGroup

CONFIGS: dict[str, Callable[[], Any]] = {
    "int8": Int8WeightOnlyConfig,
    "int8 of both": Int8DynamicActivationInt8WeightConfig,
    "int4": lambda: IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)),
}


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CONFIGS)
def test_quantized_models_are_the_cpus(name: str, dtype: torch.dtype) -> None:
    plain = make_model().to(dtype)
    quantize_(plain, CONFIGS[name]())
    x = torch.randn(4, 64, dtype=dtype)
    expected = plain(x)

    model = make_model().to("hetero", dtype)
    quantize_(model, CONFIGS[name]())
    assert devices_of(model) == {"hetero"}
    assert type(model[0].weight) is type(plain[0].weight)
    with recording(5) as seen:
        result = model(x.to("hetero"))
    assert not seen.fallbacks
    assert_same(result, expected)
    # Quantized on the CPU, and moved.
    assert_same(copy.deepcopy(plain).to("hetero")(x.to("hetero")), expected)


def test_a_quantized_model_is_saved_and_compiled(tmp_path: Any) -> None:
    model = make_model().to("hetero")
    quantize_(model, Int8WeightOnlyConfig())
    x = torch.randn(4, 64, device="hetero")
    expected = model(x).cpu()
    torch.save(model.state_dict(), tmp_path / "model.pt")
    loaded = make_model().to("hetero")
    loaded.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=False), assign=True)
    assert devices_of(loaded) == {"hetero"}
    assert_same(loaded(x), expected)
    assert_same(torch.compile(loaded)(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("optimizer", [AdamW8bit, AdamW4bit])
def test_steps_of_small_optimizers_are_the_cpus(optimizer: Any) -> None:
    def train(device: str) -> list[float]:
        model = make_model().to(device)
        chosen = optimizer(model.parameters(), lr=1e-2)
        torch.manual_seed(1)
        x = torch.randn(4, 64).to(device)
        losses = []
        for _ in range(4):
            chosen.zero_grad()
            loss = (model(x) - 1).square().mean()
            loss.backward()
            chosen.step()
            losses.append(loss.item())
        state = chosen.state[model[0].weight]["exp_avg"]
        assert type(state) is not torch.Tensor
        assert state.device.type == device
        return losses

    with torch.compiler.set_stance("force_eager"):
        expected = train("cpu")
    torch._dynamo.reset()
    before = torch.hetero.explain()
    assert train("hetero") == pytest.approx(expected, rel=1e-4)
    # The step is a program of the backend "hetero".
    assert (torch.hetero.explain() - before).compiled["calls"] > 0
