"""``flex_attention`` on hetero: eager and compiled, with score functions and block masks, and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from on_device import assert_same, recording
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

LENGTH = 64


def causal(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key


def relative(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return score + 0.1 * (query - key) * (head + 1)


CHOICES: dict[str, Callable[[str], dict[str, Any]]] = {
    "plain": lambda device: {},
    "scores": lambda device: {"score_mod": relative},
    "mask": lambda device: {"block_mask": create_block_mask(causal, None, None, LENGTH, LENGTH, device=device)},
    "both": lambda device: {
        "score_mod": relative,
        "block_mask": create_block_mask(causal, 2, 4, LENGTH, LENGTH, device=device),
        "scale": 0.5,
    },
    "grouped": lambda device: {"enable_gqa": True},
}


def inputs(name: str) -> list[Tensor]:
    torch.manual_seed(0)
    heads = 2 if name == "grouped" else 4
    return [torch.randn(2, count, LENGTH, 16) for count in (4, heads, heads)]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", CHOICES)
def test_attention_is_the_cpus(name: str, compiled: bool) -> None:
    expected = flex_attention(*inputs(name), **CHOICES[name]("cpu"))
    attend = torch.compile(flex_attention) if compiled else flex_attention
    with recording():
        result = attend(*(tensor.to("hetero") for tensor in inputs(name)), **CHOICES[name]("hetero"))
        torch.hetero.flush()
    assert_same(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", ["plain", "both"])
def test_gradients_are_those_of_scaled_dot_product_attention(name: str, compiled: bool) -> None:
    # flex_attention itself has no gradients on the CPU.
    expected = [tensor.requires_grad_() for tensor in inputs(name)]
    chosen = {}
    if name == "both":
        index = torch.arange(LENGTH)
        steps = index[:, None] - index
        bias = 0.1 * steps * torch.arange(1, 5)[:, None, None]
        chosen = {"attn_mask": bias.masked_fill(steps < 0, float("-inf")), "scale": 0.5}
    torch.nn.functional.scaled_dot_product_attention(*expected, **chosen).square().sum().backward()

    result = [tensor.to("hetero").requires_grad_() for tensor in inputs(name)]
    attend = torch.compile(flex_attention) if compiled else flex_attention
    attend(*result, **CHOICES[name]("hetero")).square().sum().backward()
    for one, other in zip(result, expected, strict=True):
        assert_same(one.grad, other.grad, rtol=1e-3, atol=1e-4)


def test_a_block_mask_is_made_on_hetero() -> None:
    mask = create_block_mask(causal, None, None, 256, 256, device="hetero")
    assert mask.kv_num_blocks.device.type == "hetero"
    expected = create_block_mask(causal, None, None, 256, 256, device="cpu")
    assert torch.equal(mask.to_dense().cpu(), expected.to_dense())
    assert mask.to("cpu").kv_num_blocks.device.type == "cpu"


def test_the_cpu_refuses_gradients_as_before() -> None:
    with pytest.raises(NotImplementedError, match="does not support backward on CPU"):
        flex_attention(*(tensor.requires_grad_() for tensor in inputs("plain")))
