"""``torch.compile(model, backend="hetero")``: graphs that are recorded once and run as programs.

TorchDynamo captures the Python, AOTAutograd makes graphs of ATen operators of it, one for the forward pass and one for
the backward pass. Such a graph is run once over tensors without bytes; what the device recorded meanwhile is kept as a
`CompiledProgram` (``ops/program/compiled.h``), planned by the same planner as everything else. From then on a call of the graph
is a call of the program: nothing is recorded, and no Python runs for an operator.

What cannot be captured, because it depends on values, runs lazily, as without ``torch.compile``;
``torch.hetero.explain()`` says why.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition

from torch_hetero import _C, rng_prims
from torch_hetero.settings.config import config
from torch_hetero.settings.explain import refused_captures

__all__ = ["CompiledGraph", "GraphOnHetero", "backend", "graphs"]

_HETERO = torch.device("hetero", 0)

# What torch.compile's modes mean here, as options of a program. There is no overhead for each operator that a mode
# could reduce.
_MODES: dict[str | None, dict[str, bool]] = {
    None: {},
    "default": {},
    "reduce-overhead": {},
    "max-autotune": {"plan_each_size": True, "search_longer": True},
    "max-autotune-no-cudagraphs": {"plan_each_size": True, "search_longer": True},
}
_OPTIONS = ("plan_each_size", "search_longer")

# A graph that could not be captured so often is not tried again: the first call may meet operators that have to run
# once before anybody knows what their results look like.
_MOST_REFUSALS = 2

rng_prims.add_hetero()

_graphs: weakref.WeakSet[CompiledGraph] = weakref.WeakSet()
_numbers = itertools.count()


def _batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, variance: Any, momentum: float, eps: float
) -> tuple[Any, ...]:
    return torch.ops.aten.native_batch_norm.default(x, weight, bias, mean, variance, False, momentum, eps)


# What AOTAutograd makes of operators that the device knows better by the name that they have without it.
_AS_WITHOUT_AOT = {torch.ops.aten._native_batch_norm_legit_no_training.default: _batch_norm}


class GraphOnHetero(fx.Interpreter):
    """Runs a graph with every tensor on hetero, whatever device it was traced for.

    `weights` stand for the graph's attributes of these names.
    """

    def __init__(self, module: fx.GraphModule, weights: Mapping[str, torch.Tensor] | None = None) -> None:
        super().__init__(module)
        self.extra_traceback = False
        self._weights = weights or {}

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls an operator of ATen."""
        if target is torch.ops.aten._assert_tensor_metadata.default:
            return None  # of the device, too
        target = _AS_WITHOUT_AOT.get(target, target)
        args, kwargs = torch.utils._pytree.tree_map_only(torch.device, _on_hetero, (args, kwargs))
        return super().call_function(target, args, kwargs)

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls a module, save for what torch.export checks of the inputs: whoever captures knows them."""
        return None if target == "_guards_fn" else super().call_module(target, args, kwargs)

    def get_attr(self, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Returns a weight or a constant, on hetero; a graph inside this one runs as this one does."""
        if target in self._weights:
            return self._weights[target]
        value = super().get_attr(target, args, kwargs)
        if isinstance(value, fx.GraphModule):
            return lambda *inputs: GraphOnHetero(value).run(*inputs, enable_io_processing=False)
        return value.to(_HETERO) if isinstance(value, torch.Tensor) else value


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


def _on_hetero(device: torch.device) -> torch.device:
    return _HETERO if device.type in ("cpu", "cuda") else device


def _device_of(result: Any) -> str:
    """Where the caller expects a result of the graph: ``cpu``, ``cuda`` or ``hetero``."""
    value = result.meta.get("val") if isinstance(result, fx.Node) else None
    return value.device.type if isinstance(value, torch.Tensor) else "hetero"


class CompiledGraph:
    """A graph of ATen operators as a program of the device; what AOTAutograd calls.

    Attributes:
        kind: ``forward``, ``backward`` or ``inference``.
        number: in the order in which they were made.
        calls: how often the program ran.
        lazy_calls: how often the graph ran lazily instead.
        refusal: why it could not be captured the last time; empty where it could.
    """

    def __init__(self, module: fx.GraphModule, kind: str, options: dict[str, bool]) -> None:
        # The arguments come as a list that is ours. Wrappers copy the attributes of an object, not those of a class.
        self._boxed_call = True
        self.number = next(_numbers)
        self.kind = kind
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
                self._program.end_capture(results, self._devices)
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


def graphs() -> list[CompiledGraph]:
    """Returns the compiled graphs that are alive, oldest first."""
    return sorted(_graphs, key=lambda graph: graph.number)


def _options(mode: str | None, options: dict[str, Any] | None) -> dict[str, bool]:
    if mode not in _MODES:
        known = ", ".join(repr(name) for name in _MODES if name)
        raise ValueError(f'torch.compile(backend="hetero") knows the modes {known}, not {mode!r}.')
    chosen = dict(_MODES[mode])
    for name, value in (options or {}).items():
        if name not in _OPTIONS:
            raise ValueError(f'torch.compile(backend="hetero") knows the options {", ".join(_OPTIONS)}, not {name!r}.')
        if not isinstance(value, bool):
            raise ValueError(f'torch.compile(backend="hetero") takes True or False for {name}, not {value!r}.')
        chosen[name] = value
    return chosen


def backend(
    model: fx.GraphModule,
    example_inputs: list[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """The backend of ``torch.compile``. Registered as "hetero"; see ``docs/compile.md``."""
    chosen = _options(mode, options)

    def compiler(kind: str) -> Callable[[fx.GraphModule, list[Any]], CompiledGraph]:
        return lambda module, _: CompiledGraph(module, kind, chosen)

    compile_graphs = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    return compile_graphs(model, example_inputs)
