"""``torch.compile`` without a backend: graphs with hetero tensors go to the backend "hetero", all others to inductor.

Libraries compile functions of their own without naming a backend.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from torch_hetero.program import compiler


def _uses_hetero(model: Any, inputs: Any) -> bool:
    values = tree_leaves(inputs)
    if isinstance(model, torch.nn.Module):
        values += [*model.parameters(), *model.buffers()]
    if isinstance(model, torch.fx.GraphModule):
        values += [value for node in model.graph.nodes for value in tree_leaves(node.meta.get("example_value"))]
    return any(isinstance(value, torch.Tensor) and value.device.type == "hetero" for value in values)


def apply(module: ModuleType) -> None:
    """Adapts ``torch._inductor.compile_fx``."""
    original = module.compile_fx

    @functools.wraps(original)
    def compile_fx(model: Any, example_inputs: Any, *arguments: Any, **named: Any) -> Any:
        if _uses_hetero(model, example_inputs):
            return compiler.backend(model, example_inputs)
        return original(model, example_inputs, *arguments, **named)

    module.compile_fx = compile_fx
