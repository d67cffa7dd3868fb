"""Peers beside eager: torch.compile with inductor; JAX, OpenVINO and ONNX Runtime where they are installed (no
requirements file has them). All of them run with as many threads as PyTorch."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import torch

Subject = TypeVar("Subject", bound=Callable[..., object])
Encoder = Callable[[], torch.Tensor]  # one call, of the inputs that it was made for
Network = Callable[[], list[torch.Tensor]]  # the same, with all results

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
    """A call of the encoder by OpenVINO, or None where it, or NNCF for 8 bits, is not installed.

    Args:
        model: The encoder.
        inputs: The call's arguments.
        precision: "f32" or "bf16"; "int8 dynamic": weights in 8 bits by NNCF, and inputs of products when it runs;
            "int8 static": all that NNCF quantizes of a transformer, calibrated by these very inputs.
    """
    try:
        run = openvino_network(LastHidden(model, list(inputs)), tuple(inputs.values()), precision)
    except ImportError:
        return None
    return lambda: run()[0]


def openvino_network(network: torch.nn.Module, inputs: Sequence[torch.Tensor], precision: str = "f32") -> Network:
    """A call of a network by OpenVINO, in the precisions of `openvino`. Raises ImportError where a part is missing."""
    import openvino as ov

    sizes = [list(tensor.shape) for tensor in inputs]
    with torch.no_grad():
        try:
            converted = ov.convert_model(network, example_input=tuple(inputs), input=sizes)
        except ov.frontend.OpConversionFailure:  # a trace has operators that an exported program decomposes
            program = torch.export.export(network, tuple(inputs)).run_decompositions()
            converted = ov.convert_model(program, input=sizes)
    if precision.startswith("int8"):
        with _quiet("nncf"):
            import nncf

            if precision == "int8 dynamic":
                converted = nncf.compress_weights(converted, mode=nncf.CompressWeightsMode.INT8_SYM)
            else:
                sample = [tensor.numpy() for tensor in inputs]
                converted = nncf.quantize(
                    converted, nncf.Dataset([sample]), model_type=nncf.ModelType.TRANSFORMER, subset_size=1
                )
    options = {
        "INFERENCE_PRECISION_HINT": precision if precision == "bf16" else "f32",
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
    }
    if precision == "int8 dynamic":
        options["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = "128"
    request = ov.Core().compile_model(converted, "CPU", options).create_infer_request()
    arrays = [tensor.numpy() for tensor in inputs]
    return lambda: [torch.from_numpy(array) for array in request.infer(arrays).to_tuple()]


def onnxruntime(model: torch.nn.Module, inputs: dict[str, torch.Tensor], precision: str = "f32") -> Encoder | None:
    """A call of the encoder by ONNX Runtime, in "f32" or "int8 dynamic" (`quantize_dynamic`), with all of its
    optimizations; None where it or the exporter of PyTorch is not installed."""
    try:
        run = onnxruntime_network(LastHidden(model, list(inputs)), tuple(inputs.values()), precision)
    except ImportError:
        return None
    return lambda: run()[0]


def onnxruntime_network(
    network: torch.nn.Module, inputs: Sequence[torch.Tensor], precision: str = "f32", *, legacy: bool = False
) -> Network:
    """A call of a network by ONNX Runtime, in the precisions of `onnxruntime`. Raises an ImportError where a part is
    missing. `legacy` is for PyTorch's older exporter, which keeps a recurrent network as one operator."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    # Its threads spin while a call runs, and not in the time of the next subject.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    made = _exported(network, tuple(inputs), legacy)
    if precision == "int8 dynamic":
        with _quiet("root"), tempfile.TemporaryDirectory() as folder:
            from onnxruntime.quantization import QuantType, quantize_dynamic

            Path(folder, "float32.onnx").write_bytes(made)
            quantize_dynamic(
                f"{folder}/float32.onnx", f"{folder}/int8.onnx", per_channel=True, weight_type=QuantType.QInt8
            )
            made = Path(folder, "int8.onnx").read_bytes()
    session = ort.InferenceSession(made, options, providers=["CPUExecutionProvider"])
    names = [argument.name for argument in session.get_inputs()]
    arrays = dict(zip(names, (tensor.numpy() for tensor in inputs), strict=True))
    return lambda: [torch.from_numpy(array) for array in session.run(None, arrays)]


def _exported(network: torch.nn.Module, inputs: tuple[torch.Tensor, ...], legacy: bool) -> bytes:
    """The network as an ONNX file."""
    with torch.no_grad():
        if legacy:
            file = io.BytesIO()
            torch.onnx.export(network, inputs, file, dynamo=False, verbose=False)
            return file.getvalue()
        import onnxscript  # noqa: F401  torch.onnx.export needs it, and onnx

        with _quiet("onnxscript"):
            return torch.onnx.export(network, inputs, verbose=False).model_proto.SerializeToString()


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
