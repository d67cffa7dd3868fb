"""Peers beside eager: torch.compile with inductor; JAX and OpenVINO where they are installed (no requirements file has
them)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

import torch

Subject = TypeVar("Subject", bound=Callable[..., object])

# An earlier run's kernels must not make compiling look cheap.
os.environ.setdefault("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")


def inductor(subject: Subject) -> Subject:
    """`subject` compiled for the shapes it is called with; nothing that was compiled before is reused."""
    torch._dynamo.reset()
    return torch.compile(subject, dynamic=False)


def first_call(run: Callable[[], object]) -> float:
    """Seconds that the first call takes, which is when peers compile."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def jax_version() -> str | None:
    """The version of JAX, or None where it is not installed."""
    try:
        import jax
    except ImportError:
        return None
    return jax.__version__


def openvino(model: torch.nn.Module, inputs: dict[str, torch.Tensor], precision: str) -> Callable[[], object] | None:
    """A call of the model by OpenVINO in "f32" or "bf16", or None where it is not installed."""
    try:
        import openvino as ov
    except ImportError:
        return None
    names = list(inputs)

    class LastHidden(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
            return self.model(**dict(zip(names, tensors, strict=True))).last_hidden_state

    with torch.no_grad():
        converted = ov.convert_model(LastHidden(), example_input=tuple(inputs.values()),
                                     input=[list(tensor.shape) for tensor in inputs.values()])
    options = {"INFERENCE_PRECISION_HINT": precision, "PERFORMANCE_HINT": "LATENCY"}
    request = ov.Core().compile_model(converted, "CPU", options).create_infer_request()
    arrays = [tensor.numpy() for tensor in inputs.values()]
    return lambda: request.infer(arrays)
