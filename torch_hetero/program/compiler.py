"""``torch.compile(model, backend="hetero")``: graphs that are recorded once and run as programs.

TorchDynamo captures the Python, AOTAutograd makes graphs of ATen operators of it, one for the forward pass and one for
the backward pass. Each becomes a `CompiledGraph`: a call of it is a call of a program. Nothing is recorded then, and no
Python runs for an operator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext

from torch_hetero.device import rng_prims
from torch_hetero.program.compiled_graph import CompiledGraph
from torch_hetero.program.joint import depends_on_strides, simplify
from torch_hetero.program.whole_operators import kept_whole

__all__ = ["backend"]

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

rng_prims.add_hetero()


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


def _seen_results() -> int | None:
    """Says how many results of the forward graph come before what it saves for the backward graph; None: unknown."""
    context = TracingContext.try_get()
    metadata = context and context.fw_metadata
    return metadata.num_forward if metadata else None


def backend(
    model: fx.GraphModule,
    example_inputs: list[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """The backend of ``torch.compile``. Registered as "hetero"; see ``docs/compile.md``."""
    chosen = _options(mode, options)
    keeps_strides = False  # what the forward graph saves for the backward graph

    def divide(joint: fx.GraphModule, *arguments: Any, **named: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        nonlocal keeps_strides
        simplify(joint)
        keeps_strides = depends_on_strides(joint)
        return min_cut_rematerialization_partition(joint, *arguments, **named)

    def forward(module: fx.GraphModule, _: list[Any]) -> CompiledGraph:
        return CompiledGraph(module, "forward", chosen, None if keeps_strides else _seen_results())

    def compiler(kind: str) -> Callable[[fx.GraphModule, list[Any]], CompiledGraph]:
        return lambda module, _: CompiledGraph(module, kind, chosen)

    compile_graphs = aot_autograd(
        fw_compiler=forward,
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        partition_fn=divide,
        keep_inference_input_mutations=True,
    )
    with kept_whole():
        return compile_graphs(model, example_inputs)
