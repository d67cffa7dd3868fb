"""``torch.hetero.compile``: models as programs that are known ahead of time.

``compile`` runs the model once over tensors without bytes and keeps what the device records: a graph of operators with
its weights, planned for this machine. The result is called like the model, and saved to one file. ``load`` reads the
file back, here or on another machine, without the model's code; C++ reads it by ``hetero::GraphExecutor``.
``docs/executor.md`` says what such a program can and cannot do.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torch_hetero.program.calling import CompiledModel
from torch_hetero.program.capture import ModelCall, checked
from torch_hetero.program.replay import on_hetero
from torch_hetero.quantization.quantize import quantize

__all__ = ["compile_model"]

_PRECISIONS = ("float32", "bfloat16", "int8")
# Elements of a row that share a scale: a third of the error of whole rows, at almost no cost.
_INT8_GROUP = 128


def compile_model(
    model: torch.nn.Module | Callable[..., Any] | torch.export.ExportedProgram,
    example_inputs: Sequence[Any] | Mapping[str, Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    precision: str = "float32",
    dynamic: Any = None,
) -> CompiledModel:
    """Makes a program of a model; ``torch.hetero.compile``.

    The model runs once, over stand-ins for the example inputs: what it does with them is the program. Weights are used
    where they are, so a model that is trained on must be compiled again. A model whose course depends on the values of
    tensors is traced by ``torch.export`` first.

    Args:
        model: A module on the CPU or on hetero, a function, or an exported program.
        example_inputs: Positional arguments of a call; tensors on the CPU or on hetero. A mapping, such as a tokenizer
            gives, is keyword arguments; a dictionary that is an argument itself stands in a tuple.
        example_kwargs: Keyword arguments.
        precision: "float32" runs what the model says. "bfloat16" runs products and attention in bfloat16, as
            ``torch.autocast`` does, with sums in float32; weights are rounded once, and the file is half as large.
            "int8" multiplies in whole numbers of 8 bits: rows of the weights of ``torch.nn.Linear`` layers, and rows
            of their inputs when the program runs, get a scale for each 128 elements. Nothing is calibrated, the
            weights take little more than a quarter, and the model is not changed. It is for encoders;
            ``docs/quantization.md`` has the errors. The model must be a module.
        dynamic: Which sizes of the inputs may be others at a call. None or False: none of them. True: all that the
            model allows. Otherwise what ``torch.export`` calls dynamic_shapes, with names for dimensions:
            ``{"input_ids": {0: "batch", 1: "tokens"}}``; equal names are equal sizes. The model is then traced by
            ``torch.export``. An exported program has the dynamic sizes with which it was exported, unless this is
            False.

    Returns:
        The program; it takes tensors that look like the examples, apart from sizes that are dynamic.

    Raises:
        ValueError: where the model cannot be a program, with the reason.
    """
    kwargs = dict(example_kwargs or {})
    args: tuple[Any, ...] = ()
    if isinstance(example_inputs, Mapping):
        kwargs = {**example_inputs, **kwargs}
    elif isinstance(example_inputs, torch.Tensor):
        args = (example_inputs,)
    else:
        args = tuple(example_inputs)
    if precision not in _PRECISIONS:
        raise ValueError(f"precision is one of {', '.join(_PRECISIONS)}, not {precision!r}")
    if precision == "int8":
        model = _in_int8(model)
    return _make(ModelCall(model, args, kwargs, autocasts=precision == "bfloat16"), dynamic)


def _in_int8(model: Any) -> torch.nn.Module:
    """A module like the model whose linear layers multiply in 8 bits. All other tensors are the model's own."""
    if not isinstance(model, torch.nn.Module):
        raise ValueError(f"precision=\"int8\" takes a torch.nn.Module, whose linear layers it replaces, not a "
                         f"{type(model).__name__}")
    kept = {id(tensor): tensor for tensor in itertools.chain(model.parameters(), model.buffers())}
    return quantize(copy.deepcopy(model, kept), bits=8, group=_INT8_GROUP, activation_bits=8)


def _make(call: ModelCall, dynamic: Any) -> CompiledModel:
    """The program of a call."""
    if call.exported is not None and dynamic not in (None, True, False):
        raise ValueError("an exported program has the dynamic sizes with which it was exported")
    with torch.no_grad(), torch.autocast("hetero", dtype=torch.bfloat16, enabled=call.autocasts):
        if dynamic not in (None, False) or (dynamic is None and call.exported is not None):
            from torch_hetero.program.dynamic_making import make_dynamic  # and so sympy, which takes its time

            made = make_dynamic(call, dynamic)
            if made is not None:
                return made
        if call.exported is not None:
            return call.finish(*checked(call.capture_exported("")))
        program, results, problem = call.capture(call.run)
        failure: Exception | None = None
        if problem is not None:
            # Some operators have to run once before anybody knows what their results look like.
            try:
                call.run(*call.given(on_hetero))
            except Exception as error:
                failure = error
            else:
                program, results, problem = call.capture(call.run)
        if problem is not None:
            # What the model makes on the CPU, where it expects its weights, torch.export knows how to move.
            program, results, problem = call.capture_exported(problem)
        if problem is not None and failure is not None:
            raise ValueError(f"the model fails on its example inputs: {failure}") from failure
        return call.finish(*checked((program, results, problem)))
