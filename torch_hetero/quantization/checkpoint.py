"""Quantized layers from checkpoints: the layouts of GPTQ and AWQ.

A layer of such a checkpoint is a few tensors under one prefix, "model.layers.0.mlp.up_proj.qweight" and so on::

    from safetensors.torch import load_file

    tensors = load_file("model.safetensors")
    replace_layers(model, tensors, layout="gptq", bits=4, group=128)

``backend/cpu/quantized/checkpoint.h`` has the layouts and their sources. Nothing is rounded: the layers compute
with the numbers that the checkpoint has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import torch

from torch_hetero.quantization.linear import QuantizedLinear

__all__ = ["from_checkpoint", "replace_layers"]

Model = TypeVar("Model", bound=torch.nn.Module)


def from_checkpoint(
    tensors: Mapping[str, torch.Tensor], prefix: str = "", *, layout: str, bits: int, group: int,
    activation_bits: int = 16,
) -> QuantizedLinear:
    """Makes a layer of a checkpoint's tensors.

    Args:
        tensors: The checkpoint's tensors by name; "qweight", "qzeros", "scales" and, where there are, "g_idx" and
            "bias" behind the prefix are read.
        prefix: What stands before these names, such as "model.layers.0.mlp.up_proj.".
        layout: "gptq", "gptq_v2" (``checkpoint_format`` in its configuration), or "awq".
        bits: 4, or 8 for GPTQ: ``bits`` in its configuration.
        group: ``group_size`` in its configuration: a multiple of 32, or -1 or 0 for whole rows.
        activation_bits: As in `torch.hetero.quantize`.

    Returns:
        The layer, on the CPU. Columns that were sorted by importance (``desc_act``) are gathered from the input.

    Raises:
        KeyError: where a tensor is missing.
        ValueError: where the numbers do not fit each other.
        RuntimeError: where a tensor has another shape or dtype than the layout says.
    """
    needed = [prefix + name for name in ("qweight", "qzeros", "scales")]
    missing = [name for name in needed if name not in tensors]
    if missing:
        raise KeyError(f"the checkpoint has no {', '.join(missing)}")
    qweight, qzeros, scales = (tensors[name].cpu() for name in needed)
    group_of = tensors.get(prefix + "g_idx") if layout != "awq" else None
    group_of = None if group_of is None else group_of.cpu().to(torch.int32)
    group = 0 if group == -1 else group
    packed, scales, zeros, order = torch.ops.hetero.import_quantized(
        qweight, qzeros, scales.to(torch.float16), group_of, layout, bits, group)
    in_word = 32 // bits
    rows, columns = qweight.shape
    in_features, out_features = (rows, columns * in_word) if layout == "awq" else (rows * in_word, columns)
    return QuantizedLinear(in_features, out_features, packed, scales, zeros, tensors.get(prefix + "bias"), bits=bits,
                           group=group, activation_bits=activation_bits, order=order).eval()


def replace_layers(
    model: Model, tensors: Mapping[str, torch.Tensor], *, layout: str, bits: int, group: int, activation_bits: int = 16
) -> Model:
    """Replaces the model's linear layers, in place, by those that the checkpoint has in fewer bits.

    Args:
        model: The model, with a ``torch.nn.Linear`` for each quantized layer of the checkpoint. Its other parameters
            are loaded as usual, with ``load_state_dict(..., strict=False)``.
        tensors: The checkpoint's tensors by name.
        layout: As in `from_checkpoint`; so are bits, group and activation_bits.
        bits: See there.
        group: See there.
        activation_bits: See there.

    Returns:
        The model.

    Raises:
        ValueError: where the checkpoint has no quantized layer, or one that does not fit the model's. Also what
            `from_checkpoint` raises. The model is then as it was.
    """
    prefixes = [name.removesuffix("qweight") for name in tensors if name.endswith(".qweight")]
    if not prefixes:
        raise ValueError("the checkpoint has no quantized layer: no name in it ends with .qweight")
    made = {}
    for prefix in prefixes:
        name = prefix.removesuffix(".")
        try:
            linear = model.get_submodule(name)
        except AttributeError:
            raise ValueError(f"the checkpoint has a quantized layer {name}, and the model has none") from None
        layer = from_checkpoint(tensors, prefix, layout=layout, bits=bits, group=group, activation_bits=activation_bits)
        sizes = (getattr(linear, "out_features", None), getattr(linear, "in_features", None))
        if sizes != (layer.out_features, layer.in_features):
            raise ValueError(f"{name} is {layer.out_features} x {layer.in_features} in the checkpoint, and "
                             f"{sizes[0]} x {sizes[1]} in the model")
        made[name] = layer.train(linear.training)
    for name, layer in made.items():
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, layer)
    return model
