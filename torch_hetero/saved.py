"""``torch.hetero.compile``, ``save`` and ``load``: models as programs that are known ahead of time.

``compile`` runs the model once over tensors without bytes and keeps what the device records: a graph of operators with
its weights, planned for this machine. The result is called like the model, and saved to one file. ``load`` reads the
file back, here or on another machine, without the model's code; C++ reads it by ``hetero::GraphExecutor``.
``docs/executor.md`` says what such a program can and cannot do, ``docs/format.md`` what is in the file.
"""

from __future__ import annotations

import inspect
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch.utils import _pytree as pytree

from torch_hetero import _C
from torch_hetero.server import Server

__all__ = ["CompiledModel", "compile_model", "load"]

_HETERO = torch.device("hetero", 0)
_INPUTS = "python.inputs"
_OUTPUTS = "python.outputs"
_IN_SPEC = "python.in_spec"
_OUT_SPEC = "python.out_spec"
_UPDATES = "python.updates"
_PRECISIONS = ("float32", "bfloat16")


class CompiledModel:
    """A program made of a model; called as the model was.

    Calls take tensors of the shapes and dtypes of the example inputs, on the CPU or on hetero, and everything else as
    in the example. Results are on the device of the inputs, on the CPU where there are none. Arguments that the model
    updates in place are updated.

    A call is one run of the program: nothing is recorded or planned. Calls of several threads come one after the
    other; `serve` runs them at once.
    """

    def __init__(self, model: _C.Model) -> None:
        self._model = model
        self._executor = _C.GraphExecutor(model, 1)
        metadata = model.metadata
        if _IN_SPEC not in metadata:
            raise ValueError("the file was not saved by torch.hetero.compile, so Python does not know how to call it; "
                             "GraphExecutor in C++ does")
        self._in_spec = pytree.treespec_loads(metadata[_IN_SPEC])
        self._out_spec = pytree.treespec_loads(metadata[_OUT_SPEC])
        self._given: list[Any] = json.loads(metadata[_INPUTS])
        self._made: list[Any] = json.loads(metadata[_OUTPUTS])
        self._updates: list[list[int]] = json.loads(metadata[_UPDATES])
        self._lock = threading.Lock()

    @property
    def inputs(self) -> list[tuple[str, str]]:
        """The inputs: name, and dtype with sizes."""
        return self._model.inputs

    @property
    def outputs(self) -> list[tuple[str, str]]:
        """The outputs: name, and dtype with sizes."""
        return self._model.outputs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program.

        Raises:
            ValueError: for other arguments than the program was made for.
        """
        tensors = self._tensors_of(args, kwargs)
        with self._lock:
            results = self._executor.call([tensor.detach().cpu() for tensor in tensors])
        return self._results_of(tensors, results)

    def serve(
        self, groups: int = 1, capacity: int = 64, *, when_full: Literal["wait", "refuse"] = "wait"
    ) -> Server:
        """A server that runs calls of many threads, as many at once as there are groups; see `Server`.

        Args:
            groups: In how many parts the process's cores are split; each runs one call at a time.
            capacity: How many calls may wait, beside those for which a group is free.
            when_full: Whether `Server.submit` then waits for room or raises `queue.Full`.

        Raises:
            ValueError: for fewer cores than groups, or for several groups where the program changes a state of its own.
        """
        return Server(self, groups, capacity, when_full=when_full)

    def _tensors_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """The tensors among the arguments of a call, when all else is as in the example."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if spec != self._in_spec:
            raise ValueError("the arguments are nested otherwise than in the example: "
                             f"expected {self._in_spec}, not {spec}")
        return self._tensors(leaves)

    def _results_of(self, tensors: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> Any:
        """What a call with these tensors returns when the program has made these results."""
        device = next((tensor.device for tensor in tensors if tensor.device.type == "hetero"), torch.device("cpu"))
        for index, output in self._updates:
            tensors[index].detach().copy_(results[output])
        made = [results[leaf["tensor"]].to(device) if isinstance(leaf, dict) else leaf for leaf in self._made]
        return pytree.tree_unflatten(made, self._out_spec)

    def _tensors(self, leaves: Sequence[Any]) -> list[torch.Tensor]:
        tensors = []
        for leaf, known in zip(leaves, self._given, strict=True):
            if isinstance(known, dict):
                if not isinstance(leaf, torch.Tensor):
                    raise ValueError(f"input {known['tensor']!r} is a tensor, not a {type(leaf).__name__}")
                tensors.append(leaf)
            elif leaf != known or type(leaf) is not type(known):
                raise ValueError(f"the program was made for {known!r} and was given {leaf!r}: compile the model again "
                                 "with that value")
        return tensors

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the program, its weights and its plan to one file.

        Raises:
            RuntimeError: where the system refuses to.
        """
        self._model.save(os.fspath(path))

    @property
    def counts(self) -> dict[str, int]:
        """What was done so far: runs, kernels, host_waits, allocations, segments, recordings."""
        return self._executor.counts

    @property
    def plan_origin(self) -> str:
        """Whether the plan was saved with the program, or why it was made anew."""
        return self._executor.plan_origin

    def __str__(self) -> str:
        """Inputs, outputs, weights, memory, placement, graph and plan."""
        return self._executor.describe()


def load(path: str | os.PathLike[str]) -> CompiledModel:
    """Reads a file of `CompiledModel.save`. No code in it is run, as there is none.

    Raises:
        RuntimeError: for a file that cannot be read, is damaged, newer than this version, or no saved program.
        ValueError: for a program that is not legal, or was not made by Python.
    """
    return CompiledModel(_C.Model.load(os.fspath(path)))


def compile_model(
    model: torch.nn.Module | Callable[..., Any] | torch.export.ExportedProgram,
    example_inputs: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    precision: str = "float32",
) -> CompiledModel:
    """Makes a program of a model; ``torch.hetero.compile``.

    The model runs once, over stand-ins for the example inputs: what it does with them is the program. Weights are used
    where they are, so a model that is trained on must be compiled again. A model whose course depends on the values of
    tensors is traced by ``torch.export`` first.

    Args:
        model: A module on the CPU or on hetero, a function, or an exported program.
        example_inputs: Positional arguments of a call; tensors on the CPU or on hetero.
        example_kwargs: Keyword arguments.
        precision: "float32" runs what the model says. "bfloat16" runs products and attention in bfloat16, as
            ``torch.autocast`` does, with sums in float32; weights are rounded once, and the file is half as large.

    Returns:
        The program; it takes tensors that look like the examples.

    Raises:
        ValueError: where the model cannot be a program, with the reason.
    """
    args = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
    if precision not in _PRECISIONS:
        raise ValueError(f"precision is one of {', '.join(_PRECISIONS)}, not {precision!r}")
    return _Maker(model, args, dict(example_kwargs or {}), precision).make()


class _Maker:
    """Captures a call of the model."""

    def __init__(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], precision: str) -> None:
        self._autocasts = precision == "bfloat16"
        self._names = _argument_names(model, args, kwargs)
        self._exported = model if isinstance(model, torch.export.ExportedProgram) else None
        if self._exported is not None:
            model = model.module()
        self._model = model
        self._args = args
        self._kwargs = kwargs
        self._leaves, self._in_spec = pytree.tree_flatten((args, kwargs))
        self._weights: dict[str, torch.Tensor] = {}
        if isinstance(model, torch.nn.Module):
            named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
            moved: dict[int, torch.Tensor] = {}  # what is one tensor stays one
            for name, tensor in named:
                self._weights[name] = moved.setdefault(id(tensor), tensor.detach().to(_HETERO))

    def make(self) -> CompiledModel:
        with torch.no_grad(), torch.autocast("hetero", dtype=torch.bfloat16, enabled=self._autocasts):
            if self._exported is not None:
                return self._finish(*self._checked(self._capture_exported("")))
            program, results, problem = self._capture(self._run)
            if problem is not None:
                # Some operators have to run once before anybody knows what their results look like.
                try:
                    self._run(*self._given(_on_hetero))
                except Exception as error:
                    raise ValueError(f"the model fails on its example inputs: {error}") from error
                program, results, problem = self._capture(self._run)
            if problem is not None and isinstance(self._model, torch.nn.Module):
                program, results, problem = self._capture_exported(problem)
            return self._finish(*self._checked((program, results, problem)))

    @staticmethod
    def _checked(captured: tuple[_C.CompiledProgram, Any, str | None]) -> tuple[_C.CompiledProgram, Any]:
        program, results, problem = captured
        if problem is not None:
            raise ValueError(f"the model cannot be a program: {problem}")
        return program, results

    def _given(self, change: Callable[[torch.Tensor], torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        leaves = [change(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in self._leaves]
        return pytree.tree_unflatten(leaves, self._in_spec)

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if isinstance(self._model, torch.nn.Module):
            return torch.func.functional_call(self._model, self._weights, args, kwargs, tie_weights=False)
        return self._model(*args, **kwargs)

    def _capture_exported(self, problem: str) -> tuple[_C.CompiledProgram, Any, str | None]:
        """By ``torch.export``, which decides what depends on values for all of them, or says why it cannot."""
        from torch_hetero.compiler import GraphOnHetero

        exported = self._exported
        if exported is None:
            if any(leaf.device.type == "hetero" for leaf in self._leaves if isinstance(leaf, torch.Tensor)):
                problem += "; with the model and its examples on the CPU, torch.export would be asked"
                return _C.CompiledProgram(), None, problem
            try:
                exported = torch.export.export(self._model, self._args, self._kwargs, strict=False)
            except Exception:  # the first reason says more
                return _C.CompiledProgram(), None, problem
        module = exported.module()

        def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            leaves = pytree.tree_leaves((args, kwargs))
            results = GraphOnHetero(module, self._weights).run(*leaves, enable_io_processing=False)
            return pytree.tree_unflatten(results, exported.call_spec.out_spec)

        return self._capture(call)

    def _capture(self, call: Callable[..., Any]) -> tuple[_C.CompiledProgram, Any, str | None]:
        program = _C.CompiledProgram()
        tensors = [_on_hetero(leaf) for leaf in self._leaves if isinstance(leaf, torch.Tensor)]
        try:
            stand_ins = iter(program.begin_capture(tensors))
            args, kwargs = self._given(lambda _: next(stand_ins))
            results = _plain(call(args, kwargs))
            leaves, _ = pytree.tree_flatten(results)
            kept = [_on_hetero(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]
            program.end_capture(kept, [False] * len(kept))
        except Exception as error:
            program.cancel_capture()
            return program, None, str(error).splitlines()[0] if str(error) else type(error).__name__
        return program, results, None

    def _finish(self, program: _C.CompiledProgram, results: Any) -> CompiledModel:
        given, inputs = [], []
        for leaf, name in zip(self._leaves, self._names, strict=True):
            if isinstance(leaf, torch.Tensor):
                inputs.append(name)
                given.append({"tensor": name})
            else:
                given.append(_plain_leaf(leaf, f"the argument {name!r}"))
        made, outputs = [], []
        for path, leaf in pytree.tree_flatten_with_path(results)[0]:
            if isinstance(leaf, torch.Tensor):
                made.append({"tensor": len(outputs)})
                outputs.append(_unique(_name_of(path) or "output", outputs))
            else:
                made.append(_plain_leaf(leaf, "a result"))
        _, out_spec = pytree.tree_flatten(results)
        updates = program.updated_arguments
        for index in updates:
            outputs.append(_unique(f"{inputs[index]}.updated", outputs))
        metadata = {
            _INPUTS: json.dumps(given),
            _OUTPUTS: json.dumps(made),
            _IN_SPEC: pytree.treespec_dumps(self._in_spec),
            _OUT_SPEC: pytree.treespec_dumps(out_spec),
            _UPDATES: json.dumps([[index, len(outputs) - len(updates) + i] for i, index in enumerate(updates)]),
            "made_by": f"torch {torch.__version__}",
        }
        return CompiledModel(_C.Model.make(program, inputs, outputs, self._weights, metadata))


def _on_hetero(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to(_HETERO)


def _plain(results: Any) -> Any:
    """The results without classes that only a library knows: a model output of transformers becomes a dictionary."""
    if isinstance(results, Mapping):
        return {str(key): _plain(value) for key, value in results.items()}
    if isinstance(results, (list, tuple)):
        plain = [_plain(value) for value in results]
        return plain if isinstance(results, list) else tuple(plain)
    return results


def _plain_leaf(leaf: Any, what: str) -> Any:
    if leaf is None or isinstance(leaf, (bool, int, float, str)):
        return leaf
    raise ValueError(f"{what} is a {type(leaf).__name__}: a program takes and gives tensors, numbers, strings and None")


def _name_of(path: Sequence[Any]) -> str:
    """"hidden.0" for a key path of pytree."""
    parts = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", "")))) for key in path]
    return ".".join(part for part in parts if part)


def _unique(name: str, taken: Sequence[str]) -> str:
    number, unique = 1, name
    while unique in taken:
        number += 1
        unique = f"{name}.{number}"
    return unique


def _argument_names(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """A name for each leaf of the arguments: those of the model's signature."""
    target = model.forward if isinstance(model, torch.nn.Module) else model
    positional: list[str] = []
    if not isinstance(model, torch.export.ExportedProgram):
        try:
            parameters = inspect.signature(target).parameters.values()
            positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        except (TypeError, ValueError):  # a built-in function
            pass
    names: list[str] = []
    for path, _ in pytree.tree_flatten_with_path((args, kwargs))[0]:
        if path[0].idx == 0:
            index = path[1].idx
            head = positional[index] if index < len(positional) else f"input{index}"
        else:
            head = str(path[1].key)
        rest = _name_of(path[2:])
        names.append(_unique(f"{head}.{rest}" if rest else head, names))
    return names
