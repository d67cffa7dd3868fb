"""``CompiledModel``: a program that is called as its model was, and ``torch.hetero.load``, which reads one from a file.

``docs/executor.md`` says what such a program can and cannot do, ``docs/format.md`` what is in the file.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch.utils import _pytree as pytree

from torch_hetero import _C
from torch_hetero.program import structure
from torch_hetero.program.convention import Convention
from torch_hetero.program.server import Group, Server
from torch_hetero.program.stage_pipeline import StagePipeline

__all__ = ["CompiledModel", "load", "refuse_shared_updates"]


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
        convention = Convention(model)
        self._arguments, self._positional, self._keywords = convention.arguments()
        self._names = set(self._keywords)
        results, made = convention.results()
        self._structure = _C.Structure(self._arguments)
        self._caller = _C.Caller(
            model, self._structure, convention.given(self._arguments), _C.Structure(results), made)
        self._returned = {leaf["tensor"] for leaf in made if isinstance(leaf, dict)}
        self._updates = convention.updates()
        self._updated = [index for index, _ in self._updates]
        self._parameters = convention.parameters()

    @property
    def dimensions(self) -> dict[str, tuple[int, int | None]]:
        """The sizes of inputs that may change from call to call: the least and the most, None for no limit."""
        return {name: (least, most) for name, least, most in self._model.dimensions}

    @property
    def sizes(self) -> dict[str, int]:
        """What the dimensions were at the last call; at first those of the example."""
        return dict(zip(self.dimensions, self._caller.executor.sizes, strict=True))

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
        if not self._updated:
            results = self._caller(args, kwargs)
            if results is not NotImplemented:
                return results
        tensors = self._tensors_of(args, kwargs)
        return self._results_of(tensors, self._caller.run(self._on_host(tensors)))

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

    def stage_pipeline(
        self,
        stages: int = 2,
        depth: int = 0,
        *,
        when_full: Literal["wait", "refuse"] = "wait",
        accelerator_bytes: int | None = None,
    ) -> StagePipeline:
        """The program cut into stages that work at the same time, each on another call; see `StagePipeline`.

        Args:
            stages: In how many parts, of about equal time by the cost model.
            depth: How many calls may be on their way; 0 for twice as many as stages.
            when_full: Whether `StagePipeline.submit` then waits until one has ended or raises `queue.Full`.
            accelerator_bytes: What all stages together may take of the accelerator's memory; what is left of its budget
                where it is None.

        Raises:
            ValueError: for a program that cannot be cut so.
        """
        return StagePipeline(self, stages, depth, when_full=when_full, accelerator_bytes=accelerator_bytes)

    pipeline = stage_pipeline  # the name that programs of earlier versions call

    def _tensors_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """The tensors among the arguments of a call, when all else is as in the example."""
        if len(args) != self._positional or kwargs.keys() != self._names:
            args, by_name = self._as_in_example(args, kwargs)
            kwargs = {name: by_name[name] for name in self._keywords}
        leaves = self._structure.leaves((args, kwargs))
        try:
            tensors = None if leaves is None else self._caller.tensors_of(leaves)
        except ValueError:
            tensors = None
        if tensors is None:
            # Nested in other classes, which pytree knows; or it says what is wrong.
            tensors = self._caller.tensors_of(self._leaves_by_pytree((args, kwargs)))
        refuse_shared_updates(tensors, self._updated, self._model)
        return tensors

    @staticmethod
    def _on_host(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors as a program reads them: on the CPU, with bytes that are their values."""
        return [
            tensor if type(tensor) is torch.Tensor and tensor.is_cpu and not tensor.is_conj() and not tensor.is_neg()
            else tensor.detach().cpu().resolve_conj().resolve_neg() for tensor in tensors
        ]  # fmt: skip

    def _leaves_by_pytree(self, given: Any) -> list[Any]:
        """The leaves of arguments in classes that pytree takes for tuples, lists and dictionaries."""
        leaves, spec = pytree.tree_flatten(given)
        described = structure.describe(spec)
        found = self._structure.leaves(_C.Structure(described).build(leaves))
        if found is None:
            raise ValueError("the arguments are nested otherwise than in the example: expected "
                             f"{structure.show(self._arguments)}, not {structure.show(described)}")
        return found

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
        away = [tensor.device for tensor in tensors if not tensor.is_cpu and tensor.device.type == "hetero"]
        for index, output in self._updates:
            tensors[index].detach().copy_(results[output])
        if away:
            results = [result.to(away[0]) if output in self._returned else result
                       for output, result in enumerate(results)]
        return self._caller.nest(results)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the program, its weights and its plan to one file.

        Raises:
            RuntimeError: where the system refuses to.
        """
        self._model.save(os.fspath(path))

    @property
    def counts(self) -> dict[str, int]:
        """What was done since the program was planned last: runs, kernels, host_waits, allocations and so on."""
        return self._caller.executor.counts

    @property
    def plan_origin(self) -> str:
        """Whether the plan was saved with the program, or why it was made anew."""
        return self._caller.executor.plan_origin

    def __str__(self) -> str:
        """Inputs, outputs, weights, memory, placement, graph and plan."""
        return self._caller.executor.describe()


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


def refuse_shared_updates(tensors: Sequence[torch.Tensor], updated: Sequence[int], model: _C.Model) -> None:
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


def _named(positional: int, keywords: Sequence[str]) -> str:
    """The kinds of arguments of a call."""
    by_position = f"{positional} by position" if positional or not keywords else ""
    by_name = f"{', '.join(map(repr, keywords))} by name" if keywords else ""
    return " and ".join(filter(None, (by_position, by_name)))
