"""A graph of ATen operators that is run once over tensors without bytes, and from then on as a program.

What the device records in that run is kept as a `CompiledProgram` (``ops/program/compiled.h``), planned by the same
planner as everything else. What cannot be captured, because it depends on values, runs lazily;
``torch.hetero.explain()`` says why.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import torch
from torch import fx

from torch_hetero import _C
from torch_hetero.device import rng_prims
from torch_hetero.program.replay import GraphOnHetero
from torch_hetero.settings.config import config
from torch_hetero.settings.explain import refused_captures

__all__ = ["CompiledGraph", "compiled_graphs"]

# A graph that could not be captured so often is not tried again: the first call may meet operators that have to run
# once before anybody knows what their results look like.
_MOST_REFUSALS = 2

_graphs: weakref.WeakSet[CompiledGraph] = weakref.WeakSet()
_numbers = itertools.count()


def _never_captured(module: fx.GraphModule) -> str:
    """Says what of the graph must be called each time, where a capture would keep what it did then."""
    targets = [node.target for inner in module.modules() if isinstance(inner, fx.GraphModule)
               for node in inner.graph.nodes]
    if any(target in rng_prims.OPERATORS for target in targets):
        return "random numbers that are drawn again in the backward pass"
    for target in targets:
        # Its kernel may be Python, and takes tensors of the device, which a node of a program has not.
        custom = isinstance(target, torch._ops.OpOverload) and target.namespace not in ("aten", "hetero", "prims")
        if custom and torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "PrivateUse1"):
            return f"{target.name()}, which has a kernel of its own for the device"
    return ""


def _allow_other_strides(module: fx.GraphModule) -> None:
    """Lets views of what kernels lay out in other strides than AOTAutograd took for granted be copies.

    The gradient of a batch norm of a transposed input is one. In these graphs, which write nothing through a view,
    a copy has the same values.
    """
    for inner in module.modules():
        nodes = inner.graph.nodes if isinstance(inner, fx.GraphModule) else ()
        views = [node for node in nodes if node.target is torch.ops.aten.view.default]
        for node in views:
            node.target = torch.ops.aten.reshape.default
        if views:
            inner.recompile()


def _device_of(result: Any) -> str:
    """Where the caller expects a result of the graph: ``cpu``, ``cuda`` or ``hetero``."""
    value = result.meta.get("val") if isinstance(result, fx.Node) else None
    return value.device.type if isinstance(value, torch.Tensor) else "hetero"


class CompiledGraph:
    """A graph of ATen operators as a program of the device; what AOTAutograd calls.

    Attributes:
        kind: ``forward``, ``backward`` or ``inference``.
        number: in the order in which they were made.
        seen: how many of the results others see than the graph of the gradients; None for all.
        calls: how often the program ran.
        lazy_calls: how often the graph ran lazily instead.
        refusal: why it could not be captured the last time; empty where it could.
    """

    def __init__(
        self, module: fx.GraphModule, kind: str, options: dict[str, bool], seen: int | None = None
    ) -> None:
        # The arguments come as a list that is ours. Wrappers copy the attributes of an object, not those of a class.
        self._boxed_call = True
        self.number = next(_numbers)
        self.kind = kind
        self.seen = seen
        self.calls = 0
        self.lazy_calls = 0
        self.refusal = ""
        self._refusals = 0
        _allow_other_strides(module)
        self._module = module
        self._never_captured = _never_captured(module)
        self._program = _C.CompiledProgram(**options)
        self._devices = [_device_of(result) for result in module.graph.output_node().args[0]]
        _graphs.add(self)

    def __call__(self, arguments: list[Any]) -> Any:
        """Returns the graph's results, and takes the arguments out of their list."""
        results = self._program.run(arguments)
        if results is None:
            if config.sync or not self._capture(arguments):
                return self._run_lazily(arguments)
            results = self._program.run(arguments)
        self.calls += 1
        return results

    def _run_lazily(self, arguments: list[Any]) -> Any:
        self.lazy_calls += 1
        taken = list(arguments)
        arguments.clear()
        return self._module(*taken)

    def _capture(self, arguments: list[Any]) -> bool:
        if self._refusals >= _MOST_REFUSALS:
            return False
        try:
            # Some kernels keep more where a backward pass may follow.
            with torch.set_grad_enabled(self.kind == "forward"), torch._C._DisableAutocast():
                results = self._record(arguments)
                self._program.end_capture(results, self._devices, self.seen)
        except Exception as error:
            self._program.cancel_capture()
            self.refusal = str(error).splitlines()[0]
            self._refusals += 1
            refused_captures[self.refusal] += 1
            return False
        self.refusal = ""
        return True

    def _record(self, arguments: list[Any]) -> list[Any]:
        if self._never_captured:
            raise NotImplementedError(f"hetero: a compiled program cannot contain this: {self._never_captured}")
        stand_ins = self._program.begin_capture(arguments)
        return list(GraphOnHetero(self._module).run(*stand_ins, enable_io_processing=False))

    def __str__(self) -> str:
        """The graph as it was recorded, and its plan."""
        state = f"{self.calls} calls, {self._program.variants} captured" + (
            f", {self.lazy_calls} calls ran lazily" if self.lazy_calls else "")
        why = f"\n  not captured: {self.refusal}" if self.refusal else ""
        return f"{self.kind} {self.number}: {state}{why}\n{self._program.describe()}"


def compiled_graphs() -> list[CompiledGraph]:
    """Returns the graphs of ``torch.compile(backend="hetero")`` that are alive; printing one shows its program."""
    return sorted(_graphs, key=lambda graph: graph.number)
