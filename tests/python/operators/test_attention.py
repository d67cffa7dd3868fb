"""Attention, with fusion: within PyTorch's default tolerances of CPU, through autograd, at first sight and replayed.

By our kernels, also where several heads of queries share one of keys, and in 2-byte floats.
"""

from __future__ import annotations

import pytest
import torch
from helpers import DEVICE, needs_hetero
from torch.nn.functional import scaled_dot_product_attention

# batch, heads, heads of keys, queries, keys, head size
SIZES = {
    "self": (2, 4, 4, 33, 33, 32),
    "cross": (1, 3, 3, 20, 70, 24),
    "few queries": (2, 4, 4, 3, 50, 64),
    "long": (1, 2, 2, 300, 600, 16),
    "shared keys": (2, 4, 2, 33, 33, 32),
    "shared keys, one query": (1, 16, 8, 1, 64, 128),
    "shared keys, few queries": (2, 6, 1, 5, 50, 64),
    "shared keys, long": (1, 4, 2, 300, 600, 16),
}
KINDS = ["plain", "causal", "padding", "bias"]
TWO_BYTES = [torch.bfloat16, torch.float16]


def attend(
    sizes: tuple[int, ...],
    kind: str,
    device: str,
    inputs: torch.dtype = torch.float32,
    dtype: torch.dtype | None = None,
) -> list[torch.Tensor]:
    """The result, and the gradients of query, key, value as projections of one layer give them.

    Args:
        sizes: as in SIZES.
        kind: one of KINDS.
        device: where.
        inputs: what the inputs are rounded to.
        dtype: what is computed in; that of the inputs by default.
    """
    batch, heads, kv_heads, queries, keys, size = sizes
    generator = torch.Generator().manual_seed(3)
    shapes = [(queries, heads), (keys, kv_heads), (keys, kv_heads), (queries, heads)]
    rows = [torch.randn(batch, n, count * size, generator=generator) for n, count in shapes]
    rows = [value.to(inputs).to(dtype or inputs) for value in rows]
    leaves = [value.to(device).requires_grad_() for value in rows[:3]]
    q, k, v = [leaf.view(batch, -1, leaf.size(-1) // size, size).transpose(1, 2) for leaf in leaves]
    mask = None
    if kind == "padding":
        mask = torch.ones(batch, 1, 1, keys, dtype=torch.bool)
        mask[0, ..., keys // 2 :] = False
    elif kind == "bias":
        mask = torch.randn(queries, keys, generator=generator).to(inputs).to(dtype or inputs)
    out = scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=None if mask is None else mask.to(device),
        is_causal=kind == "causal",
        enable_gqa=kv_heads != heads,
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


@pytest.mark.parametrize("dtype", TWO_BYTES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SIZES)
def test_two_byte_floats_are_no_further_from_float32_than_the_cpus(name: str, kind: str, dtype: torch.dtype) -> None:
    right = attend(SIZES[name], kind, "cpu", dtype, torch.float32)
    expected = attend(SIZES[name], kind, "cpu", dtype)
    for _ in range(3):
        actual = attend(SIZES[name], kind, DEVICE, dtype)
        for value, ours, cpus in zip(right, actual, expected, strict=True):
            assert ours.dtype == cpus.dtype
            assert ours.shape == cpus.shape
            rounding = torch.finfo(dtype).eps * value.abs().max() + 1e-5
            assert (ours - value).abs().max() <= (cpus - value).abs().max() + rounding


@needs_hetero
@pytest.mark.parametrize("dtype", [torch.float32, *TWO_BYTES], ids=str)
@pytest.mark.parametrize("name", SIZES)
def test_the_kernels_are_ours(name: str, dtype: torch.dtype) -> None:
    for _ in range(3):
        before = torch.hetero.explain()
        attend(SIZES[name], "causal", DEVICE, dtype)
        ran = (torch.hetero.explain() - before).own_kernels
        assert ran == {"attention": 1, "gradients of attention": 1}


@pytest.mark.parametrize("kv_heads", [4, 12])
def test_heads_that_do_not_divide_raise_what_the_cpu_raises(kv_heads: int) -> None:
    def error(device: str) -> str:
        q, k = torch.randn(1, 6, 5, 16, device=device), torch.randn(1, kv_heads, 5, 16, device=device)
        with pytest.raises(RuntimeError) as info:
            scaled_dot_product_attention(q, k, k, enable_gqa=True)
        return str(info.value)

    assert error(DEVICE) == error("cpu")


@needs_hetero
def test_the_operators_that_pytorch_keeps_for_a_device(unfused: None) -> None:
    query, key, value = (torch.randn(2, 3, 8, 16, device=DEVICE, requires_grad=True) for _ in range(3))
    fused = torch.ops.aten._scaled_dot_product_fused_attention_overrideable
    result = fused(query, key, value, is_causal=True)[0]
    expected = scaled_dot_product_attention(query, key, value, is_causal=True)
    torch.testing.assert_close(result, expected)
    found = torch.autograd.grad(result.sum(), (query, key, value))
    for one, other in zip(found, torch.autograd.grad(expected.sum(), (query, key, value)), strict=True):
        torch.testing.assert_close(one, other)
    with pytest.raises(NotImplementedError, match="no dropout"):
        fused(query, key, value, dropout_p=0.5)
