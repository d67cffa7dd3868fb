"""A call of a model as a program: the model runs over tensors without bytes, and what the device records is kept."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import itertools
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_hetero import _C
from torch_hetero.program import structure
from torch_hetero.program.calling import CompiledModel, refuse_shared_updates
from torch_hetero.program.convention import metadata_of
from torch_hetero.program.leaves import argument_names, name_of, plain, plain_leaf, unique
from torch_hetero.program.replay import GraphOnHetero, on_hetero
from torch_hetero.program.signature import positional_names

__all__ = ["Captured", "ModelCall", "checked", "quiet"]

# A program, the results of the model, and why there is none.
Captured = tuple[_C.CompiledProgram, Any, "str | None"]


class ModelCall:
    """A call of a model with example inputs, which is captured.

    Attributes:
        autocasts: Whether products and attention run in bfloat16.
        exported: The model where it is an exported program.
        leaves: The arguments, flattened. Tensors are copies.
        weights: The model's parameters and buffers by name, on hetero.
    """

    def __init__(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], autocasts: bool) -> None:
        self.autocasts = autocasts
        self._names = argument_names(model, args, kwargs)
        self.exported = model if isinstance(model, torch.export.ExportedProgram) else None
        if self.exported is not None:
            _refuse_merged_inputs(model)
            model = model.module()
        self._model = model
        self._given_leaves, self._in_spec = pytree.tree_flatten((args, kwargs))
        self.leaves = [_of_its_own(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in self._given_leaves]
        self.weights: dict[str, torch.Tensor] = {}
        if isinstance(model, torch.nn.Module):
            named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
            moved: dict[int, torch.Tensor] = {}  # what is one tensor stays one
            for name, tensor in named:
                self.weights[name] = moved.setdefault(id(tensor), on_hetero(tensor))

    def given(self, change: Callable[[torch.Tensor], torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, with each tensor changed."""
        leaves = [change(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves]
        return pytree.tree_unflatten(leaves, self._in_spec)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any], weights: dict[str, Any] | None = None) -> Any:
        """What the model returns, over its weights on hetero."""
        if isinstance(self._model, torch.nn.Module):
            weights = weights or self.weights
            # A module with several names once: functional_call() would put back what it has put there itself.
            names = [f"{path}.{name}".lstrip(".") for path, module in self._model.named_modules()
                     for name in (*module._parameters.keys(), *module._buffers.keys())]  # fmt: skip
            once = {name: weights[name] for name in names if name in weights}
            return torch.func.functional_call(self._model, once, args, kwargs, tie_weights=False)
        return self._model(*args, **kwargs)

    def on_cpu(self) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
        """The model and its arguments as torch.export can look at them."""
        model = self._model
        if not isinstance(model, torch.nn.Module):
            function, model = model, torch.nn.Module()
            model.forward = function
        elif any(tensor.device.type == "hetero" for tensor in itertools.chain(model.parameters(), model.buffers())):
            model = copy.deepcopy(model).cpu()
        return model, *self.given(lambda tensor: tensor.cpu())

    def runner(self, exported: torch.export.ExportedProgram) -> Callable[..., Any]:
        """What calls the exported program on hetero."""
        module = exported.module()

        def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            leaves = pytree.tree_leaves((args, kwargs))
            results = GraphOnHetero(module, self.weights).run(*leaves, enable_io_processing=False)
            return pytree.tree_unflatten(results, exported.call_spec.out_spec)

        return call

    def capture(self, call: Callable[..., Any], tensors: list[torch.Tensor] | None = None) -> Captured:
        """A call with the example's tensors, or with others in their place."""
        program = _C.CompiledProgram()
        if tensors is None:
            tensors = [on_hetero(leaf) for leaf in self.leaves if isinstance(leaf, torch.Tensor)]
        try:
            stand_ins = iter(program.begin_capture(tensors))
            args, kwargs = self.given(lambda _: next(stand_ins))
            # What another thread of the autograd engine records is not captured.
            with torch.autograd.set_multithreading_enabled(False):
                results = plain(call(args, kwargs))
            leaves, _ = pytree.tree_flatten(results)
            kept = [on_hetero(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]
            program.end_capture(kept, ["hetero"] * len(kept))
        except Exception as error:
            program.cancel_capture()
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            return program, None, said + _place_in_model(error)
        return program, results, None

    def capture_exported(self, problem: str) -> Captured:
        """By ``torch.export``, which decides what depends on values for all of them, or says why it cannot."""
        if self.exported is not None:
            return self.capture(self.runner(self.exported))
        try:
            with quiet():
                model, args, kwargs = self.on_cpu()
                exported = torch.export.export(model, args, kwargs, strict=False)
        except Exception as error:
            if "Cache" in str(error):
                problem += "; torch.export does not know the cache among the results: use_cache=False leaves it out"
            return _C.CompiledProgram(), None, problem
        captured = self.capture(self.runner(exported))
        return captured if captured[2] is None else (captured[0], None, problem)  # the first reason says more

    def finish(
        self, program: _C.CompiledProgram, results: Any, make: Callable[..., _C.Model] | None = None
    ) -> CompiledModel:
        """What is called like the model.

        Args:
            program: The captured program.
            results: What the model returned in it.
            make: Makes the saved program of names of inputs and outputs, weights and metadata; by itself of the
                captured program.
        """
        given, inputs = [], []
        for leaf, name in zip(self.leaves, self._names, strict=True):
            if isinstance(leaf, torch.Tensor):
                inputs.append(name)
                given.append({"tensor": name})
            else:
                given.append(plain_leaf(leaf, f"the argument {name!r}"))
        made, outputs = [], []
        for path, leaf in pytree.tree_flatten_with_path(results)[0]:
            if isinstance(leaf, torch.Tensor):
                made.append({"tensor": len(outputs)})
                outputs.append(unique(name_of(path) or "output", outputs))
            else:
                made.append(plain_leaf(leaf, "a result"))
        updates = program.updated_arguments
        for index in updates:
            outputs.append(unique(f"{inputs[index]}.updated", outputs))
        updated = [[index, len(outputs) - len(updates) + i] for i, index in enumerate(updates)]
        metadata = metadata_of(structure.describe(self._in_spec), given, structure.describe(
            pytree.tree_structure(results)), made, updated, positional_names(self._model))
        metadata["made_by"] = f"torch {torch.__version__}"
        if make is None:
            make = functools.partial(_C.Model.make, program)
        model = make(inputs, outputs, self.weights, metadata)
        given_tensors = [leaf for leaf in self._given_leaves if isinstance(leaf, torch.Tensor)]
        refuse_shared_updates(given_tensors, updates, model)
        return CompiledModel(model)


def checked(captured: Captured) -> tuple[_C.CompiledProgram, Any]:
    """The program and the results of the model. Raises a ValueError where there is none."""
    program, results, problem = captured
    if problem is not None:
        if "read scalar" in problem:
            problem += (". A program cannot look at values that depend on its inputs, as torch.linalg.inv does to say "
                        "what is wrong with its argument; torch.linalg.inv_ex and its like do not")
        raise ValueError(f"the model cannot be a program: {problem}")
    return program, results


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the log of torch.export, and without the graph that it prints where it fails: it raises what is wrong."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            yield
    finally:
        logging.disable(before)
    print(printed.getvalue(), end="", file=sys.stderr)  # warnings, say


def _of_its_own(tensor: torch.Tensor) -> torch.Tensor:
    """The example as a program's input: bytes that are its values, in memory that it shares with no other one.

    What shares memory would be one input: torch.export takes one tensor for one input, and a capture one storage.
    """
    return tensor.detach().resolve_conj().resolve_neg().clone()


def _refuse_merged_inputs(exported: torch.export.ExportedProgram) -> None:
    """Raises where torch.export was given one tensor twice, which is one input to it: only one of the two is read."""
    users = {node.name: len(node.users) for node in exported.graph.nodes if node.op == "placeholder"}
    specs = exported.graph_signature.input_specs
    inputs = [spec.arg.name for spec in specs if spec.kind == torch.export.graph_signature.InputKind.USER_INPUT]
    same: dict[int, list[str]] = {}
    for name, leaf in zip(inputs, pytree.tree_leaves(exported.example_inputs), strict=False):
        if isinstance(leaf, torch.Tensor):
            same.setdefault(id(leaf), []).append(name)
    for names in same.values():
        read = [name for name in names if users[name]]
        if read and read != names:
            raise ValueError(f"the model was exported with one tensor for {' and '.join(map(repr, names))}, and "
                             f"torch.export has made one input of them, {read[0]!r}: export it with a tensor for each")


def _place_in_model(error: Exception) -> str:
    """The last line outside of torch that led to the error: " (model.py:12 in forward)"."""
    ours = tuple(f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, Path(__file__).parents[1]))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(ours)]
    return f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""
