"""Layers of GPTQ and AWQ checkpoints against a plain dequantization of the same random tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import assert_same
from quantized_layers import random_checkpoint
from torch import nn

from torch_hetero.quantization.checkpoint import from_checkpoint, replace_layers

CASES = [("gptq", 4, 32), ("gptq", 4, 128), ("gptq", 8, 64), ("gptq", 4, -1), ("gptq_v2", 4, 64), ("gptq_v2", 8, -1),
         ("awq", 4, 32), ("awq", 4, 128), ("awq", 4, -1)]


@pytest.mark.parametrize(("layout", "bits", "group"), CASES)
def test_a_layer_has_the_weight_that_the_checkpoint_means(layout: str, bits: int, group: int) -> None:
    tensors, weight = random_checkpoint(layout, bits, group)
    bias = torch.randn(48)
    layer = from_checkpoint(tensors | {"bias": bias}, layout=layout, bits=bits, group=group)
    assert layer.order is None
    assert_same(layer.dequantized(), weight)
    x = torch.randn(3, 256)
    torch.testing.assert_close(layer(x), nn.functional.linear(x, weight, bias), rtol=1e-4, atol=2e-2)


@pytest.mark.parametrize(("layout", "bits"), [("gptq", 4), ("gptq_v2", 8)])
def test_columns_that_were_sorted_by_importance_are_gathered(tmp_path: Path, layout: str, bits: int) -> None:
    tensors, weight = random_checkpoint(layout, bits, 64, sorts=True)
    layer = from_checkpoint(tensors, layout=layout, bits=bits, group=64)
    assert layer.order is not None
    assert_same(layer.dequantized(), weight)
    x = torch.randn(3, 256)
    expected = nn.functional.linear(x, weight)
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=2e-2)
    program = torch.hetero.compile(layer, (x,))
    torch.testing.assert_close(program(x), expected, rtol=1e-4, atol=2e-2)


def test_layers_of_a_model_are_replaced_from_a_safetensors_file(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model = nn.ModuleDict({"up": nn.Linear(256, 48, bias=False), "head": nn.Linear(48, 3)}).eval()
    tensors, weight = random_checkpoint("awq", 4, 128)
    save_file({f"up.{name}": tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "m.safetensors")
    replace_layers(model, load_file(tmp_path / "m.safetensors"), layout="awq", bits=4, group=128)
    assert_same(model["up"].dequantized(), weight)
    assert type(model["head"]) is nn.Linear


def refused(tensors: dict[str, torch.Tensor], **changes: object) -> str:
    arguments = {"layout": "gptq", "bits": 4, "group": 64} | changes
    with pytest.raises((ValueError, KeyError, RuntimeError)) as raised:
        from_checkpoint(tensors, **arguments)
    return str(raised.value.args[0]).splitlines()[0]


def test_a_checkpoint_that_does_not_fit_is_refused_in_a_sentence() -> None:
    tensors, _ = random_checkpoint("gptq", 4, 64)
    assert refused({}) == "the checkpoint has no qweight, qzeros, scales"
    assert refused(tensors, layout="gguf") == "a layout of quantized weights is gptq, gptq_v2 or awq, not gguf"
    assert refused(tensors, bits=3) == "a quantized weight has 8 or 4 bits, not 3"
    assert refused(tensors, group=128) == "qzeros of this checkpoint is [2, 6], not [4, 6]"
    assert refused(tensors, bits=8).startswith("qzeros of this checkpoint is")
    assert refused(tensors | {"scales": tensors["scales"][:, :8]}) == "scales of this checkpoint is [4, 48], not [4, 8]"
    assert refused(tensors | {"qweight": tensors["qweight"].long()}) == "qweight of a checkpoint is Int, not Long"
    of = tensors["g_idx"].clone()
    of[7] = 3
    assert refused(tensors | {"g_idx": of}) == "group 0 has 63 columns instead of 64"
    of[7] = 9
    assert refused(tensors | {"g_idx": of}) == "column 7 is in group 9, but there are 4 groups"


def test_a_model_that_does_not_fit_its_checkpoint_stays_as_it_was() -> None:
    tensors, _ = random_checkpoint("gptq", 4, 64)
    named = {f"up.{name}": tensor for name, tensor in tensors.items()}
    for model, sentence in [
        (nn.ModuleDict({"down": nn.Linear(2, 2)}), "the checkpoint has a quantized layer up, and the model has none"),
        (nn.ModuleDict({"up": nn.Linear(2, 3)}), "up is 48 x 256 in the checkpoint, and 3 x 2 in the model"),
    ]:
        with pytest.raises(ValueError, match=f"^{sentence}$"):
            replace_layers(model, named, layout="gptq", bits=4, group=64)
        assert all(type(module) is nn.Linear for module in model.values())
    with pytest.raises(ValueError, match="^the checkpoint has no quantized layer: no name in it ends with .qweight$"):
        replace_layers(nn.ModuleDict(), {"up.weight": torch.zeros(2)}, layout="gptq", bits=4, group=64)
