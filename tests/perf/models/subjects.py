"""Who runs the models: a row each. A subject makes a call of a model and its arguments; a call ends when its results
have their bytes on the CPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import nn

from tests.perf import peers
from tests.perf.measure import DEVICE
from tests.perf.models.table import Inputs, Model

Results = list[torch.Tensor]
Call = Callable[[], Results]
Prepare = Callable[[Model, nn.Module, Inputs], Call]


@dataclasses.dataclass(frozen=True)
class Subject:
    """One row.

    Attributes:
        name: its name on the command line.
        prepare: makes the call; what it takes is not part of the first call.
        precision: "float32" or "bfloat16".
        ours: whether it is hetero.
    """

    name: str
    prepare: Prepare
    precision: str = "float32"
    ours: bool = False


def listed(results: torch.Tensor | tuple[torch.Tensor, ...] | list[torch.Tensor]) -> Results:
    """The results of a call in a list, on the CPU."""
    return [result.cpu() for result in ([results] if isinstance(results, torch.Tensor) else results)]


def _eager(row: Model, model: nn.Module, inputs: Inputs) -> Call:
    return lambda: listed(model(*inputs))


def _lazy(row: Model, model: nn.Module, inputs: Inputs) -> Call:
    there, arguments = model.to(DEVICE), [tensor.to(DEVICE) for tensor in inputs]
    return lambda: listed(there(*arguments))


def _compile(row: Model, model: nn.Module, inputs: Inputs) -> Call:
    fast = torch.compile(model.to(DEVICE), backend="hetero", dynamic=False)
    arguments = [tensor.to(DEVICE) for tensor in inputs]
    return lambda: listed(fast(*arguments))


def _saved(row: Model, model: nn.Module, inputs: Inputs) -> Call:
    program = torch.hetero.compile(model, inputs)
    return lambda: listed(program(*inputs))


def _saved_bfloat16(row: Model, model: nn.Module, inputs: Inputs) -> Call:
    program = torch.hetero.compile(model, inputs, precision="bfloat16")
    return lambda: listed(program(*inputs))


def _inductor(row: Model, model: nn.Module, inputs: Inputs) -> Call:
    fast = torch.compile(model, dynamic=False)
    return lambda: listed(fast(*inputs))


def _freezing(row: Model, model: nn.Module, inputs: Inputs) -> Call:
    import torch._inductor.config

    torch._inductor.config.freezing = True
    return _inductor(row, model, inputs)


def _onnxruntime(row: Model, model: nn.Module, inputs: Inputs) -> Call:
    return peers.onnxruntime_network(model, inputs, legacy=row.legacy)


def _openvino(row: Model, model: nn.Module, inputs: Inputs) -> Call:
    return peers.openvino_network(model, inputs)


def _openvino_bfloat16(row: Model, model: nn.Module, inputs: Inputs) -> Call:
    return peers.openvino_network(model, inputs, "bf16")


SUBJECTS = (
    Subject("eager", _eager),
    Subject("lazy", _lazy, ours=True),
    Subject("compile", _compile, ours=True),
    Subject("saved", _saved, ours=True),
    Subject("onnxruntime", _onnxruntime),
    Subject("openvino", _openvino),
    Subject("inductor", _inductor),
    Subject("freezing", _freezing),
    Subject("saved-bf16", _saved_bfloat16, "bfloat16", ours=True),
    Subject("openvino-bf16", _openvino_bfloat16, "bfloat16"),
)


class Training:
    """A model with its optimizer; a call is one whole step, and reads the loss: the mean of squares of all results."""

    def __init__(self, row: Model, model: nn.Module, inputs: Inputs, kind: str) -> None:
        device = DEVICE if kind in ("lazy", "compile") else "cpu"
        self.model = model.to(device).train()
        self.inputs = [tensor.to(device) for tensor in inputs]
        parameters = list(self.model.parameters())
        if row.optimizer == "sgd":
            self.optimizer: torch.optim.Optimizer = torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)
        else:
            self.optimizer = torch.optim.AdamW(parameters, lr=1e-4)
        self.loss, self.update = self._loss, self.optimizer.step
        if kind == "compile":
            self.loss = torch.compile(self._loss, backend="hetero", dynamic=False)
            self.update = torch.compile(self.optimizer.step, backend="hetero", dynamic=False)
        elif kind == "inductor":
            self.loss = torch.compile(self._loss, dynamic=False)
            self.update = torch.compile(self.optimizer.step, dynamic=False)

    def _loss(self) -> torch.Tensor:
        results = self.model(*self.inputs)
        parts = [results] if isinstance(results, torch.Tensor) else results
        return sum(part.square().mean() for part in parts if part.is_floating_point())

    def __call__(self) -> Results:
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        self.update()
        return [torch.tensor([loss.item()])]


def _training(kind: str) -> Prepare:
    return lambda row, model, inputs: Training(row, model, inputs, kind)


TRAINING = (
    Subject("eager", _training("eager")),
    Subject("lazy", _training("lazy"), ours=True),
    Subject("compile", _training("compile"), ours=True),
    Subject("inductor", _training("inductor")),
)
