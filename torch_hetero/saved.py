"""``torch.hetero.compile``, ``save`` and ``load``: models as programs that are known ahead of time.

``compile`` runs the model once over tensors without bytes and keeps what the device records: a graph of operators with
its weights, planned for this machine. The result is called like the model, and saved to one file. ``load`` reads the
file back, here or on another machine, without the model's code; C++ reads it by ``hetero::GraphExecutor``.
``docs/executor.md`` says what such a program can and cannot do, ``docs/format.md`` what is in the file.
"""

from __future__ import annotations

import contextlib
import copy
import io
import itertools
import json
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils import _pytree as pytree

from torch_hetero import _C, structure
from torch_hetero.pipeline import Pipeline
from torch_hetero.server import Group, Server
from torch_hetero.signature import positional_names

if TYPE_CHECKING:
    from torch_hetero.dynamic import Sizes

__all__ = ["CompiledModel", "compile_model", "load"]

_HETERO = torch.device("hetero", 0)
_INPUTS = "python.inputs"
_OUTPUTS = "python.outputs"
_ARGUMENTS = "python.arguments"
_RESULTS = "python.results"
_UPDATES = "python.updates"
_PARAMETERS = "python.parameters"
_PRECISIONS = ("float32", "bfloat16")


class CompiledModel:
    """A program made of a model; called as the model was.

    Calls take tensors of the shapes (but for dynamic sizes) and dtypes of the example inputs, on the CPU or on
    hetero, and everything else as in the example. Results are on the device of the inputs, on the CPU where there are
    none. Arguments that the model updates in place are updated.

    A call is one run of the program: nothing is recorded or planned. Where sizes are dynamic, the first call with new
    ones resizes the plan. The first call after the accelerator or its budget has changed plans anew, and takes other
    memory, save for a program that changes a state of its own. Calls of several threads come one after the other;
    `serve` runs them at once.
    """

    def __init__(self, model: _C.Model) -> None:
        self._model = model
        self._own_executor: _C.GraphExecutor | None = None
        self._planned_for: Any = None  # the accelerator and its budget
        self._making = threading.Lock()
        convention = _Convention(model)
        self._arguments, self._positional, self._keywords = convention.arguments()
        self._given = convention.given(self._arguments)
        self._results, self._made = convention.results()
        self._updates = convention.updates()
        self._parameters = convention.parameters()
        # How pytree says that arguments are nested as in the example; None before the first call.
        self._in_spec: pytree.TreeSpec | None = None
        self._lock = threading.Lock()

    @property
    def _executor(self) -> _C.GraphExecutor:
        """That of calls. Made when it is needed, so that a program that is only served takes no memory for it."""
        with self._making:
            if self._own_executor is None:
                self._make_executor()
            return self._own_executor

    def _make_executor(self) -> None:
        self._own_executor = None  # its memory may be what the new one takes
        self._planned_for = _C.accelerator_settings()
        self._own_executor = _C.GraphExecutor(self._model, 1)

    def _executor_for_call(self) -> _C.GraphExecutor:
        """The executor, made anew where it was planned for another accelerator or budget; REQUIRES: the lock of calls.

        Not where it has a state of its own, which would be lost.
        """
        with self._making:
            if self._own_executor is None or (
                self._planned_for != _C.accelerator_settings() and not self._model.changes_state
            ):
                self._make_executor()
            return self._own_executor

    @property
    def dimensions(self) -> dict[str, tuple[int, int | None]]:
        """The sizes of inputs that may change from call to call: the least and the most, None for no limit."""
        return {name: (least, most) for name, least, most in self._model.dimensions}

    @property
    def sizes(self) -> dict[str, int]:
        """What the dimensions were at the last call; at first those of the example."""
        return dict(zip(self.dimensions, self._executor.sizes, strict=True))

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
            results = self._executor_for_call().call(self._on_host(tensors))
        return self._results_of(tensors, results)

    def serve(
        self,
        groups: int | Sequence[Group] = 1,
        capacity: int = 64,
        *,
        when_full: Literal["wait", "refuse"] = "wait",
        accelerator_bytes: int | None = None,
    ) -> Server:
        """A server that runs calls of many threads, as many at once as there are groups; see `Server`.

        Args:
            groups: In how many parts the process's cores, and the accelerator's compute queues, are split; each runs
                one call at a time. Or the parts themselves, each a `Group`: ``{"name": "left", "cores": [0, 1],
                "compute_queues": [1, 2]}``.
            capacity: How many calls may wait, beside those for which a group is free.
            when_full: Whether `Server.submit` then waits for room or raises `queue.Full`.
            accelerator_bytes: What all groups together may take of the accelerator's memory; what is left of its budget
                where it is None.

        Raises:
            ValueError: for fewer cores than groups, or for several groups where the program changes a state of its own.
        """
        return Server(self, groups, capacity, when_full=when_full, accelerator_bytes=accelerator_bytes)

    def pipeline(
        self,
        stages: int = 2,
        depth: int = 0,
        *,
        when_full: Literal["wait", "refuse"] = "wait",
        accelerator_bytes: int | None = None,
    ) -> Pipeline:
        """The program cut into stages that work at the same time, each on another call; see `Pipeline`.

        Args:
            stages: In how many parts, of about equal time by the cost model.
            depth: How many calls may be on their way; 0 for twice as many as stages.
            when_full: Whether `Pipeline.submit` then waits until one has ended or raises `queue.Full`.
            accelerator_bytes: What all stages together may take of the accelerator's memory; what is left of its budget
                where it is None.

        Raises:
            ValueError: for a program that cannot be cut so.
        """
        return Pipeline(self, stages, depth, when_full=when_full, accelerator_bytes=accelerator_bytes)

    def _tensors_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """The tensors among the arguments of a call, when all else is as in the example."""
        if len(args) != self._positional or kwargs.keys() != set(self._keywords):
            args, kwargs = self._as_in_example(args, kwargs)
        given = args, {name: kwargs[name] for name in self._keywords}
        leaves, spec = pytree.tree_flatten(given)
        if spec != self._in_spec:
            described = structure.describe(spec)
            if described == self._arguments:
                self._in_spec = spec
            else:
                # The keys of a dictionary may come in another order.
                try:
                    leaves = structure.flatten(self._arguments, structure.build(described, iter(leaves)))
                except ValueError:
                    raise ValueError("the arguments are nested otherwise than in the example: expected "
                                     f"{structure.show(self._arguments)}, not {structure.show(described)}") from None
        tensors = self._tensors(leaves)
        _refuse_shared_updates(tensors, [index for index, _ in self._updates], self._model)
        return tensors

    @staticmethod
    def _on_host(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors as a program reads them: on the CPU, with bytes that are their values."""
        return [tensor.detach().cpu().resolve_conj().resolve_neg() for tensor in tensors]

    def _as_in_example(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments by position and by name as the example's were, when they are the same ones."""
        names = self._parameters
        by_name = dict(zip(names, args, strict=False)) | kwargs
        known = names[: self._positional] + self._keywords
        # Fewer names than values: one was given twice, or has no name.
        if len(known) != self._positional + len(self._keywords) or by_name.keys() != set(known) or (
                len(by_name) != len(args) + len(kwargs)):
            raise ValueError("arguments are given as in the example: "
                             f"{_named(self._positional, self._keywords)}, not {_named(len(args), list(kwargs))}")
        return tuple(by_name[name] for name in known[: self._positional]), by_name

    def _results_of(self, tensors: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> Any:
        """What a call with these tensors returns when the program has made these results."""
        device = next((tensor.device for tensor in tensors if tensor.device.type == "hetero"), torch.device("cpu"))
        for index, output in self._updates:
            tensors[index].detach().copy_(results[output])
        made = [results[leaf["tensor"]].to(device) if isinstance(leaf, dict) else leaf for leaf in self._made]
        return structure.build(self._results, iter(made))

    def _tensors(self, leaves: Sequence[Any]) -> list[torch.Tensor]:
        tensors = []
        for leaf, known in zip(leaves, self._given, strict=True):
            if isinstance(known, dict):
                if not isinstance(leaf, torch.Tensor):
                    raise ValueError(f"input {known['tensor']!r} is a tensor, not a {type(leaf).__name__}")
                tensors.append(leaf)
            elif not _is_same(leaf, known):
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
        """What was done since the program was planned last: runs, kernels, host_waits, allocations and so on."""
        return self._executor.counts

    @property
    def plan_origin(self) -> str:
        """Whether the plan was saved with the program, or why it was made anew."""
        return self._executor.plan_origin

    def __str__(self) -> str:
        """Inputs, outputs, weights, memory, placement, graph and plan."""
        return self._executor.describe()


class _Convention:
    """How Python calls a program, by the metadata of its file, which may say anything."""

    def __init__(self, model: _C.Model) -> None:
        self._metadata = model.metadata
        if _ARGUMENTS not in self._metadata:
            raise ValueError("the file was not saved by torch.hetero.compile of this version, so Python does not know "
                             "how to call it; GraphExecutor in C++ does")
        self._inputs, self._outputs = model.inputs, model.outputs

    def arguments(self) -> tuple[Any, int, list[str]]:
        """Their structure, how many are given by position, and the names of the others."""
        arguments = self._nested(_ARGUMENTS)
        pair = arguments.get("tuple", []) if isinstance(arguments, dict) else []
        if [list(part) for part in pair if isinstance(part, dict)] != [["tuple"], ["dict"]]:
            raise _damaged(_ARGUMENTS)
        keywords = [name for name, _ in pair[1]["dict"]]
        if not all(isinstance(name, str) for name in keywords):
            raise _damaged(_ARGUMENTS)
        return arguments, len(pair[0]["tuple"]), keywords

    def given(self, arguments: Any) -> list[Any]:
        """What each leaf of the arguments is: ``{"tensor": name}``, or the value that it has."""
        leaves = self._leaves(_INPUTS, arguments)
        if [leaf["tensor"] for leaf in leaves if isinstance(leaf, dict)] != [name for name, _ in self._inputs]:
            raise _damaged(_INPUTS)
        return leaves

    def results(self) -> tuple[Any, list[Any]]:
        """Their structure, and what each leaf is: ``{"tensor": index of an output}``, or its value."""
        results = self._nested(_RESULTS)
        leaves = self._leaves(_OUTPUTS, results)
        if not all(self._is_output(leaf["tensor"]) for leaf in leaves if isinstance(leaf, dict)):
            raise _damaged(_OUTPUTS)
        return results, leaves

    def updates(self) -> list[list[int]]:
        """Inputs that are updated in place, by index, and the outputs that they become."""
        updates = self._read(_UPDATES)
        for pair in updates if isinstance(updates, list) else [None]:
            known = isinstance(pair, list) and len(pair) == 2 and type(pair[0]) is int and self._is_output(pair[1])
            if not known or not 0 <= pair[0] < len(self._inputs):
                raise _damaged(_UPDATES)
            if self._inputs[pair[0]][1] != self._outputs[pair[1]][1]:
                raise _damaged(_UPDATES)
        return updates

    def parameters(self) -> list[str]:
        """The names of the model's parameters, in their order; none where nobody knows them."""
        names = self._read(_PARAMETERS) if _PARAMETERS in self._metadata else []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise _damaged(_PARAMETERS)
        return names

    def _is_output(self, index: Any) -> bool:
        return type(index) is int and 0 <= index < len(self._outputs)

    def _nested(self, key: str) -> Any:
        nested = self._read(key)
        try:
            structure.check(nested)
        except (ValueError, RecursionError):
            raise _damaged(key) from None
        return nested

    def _leaves(self, key: str, nested: Any) -> list[Any]:
        leaves = self._read(key)
        if not isinstance(leaves, list) or len(leaves) != structure.count_leaves(nested):
            raise _damaged(key)
        for leaf in leaves:
            if not (isinstance(leaf, dict) and list(leaf) == ["tensor"]) and not _is_plain(leaf):
                raise _damaged(key)
        return leaves

    def _read(self, key: str) -> Any:
        try:
            return json.loads(self._metadata[key])
        except (KeyError, ValueError, RecursionError):
            raise _damaged(key) from None


def _damaged(key: str) -> ValueError:
    return ValueError(f"the file is damaged: {key} in its metadata is not what torch.hetero.compile writes")


def load(path: str | os.PathLike[str]) -> CompiledModel:
    """Reads a file of `CompiledModel.save`. No code in it is run, as there is none.

    Raises:
        RuntimeError: for a file that cannot be read, is damaged, newer than this version, or no saved program.
        ValueError: for a program that is not legal, or was not made by Python.
    """
    model = _C.Model.load(os.fspath(path))
    try:
        return CompiledModel(model)
    except ValueError as error:
        raise ValueError(f"hetero: {os.fspath(path)}: {error}") from None


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
    return _Maker(model, args, kwargs, precision).make(dynamic)


class _Maker:
    """Captures a call of the model."""

    def __init__(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], precision: str) -> None:
        self._autocasts = precision == "bfloat16"
        self._names = _argument_names(model, args, kwargs)
        self._exported = model if isinstance(model, torch.export.ExportedProgram) else None
        if self._exported is not None:
            _refuse_merged_inputs(model)
            model = model.module()
        self._model = model
        self._given_leaves, self._in_spec = pytree.tree_flatten((args, kwargs))
        self._leaves = [_of_its_own(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in self._given_leaves]
        self._weights: dict[str, torch.Tensor] = {}
        if isinstance(model, torch.nn.Module):
            named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
            moved: dict[int, torch.Tensor] = {}  # what is one tensor stays one
            for name, tensor in named:
                self._weights[name] = moved.setdefault(id(tensor), tensor.detach().to(_HETERO))

    def make(self, dynamic: Any) -> CompiledModel:
        if self._exported is not None and dynamic not in (None, True, False):
            raise ValueError("an exported program has the dynamic sizes with which it was exported")
        with torch.no_grad(), torch.autocast("hetero", dtype=torch.bfloat16, enabled=self._autocasts):
            if dynamic not in (None, False) or (dynamic is None and self._exported is not None):
                made = self._make_dynamic(dynamic)
                if made is not None:
                    return made
            if self._exported is not None:
                return self._finish(*self._checked(self._capture_exported("")))
            program, results, problem = self._capture(self._run)
            failure: Exception | None = None
            if problem is not None:
                # Some operators have to run once before anybody knows what their results look like.
                try:
                    self._run(*self._given(_on_hetero))
                except Exception as error:
                    failure = error
                else:
                    program, results, problem = self._capture(self._run)
            if problem is not None:
                # What the model makes on the CPU, where it expects its weights, torch.export knows how to move.
                program, results, problem = self._capture_exported(problem)
            if problem is not None and failure is not None:
                raise ValueError(f"the model fails on its example inputs: {failure}") from failure
            return self._finish(*self._checked((program, results, problem)))

    def _make_dynamic(self, dynamic: Any) -> CompiledModel | None:
        """None where no size is dynamic."""
        from torch_hetero.dynamic import Sizes, export

        exported, names = self._exported, {}
        if exported is None:
            model, args, kwargs = self._on_cpu()
            with _quiet():
                exported, names = export(model, args, kwargs, dynamic)
        sizes = Sizes(exported, names)
        if not sizes.names:
            return None
        call = self._runner(exported)
        tensors = [leaf for leaf in self._leaves if isinstance(leaf, torch.Tensor)]

        def captured(of: list[int]) -> tuple[_C.CompiledProgram, Any, str | None]:
            try:
                given = sizes.tensors(tensors, of)
            except RuntimeError as error:  # a size below 0, say
                return _C.CompiledProgram(), None, str(error)
            return self._capture(call, given)

        program, results, problem = captured(sizes.own)
        if problem is not None:
            call(*self._given(_on_hetero))  # see make()
            program, results = self._checked(captured(sizes.own))
        samples, recorded, failure = [(program, sizes.own)], [sizes.own], None
        for of in sizes.samples(recorded):
            other, other_results, problem = captured(of)
            if problem is not None:
                failure = problem
                continue
            _check_same_leaves(results, other_results)
            samples.append((other, of))
            recorded.append(of)
            if len(samples) == sizes.captures:
                break
        else:
            raise ValueError("the model cannot be a program for several sizes: it fails for most of them, "
                             f"the last time with: {failure}")
        sizes.find_requirements(recorded)
        return self._with_ones(sizes, captured, program, results, samples)

    def _with_ones(self, sizes: Sizes, captured: Callable[..., Any], program: _C.CompiledProgram, results: Any,
                   samples: Sequence[tuple[_C.CompiledProgram, list[int]]]) -> CompiledModel:
        """The program, for sizes of 1 as well where the model does nothing else with them.

        That is sure where the same operators are recorded. Where others are, a call with the example, cut to that size,
        tells.
        """
        ones = list(sizes.least())
        own = (program, sizes.own)

        def recorded(of: list[int] | None) -> tuple[_C.CompiledProgram | None, list[int]]:
            if of is None:
                return own
            other, _, problem = captured(of)
            return (other if problem is None else None), of

        least = [recorded(of) for of in ones]
        made = self._finish(program, results, sizes=sizes, samples=samples, least=least)
        doubtful = [d for d, (low, _) in enumerate(made.dimensions.values()) if ones[d] is not None and low > 1]
        if not doubtful:
            return made
        trusting = [own if d in doubtful else sample for d, sample in enumerate(least)]
        tried = self._finish(program, results, sizes=sizes, samples=samples, least=trusting)
        wrong = [d for d in doubtful if not self._agrees(tried, sizes.shapes(ones[d]))]
        if not wrong:
            return tried
        least = [least[d] if d in wrong else sample for d, sample in enumerate(trusting)]
        return self._finish(program, results, sizes=sizes, samples=samples, least=least)

    def _agrees(self, program: CompiledModel, shapes: Sequence[Sequence[int]]) -> bool:
        """Whether the program and the model give the same for the beginnings of the example's tensors."""
        def cut() -> tuple[tuple[Any, ...], dict[str, Any]]:
            left = iter(shapes)
            return self._given(lambda tensor: tensor[tuple(slice(size) for size in next(left))].clone())

        try:
            args, kwargs = cut()
            found = pytree.tree_leaves(program(*args, **kwargs))
            args, kwargs = pytree.tree_map_only(torch.Tensor, _on_hetero, cut())
            state = {name: tensor.clone() for name, tensor in self._weights.items()}
            expected = pytree.tree_leaves(_plain(self._run(args, kwargs, state)))
        except Exception:
            return False
        bound = 0.05 if self._autocasts else 1e-3
        return len(found) == len(expected) and all(
            a.shape == b.shape and a.dtype == b.dtype
            and torch.allclose(a.cpu(), b.cpu(), rtol=bound, atol=bound, equal_nan=True)
            for a, b in zip(found, expected, strict=True) if isinstance(b, torch.Tensor))

    def _on_cpu(self) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
        """The model and its arguments as torch.export can look at them."""
        model = self._model
        if not isinstance(model, torch.nn.Module):
            function, model = model, torch.nn.Module()
            model.forward = function
        elif any(tensor.device.type == "hetero" for tensor in itertools.chain(model.parameters(), model.buffers())):
            model = copy.deepcopy(model).cpu()
        return model, *self._given(lambda tensor: tensor.cpu())

    @staticmethod
    def _checked(captured: tuple[_C.CompiledProgram, Any, str | None]) -> tuple[_C.CompiledProgram, Any]:
        program, results, problem = captured
        if problem is not None:
            if "read scalar" in problem:
                problem += (". A program cannot look at values, as torch.linalg.inv does to say what is wrong with its "
                            "argument; torch.linalg.inv_ex and its like do not")
            raise ValueError(f"the model cannot be a program: {problem}")
        return program, results

    def _given(self, change: Callable[[torch.Tensor], torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        leaves = [change(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in self._leaves]
        return pytree.tree_unflatten(leaves, self._in_spec)

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any], weights: dict[str, Any] | None = None) -> Any:
        if isinstance(self._model, torch.nn.Module):
            weights = weights or self._weights
            return torch.func.functional_call(self._model, weights, args, kwargs, tie_weights=False)
        return self._model(*args, **kwargs)

    def _capture_exported(self, problem: str) -> tuple[_C.CompiledProgram, Any, str | None]:
        """By ``torch.export``, which decides what depends on values for all of them, or says why it cannot."""
        if self._exported is not None:
            return self._capture(self._runner(self._exported))
        try:
            with _quiet():
                model, args, kwargs = self._on_cpu()
                exported = torch.export.export(model, args, kwargs, strict=False)
        except Exception as error:
            if "Cache" in str(error):
                problem += "; torch.export does not know the cache among the results: use_cache=False leaves it out"
            return _C.CompiledProgram(), None, problem
        captured = self._capture(self._runner(exported))
        return captured if captured[2] is None else (captured[0], None, problem)  # the first reason says more

    def _runner(self, exported: torch.export.ExportedProgram) -> Callable[..., Any]:
        """What calls the exported program on hetero."""
        from torch_hetero.compiler import GraphOnHetero

        module = exported.module()

        def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            leaves = pytree.tree_leaves((args, kwargs))
            results = GraphOnHetero(module, self._weights).run(*leaves, enable_io_processing=False)
            return pytree.tree_unflatten(results, exported.call_spec.out_spec)

        return call

    def _capture(
        self, call: Callable[..., Any], tensors: list[torch.Tensor] | None = None
    ) -> tuple[_C.CompiledProgram, Any, str | None]:
        """A call with the example's tensors, or with others in their place."""
        program = _C.CompiledProgram()
        if tensors is None:
            tensors = [_on_hetero(leaf) for leaf in self._leaves if isinstance(leaf, torch.Tensor)]
        try:
            stand_ins = iter(program.begin_capture(tensors))
            args, kwargs = self._given(lambda _: next(stand_ins))
            # What another thread of the autograd engine records is not captured.
            with torch.autograd.set_multithreading_enabled(False):
                results = _plain(call(args, kwargs))
            leaves, _ = pytree.tree_flatten(results)
            kept = [_on_hetero(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]
            program.end_capture(kept, ["hetero"] * len(kept))
        except Exception as error:
            program.cancel_capture()
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            return program, None, said + _place_in_model(error)
        return program, results, None

    def _finish(self, program: _C.CompiledProgram, results: Any, *, sizes: Sizes | None = None,
                samples: Sequence[tuple[_C.CompiledProgram, list[int]]] = (),
                least: Sequence[tuple[_C.CompiledProgram | None, list[int]]] = ()) -> CompiledModel:
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
        updates = program.updated_arguments
        for index in updates:
            outputs.append(_unique(f"{inputs[index]}.updated", outputs))
        metadata = {
            _INPUTS: json.dumps(given),
            _OUTPUTS: json.dumps(made),
            _ARGUMENTS: json.dumps(structure.describe(self._in_spec)),
            _RESULTS: json.dumps(structure.describe(pytree.tree_structure(results))),
            _PARAMETERS: json.dumps(positional_names(self._model)),
            _UPDATES: json.dumps([[index, len(outputs) - len(updates) + i] for i, index in enumerate(updates)]),
            "made_by": f"torch {torch.__version__}",
        }
        if sizes is None:
            model = _C.Model.make(program, inputs, outputs, self._weights, metadata)
        else:
            model = _C.Model.make_dynamic(samples, least, sizes.variables, sizes.factors, inputs, outputs,
                                          self._weights, metadata)
        given_tensors = [leaf for leaf in self._given_leaves if isinstance(leaf, torch.Tensor)]
        _refuse_shared_updates(given_tensors, updates, model)
        return CompiledModel(model)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
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


def _on_hetero(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to(_HETERO)


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


def _refuse_shared_updates(tensors: Sequence[torch.Tensor], updated: Sequence[int], model: _C.Model) -> None:
    """Raises where an argument that is updated shares memory with another: a program has memory for each."""
    if not updated:
        return
    extents = [_extent(tensor) for tensor in tensors]
    for index, other in itertools.product(updated, range(len(tensors))):
        (memory, begin, end), (others, low, high) = extents[index], extents[other]
        if other != index and memory == others and begin < high and low < end:
            names = [name for name, _ in model.inputs]
            raise ValueError(f"the program updates {names[index]!r}, which shares memory with {names[other]!r}: give "
                             "it memory of its own, by clone()")


def _extent(tensor: torch.Tensor) -> tuple[Any, int, int]:
    """Which memory the tensor is in, and from which byte to which."""
    size = tensor.element_size()
    elements = 0 if tensor.numel() == 0 else 1 + sum(
        (count - 1) * stride for count, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if tensor.device.type == "cpu":  # where storages may share memory: by numpy, say
        return "cpu", tensor.data_ptr(), tensor.data_ptr() + elements * size
    begin = tensor.storage_offset() * size
    return tensor.untyped_storage()._cdata, begin, begin + elements * size


def _is_same(leaf: Any, known: Any) -> bool:
    if type(leaf) is not type(known):
        return False
    return leaf == known or (leaf != leaf and known != known)  # NaN


def _place_in_model(error: Exception) -> str:
    """The last line outside of torch that led to the error: " (model.py:12 in forward)"."""
    ours = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(ours)]
    return f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""


def _plain(results: Any) -> Any:
    """The results without classes that only a library knows: a model output of transformers becomes a dictionary."""
    if isinstance(results, Mapping):
        return {_plain_key(key): _plain(value) for key, value in results.items()}
    if isinstance(results, (list, tuple)):
        plain = [_plain(value) for value in results]
        return plain if isinstance(results, list) else tuple(plain)
    return results


def _plain_key(key: Any) -> Any:
    """The equal string or integer for one of a class of its own, such as an enumeration's; other keys as they are."""
    if isinstance(key, bool):
        return key
    if isinstance(key, int):
        return int(key)
    return str.__str__(key) if isinstance(key, str) else key


def _plain_leaf(leaf: Any, what: str) -> Any:
    if _is_plain(leaf):
        return leaf
    kind = type(leaf).__name__
    way_out = "; use_cache=False leaves it out" if kind.endswith("Cache") else ""
    raise ValueError(f"{what} is a {kind}: a program takes and gives tensors, numbers, strings and None{way_out}")


def _is_plain(leaf: Any) -> bool:
    return leaf is None or isinstance(leaf, (bool, int, float, str))


def _check_same_leaves(results: Any, others: Any) -> None:
    """Raises where something that is no tensor depends on sizes: a program returns it as it was."""
    for leaf, other in zip(pytree.tree_leaves(results), pytree.tree_leaves(others), strict=True):
        if not isinstance(leaf, torch.Tensor) and leaf != other:
            raise ValueError(f"the model returns {leaf!r} for one size and {other!r} for another: a program returns "
                             "tensors, and numbers that are always the same")


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


def _named(positional: int, keywords: Sequence[str]) -> str:
    """The kinds of arguments of a call."""
    by_position = f"{positional} by position" if positional or not keywords else ""
    by_name = f"{', '.join(map(repr, keywords))} by name" if keywords else ""
    return " and ".join(filter(None, (by_position, by_name)))


def _argument_names(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """A name for each leaf of the arguments: those of the model's signature."""
    positional = positional_names(model)
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
