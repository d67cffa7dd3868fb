"""bitsandbytes on hetero: its kernels of the CPU, for quantized layers and optimizers."""

from __future__ import annotations

import copy
from typing import Any

import bitsandbytes as bnb
import pytest
import torch
from bitsandbytes import functional as F
from on_device import assert_same, recording
from torch import Tensor, nn


def layer(kind: Any, device: str, **chosen: Any) -> Any:
    torch.manual_seed(0)
    plain = nn.Linear(64, 128)
    made = kind(64, 128, **chosen)
    made.load_state_dict(plain.state_dict())
    return made.to(device)  # quantizes


def inputs(device: str, dtype: torch.dtype = torch.float32) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(4, 64).to(device, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_layers_of_four_bits_are_the_cpus(kind: str, dtype: torch.dtype) -> None:
    chosen = {"quant_type": kind, "compute_dtype": dtype}
    plain, model = (layer(bnb.nn.Linear4bit, device, **chosen) for device in ("cpu", "hetero"))
    assert model.weight.device.type == "hetero"
    assert model.weight.dtype == torch.uint8
    assert torch.equal(model.weight.data.cpu(), plain.weight)

    results = {}
    for name, one in {"cpu": plain, "hetero": model}.items():
        x = inputs(name, dtype).requires_grad_()
        one(x).square().sum().backward()
        results[name] = (one(x).detach(), x.grad)
    for result, expected in zip(results["hetero"], results["cpu"], strict=True):
        assert_same(result, expected)

    with recording(1) as seen, torch.no_grad():
        model(inputs("hetero", dtype))
    # The weight is unpacked by the CPU's kernel, recorded as one operator.
    assert seen.straight == 0
    assert not seen.fallbacks
    assert seen.recorded < 20


def test_layers_of_eight_bits_are_the_cpus_in_inference() -> None:
    plain, model = (layer(bnb.nn.Linear8bitLt, name, has_fp16_weights=False).eval() for name in ("cpu", "hetero"))
    assert model.weight.device.type == "hetero"
    assert model.weight.dtype == torch.int8
    with torch.no_grad(), recording(5):
        result = model(inputs("hetero"))
    with torch.no_grad():
        assert_same(result, plain(inputs("cpu")))


def test_layers_of_eight_bits_train() -> None:
    # On the CPU, bitsandbytes trains with float activations; elsewhere with eight bits.
    model = layer(bnb.nn.Linear8bitLt, "hetero", has_fp16_weights=False)
    plain = layer(bnb.nn.Linear8bitLt, "cpu", has_fp16_weights=False)
    x, y = inputs("hetero").requires_grad_(), inputs("cpu").requires_grad_()
    assert_same(model(x), plain(y), rtol=0.05, atol=0.05)
    model(x).sum().backward()
    plain(y).sum().backward()
    assert_same(x.grad, y.grad, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("name", ["AdamW8bit", "Adam8bit", "Lion8bit", "SGD8bit", "AdamW", "PagedAdamW8bit"])
def test_optimizers_are_the_cpus(name: str) -> None:
    def train(device: str) -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)).to(device)
        chosen = {"momentum": 0.9} if name == "SGD8bit" else {}
        optimizer = getattr(bnb.optim, name)(model.parameters(), lr=1e-2, **chosen)
        losses = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = (model(inputs(device)) - 1).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        state = optimizer.state[model[0].weight]["state1"]
        assert state.device.type == device
        assert (state.dtype == torch.uint8) == ("8bit" in name)
        return losses

    assert train("hetero") == pytest.approx(train("cpu"), rel=1e-4)


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_quantizing_and_back_has_the_cpus_bits(kind: str) -> None:
    x = torch.randn(128, 64)
    packed, state = F.quantize_4bit(x.to("hetero"), quant_type=kind)
    expected, expected_state = F.quantize_4bit(x, quant_type=kind)
    assert torch.equal(packed.cpu(), expected)
    assert_same(F.dequantize_4bit(packed, state), F.dequantize_4bit(expected, expected_state), rtol=0, atol=0)
    packed, state = F.quantize_blockwise(x.to("hetero"))
    expected, expected_state = F.quantize_blockwise(x)
    assert torch.equal(packed.cpu(), expected)
    assert_same(
        F.dequantize_blockwise(packed, state), F.dequantize_blockwise(expected, expected_state), rtol=0, atol=0
    )


def test_quantized_weights_move_between_devices() -> None:
    model = layer(bnb.nn.Linear4bit, "hetero", quant_type="nf4")
    expected = model(inputs("hetero")).cpu()
    back = copy.deepcopy(model).to("cpu")
    torch.testing.assert_close(back(inputs("cpu")), expected)
