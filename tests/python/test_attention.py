"""Attention, with fusion: within PyTorch's default tolerances of CPU, through autograd, at first sight and replayed."""

from __future__ import annotations

import pytest
import torch
from helpers import DEVICE
from torch.nn.functional import scaled_dot_product_attention

# batch, heads, queries, keys, head size
SIZES = {
    "self": (2, 4, 33, 33, 32),
    "cross": (1, 3, 20, 70, 24),
    "few queries": (2, 4, 3, 50, 64),
    "long": (1, 2, 300, 600, 16),
}
KINDS = ["plain", "causal", "padding", "bias"]


def attend(sizes: tuple[int, ...], kind: str, device: str) -> list[torch.Tensor]:
    """The result, and the gradients of query, key, value as projections of one layer give them."""
    batch, heads, queries, keys, size = sizes
    generator = torch.Generator().manual_seed(3)
    rows = [torch.randn(batch, n, heads * size, generator=generator) for n in (queries, keys, keys, queries)]
    leaves = [value.to(device).requires_grad_() for value in rows[:3]]
    q, k, v = [leaf.view(batch, -1, heads, size).transpose(1, 2) for leaf in leaves]
    mask = None
    if kind == "padding":
        mask = torch.ones(batch, 1, 1, keys, dtype=torch.bool)
        mask[0, ..., keys // 2 :] = False
    elif kind == "bias":
        mask = torch.randn(queries, keys, generator=generator)
    out = scaled_dot_product_attention(
        q, k, v, attn_mask=None if mask is None else mask.to(device), is_causal=kind == "causal"
    )
    out = out.transpose(1, 2).reshape(batch, queries, heads * size)
    grads = torch.autograd.grad(out, leaves, rows[3].to(device))
    return [tensor.detach().cpu() for tensor in (out, *grads)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SIZES)
def test_attention_and_its_gradients_are_close_to_cpu(name: str, kind: str) -> None:
    expected = attend(SIZES[name], kind, "cpu")
    for _ in range(3):
        torch.testing.assert_close(attend(SIZES[name], kind, DEVICE), expected)
