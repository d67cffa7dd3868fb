"""Layers of encoders and attention with several heads, which PyTorch's modules call as one operator in inference."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from convolution_models import ran
from helpers import assert_same, call_of
from torch import nn
from torch.testing import assert_close

WAYS = ("lazily", "compiled", "saved")  # of helpers.call_of


@pytest.fixture(autouse=True)
def nothing_stays_compiled() -> Iterator[None]:
    """PyTorch's own modules share one limit of recompilations, with its functions too."""
    yield
    torch._dynamo.reset()


@torch.no_grad()
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoders_are_near_to_eager(way: str, norm_first: bool, activation: str) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, activation, batch_first=True, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    for batch, length in ((1, 9), (3, 33)):
        x = torch.randn(batch, length, 32)
        expected, call = model(x), call_of(way, model, x)
        for _ in range(3):
            assert_close(call(), expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_encoders_run_our_attention() -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(1, 33, 32)
    program = torch.hetero.compile(model, (x,))
    assert ran(lambda: program(x)).get("attention") == 2


@torch.no_grad()
@pytest.mark.parametrize("norm_first", [False, True])
def test_encoders_in_bfloat16_run_our_attention_and_products(norm_first: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, activation="gelu", batch_first=True, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(1, 33, 32)
    program = torch.hetero.compile(model, (x,), precision="bfloat16")
    kernels = ran(lambda: program(x))
    assert kernels.get("attention") == 2
    assert "_native_multi_head_attention" not in str(program)
    assert_close(program(x).float(), model(x), rtol=0.1, atol=0.1)


class Masked(nn.Module):
    """A layer with a mask of one of the three kinds."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.kind = kind

    def forward(self, x: torch.Tensor, mask: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        """Hidden states; a mask hides what it says, and so does one of padding."""
        return self.layer(x, mask if "mask" in self.kind else None, padding if "padding" in self.kind else None)


@torch.no_grad()
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["mask", "padding", "mask and padding"])
def test_masks_hide_what_they_hide_in_eager(way: str, kind: str) -> None:
    torch.manual_seed(0)
    model = Masked(kind).eval()
    x = torch.randn(3, 7, 16)
    mask = torch.triu(torch.ones(7, 7, dtype=torch.bool), 1)
    # The last text is nothing but padding, of which eager makes NaN.
    padding = torch.arange(7) >= torch.tensor([7, 3, 0])[:, None]
    expected, call = model(x, mask, padding), call_of(way, model, x, mask, padding)
    for _ in range(2):
        assert_close(call(), expected, rtol=1e-4, atol=1e-5, equal_nan=True)


@torch.no_grad()
@pytest.mark.parametrize("averages", [False, True])
def test_attention_returns_its_weights(averages: bool) -> None:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    x = torch.randn(2, 5, 16)
    there, moved = copy.deepcopy(attention).to("hetero"), x.to("hetero")
    for tensors, device in (((x, x, x), (moved, moved, moved)), ((x, x + 1, x + 1), (moved, moved + 1, moved + 1))):
        expected = attention(*tensors, average_attn_weights=averages)
        found = there(*device, average_attn_weights=averages)
        for one, other in zip(found, expected, strict=True):
            assert_close(one.cpu(), other, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_unfused_a_layer_has_eagers_bits(unfused: None) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    x = torch.randn(2, 6, 16)
    assert_same(copy.deepcopy(layer).to("hetero")(x.to("hetero")).cpu(), layer(x))


@torch.no_grad()
def test_arguments_that_do_not_fit_raise_as_on_the_cpu() -> None:
    x = torch.randn(2, 6, 16)
    weights = [torch.randn(48, 16), torch.randn(48), torch.randn(16, 16), torch.randn(16)]
    for size, heads, given in ((16, 3, weights), (16, 2, [weights[0][:40], *weights[1:]])):
        errors = []
        for device in ("cpu", "hetero"):
            there = x.to(device)
            with pytest.raises(RuntimeError) as caught:
                torch._native_multi_head_attention(there, there, there, size, heads, *(w.to(device) for w in given))
            errors.append(str(caught.value).splitlines()[0])
        assert errors[0] == errors[1]


@torch.no_grad()
def test_masks_of_other_sizes_raise_as_on_the_cpu() -> None:
    x = torch.randn(2, 6, 16)
    weights = (torch.randn(48, 16), torch.randn(48), torch.randn(16, 16), torch.randn(16))
    for kind, sizes in ((0, (1, 6)), (1, (1, 6)), (1, (2, 1)), (2, (1, 1, 6, 6))):
        mask = torch.zeros(sizes, dtype=torch.bool)
        errors = []
        for device in ("cpu", "hetero"):
            there = x.to(device)
            moved = [weight.to(device) for weight in weights]
            with pytest.raises(RuntimeError) as caught:
                torch._native_multi_head_attention(there, there, there, 16, 2, *moved, mask.to(device), True, True, kind)
            errors.append(str(caught.value).splitlines()[0])
        assert errors[0] == errors[1]


@torch.no_grad()
@pytest.mark.parametrize("norm_first", [False, True])
def test_under_autocast_and_in_16_bits_results_have_eagers_dtype(norm_first: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=norm_first).eval()
    x = torch.randn(2, 6, 16)
    there = copy.deepcopy(layer).to("hetero")
    with torch.autocast("cpu", torch.bfloat16):
        expected = layer(x)
    with torch.autocast("hetero", torch.bfloat16):
        found = there(x.to("hetero"))
    assert found.dtype == expected.dtype
    assert_close(found.cpu(), expected, rtol=5e-2, atol=5e-2)
    half = copy.deepcopy(layer).bfloat16()
    assert_close(there.bfloat16()(x.bfloat16().to("hetero")).cpu(), half(x.bfloat16()), rtol=5e-2, atol=5e-2)
