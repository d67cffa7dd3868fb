"""Peers beside eager: torch.compile with inductor; JAX, OpenVINO and ONNX Runtime where they are installed (no
requirements file has them). All of them run with as many threads as PyTorch."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

Subject = TypeVar("Subject", bound=Callable[..., object])
Encoder = Callable[[], torch.Tensor]  # one call, of the inputs that it was made for

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


class LastHidden(torch.nn.Module):
    """An encoder that takes tensors by position and returns its last hidden state alone, for exporters."""

    def __init__(self, model: torch.nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self.names = tuple(names)
        self.eval()

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        """The last hidden state."""
        return self.model(**dict(zip(self.names, tensors, strict=True))).last_hidden_state


def openvino(model: torch.nn.Module, inputs: dict[str, torch.Tensor], precision: str) -> Encoder | None:
    """A call of the encoder by OpenVINO in "f32" or "bf16", or None where it is not installed."""
    try:
        import openvino as ov
    except ImportError:
        return None
    with torch.no_grad():
        converted = ov.convert_model(LastHidden(model, list(inputs)), example_input=tuple(inputs.values()),
                                     input=[list(tensor.shape) for tensor in inputs.values()])
    options = {"INFERENCE_PRECISION_HINT": precision, "PERFORMANCE_HINT": "LATENCY",
               "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    request = ov.Core().compile_model(converted, "CPU", options).create_infer_request()
    arrays = [tensor.numpy() for tensor in inputs.values()]
    return lambda: torch.from_numpy(request.infer(arrays)[0])


def onnxruntime(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> Encoder | None:
    """A call of the encoder in float32 by ONNX Runtime, with all of its optimizations; None where it or the exporter
    of PyTorch is not installed."""
    try:
        import onnxruntime as ort
        import onnxscript  # noqa: F401  torch.onnx.export needs it, and onnx
    except ImportError:
        return None
    with torch.no_grad(), _quiet("onnxscript"):
        exported = torch.onnx.export(LastHidden(model, list(inputs)), tuple(inputs.values()), verbose=False)
    options = ort.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    # Its threads spin while a call runs, and not in the time of the next subject.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = ort.InferenceSession(exported.model_proto.SerializeToString(), options,
                                   providers=["CPUExecutionProvider"])
    names = [argument.name for argument in session.get_inputs()]
    arrays = dict(zip(names, (tensor.numpy() for tensor in inputs.values()), strict=True))
    return lambda: torch.from_numpy(session.run(None, arrays)[0])


@contextlib.contextmanager
def _quiet(logger: str) -> Iterator[None]:
    """Nothing but errors of this logger: exporters tell of each constant that they did not fold."""
    log = logging.getLogger(logger)
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
