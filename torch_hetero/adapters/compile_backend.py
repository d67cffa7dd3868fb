"""The backend "hetero" of ``torch.compile``, also where no installation has told of it: in a source tree."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any


def backend(model: Any, example_inputs: list[Any], **chosen: Any) -> Callable[..., Any]:
    """See `torch_hetero.program.compiler.backend`, which is imported when it is first needed: it takes a second."""
    from torch_hetero.program import compiler

    return compiler.backend(model, example_inputs, **chosen)


def apply(module: ModuleType) -> None:
    """Adapts ``torch._dynamo.backends.registry``."""
    if "hetero" not in module._COMPILER_FNS:
        module.register_backend(backend, name="hetero")
