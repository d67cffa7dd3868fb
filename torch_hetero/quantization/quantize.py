"""``torch.hetero.quantize``: a model's linear layers, with weights in 8 or 4 bits."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch

from torch_hetero.quantization.linear import QuantizedLinear

__all__ = ["quantize"]

Model = TypeVar("Model", bound=torch.nn.Module)
Skip = Iterable[str] | Callable[[str, torch.nn.Linear], bool]


def quantize(
    model: Model, *, bits: int = 8, group: int | None = None, symmetric: bool = True, skip: Skip = (),
    activation_bits: int = 16,
) -> Model:
    """Replaces the model's ``torch.nn.Linear`` layers, in place, by layers with weights in 8 or 4 bits.

    The weights stay packed: the model takes about 0.53 of its memory in bfloat16 with 8 bits, and 0.28 with 4. One row
    is multiplied at the speed of memory. The layers work on the CPU and on hetero, in programs too, for inference.

    Each weight is rounded to the nearest of its group's numbers. There is no calibration; checkpoints that were
    calibrated (GPTQ, AWQ) are read by `torch_hetero.quantization.checkpoint`. Measured errors stand in
    ``docs/quantization.md``.

    Args:
        model: Any module, on the CPU or on hetero, in float32, bfloat16 or float16. Only layers of exactly the class
            ``torch.nn.Linear`` are replaced. One that shares its weight with an embedding gets a copy in fewer bits.
        bits: 8 or 4.
        group: How many neighbours in a row of a weight share a scale: a multiple of 32, or 0 for whole rows. None: 32
            for 4 bits, and 128 for 8 bits.
        symmetric: Whether groups have a scale only. Otherwise they also have a zero, which fits groups whose values
            lie on one side, and costs one more byte for each group.
        skip: Which layers to leave: names, whole ("lm_head", "layers.0.proj"), as patterns ("layers.*.proj"), or by
            their last part ("proj"); or a function of a layer's name and the layer.
        activation_bits: The bits that products take of their input: 16, which costs no accuracy that shows, or 8,
            which multiplies many rows twice as fast.

    Returns:
        The model.

    Raises:
        ValueError: if bits, group or activation_bits is none of the above, the model has no layer to replace, or a
            weight has values that are not finite. The model is then as it was.
        TypeError: if a layer's dtype is none of the above.
    """
    if bits not in (8, 4):
        raise ValueError(f"bits is 8 or 4, not {bits!r}")
    if group is None:
        group = 32 if bits == 4 else 128
    if not isinstance(group, int) or group < 0 or group % 32 != 0:
        raise ValueError(f"group is 0 for whole rows, or a multiple of 32, not {group!r}")
    if activation_bits not in (8, 16):
        raise ValueError(f"activation_bits is 8 or 16, not {activation_bits!r}")
    skips = skip if callable(skip) else _by_name((skip,) if isinstance(skip, str) else tuple(skip))
    named = [(name, module) for name, module in model.named_modules(remove_duplicate=False)
             if type(module) is torch.nn.Linear and not skips(name, module)]
    if not named:
        raise ValueError("the model has no torch.nn.Linear to quantize")
    if named[0][0] == "":
        raise ValueError("the model is itself a torch.nn.Linear: QuantizedLinear.from_linear makes the layer for it")
    for name, linear in named:
        if linear.weight.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise TypeError(f"{name} has a weight of {linear.weight.dtype}: layers in float32, bfloat16 or float16 can "
                            "be quantized")
        if not torch.isfinite(linear.weight.detach()).all():
            raise ValueError(f"the weight of {name} has values that are not finite")
    made: dict[int, QuantizedLinear] = {}  # what is one layer stays one
    for name, linear in named:
        parent, _, last = name.rpartition(".")
        if id(linear) not in made:
            made[id(linear)] = QuantizedLinear.from_linear(linear, bits=bits, group=group, symmetric=symmetric,
                                                           activation_bits=activation_bits)
        setattr(model.get_submodule(parent), last, made[id(linear)])
    return model


def _by_name(patterns: tuple[str, ...]) -> Callable[[str, torch.nn.Linear], bool]:
    """Whether a layer has one of the names, or fits one of the patterns."""

    def skips(name: str, _: torch.nn.Linear) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) or name.endswith(f".{pattern}") for pattern in patterns)

    return skips
