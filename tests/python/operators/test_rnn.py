"""Recurrent layers and cells: outputs, final states and every gradient have the bits of eager CPU."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from counters import counting
from helpers import DEVICE, assert_same, needs_hetero
from torch import nn
from torch.nn.utils import rnn as sequences

LAYERS: dict[str, Callable[..., nn.RNNBase]] = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": lambda *args, **options: nn.RNN(*args, nonlinearity="tanh", **options),
    "relu": lambda *args, **options: nn.RNN(*args, nonlinearity="relu", **options),
}
CELLS = {
    "lstm": nn.LSTMCell,
    "gru": nn.GRUCell,
    "tanh": nn.RNNCell,
    "relu": lambda *args, **options: nn.RNNCell(*args, nonlinearity="relu", **options),
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"num_layers": 2},
    {"bidirectional": True},
    {"num_layers": 2, "bidirectional": True, "batch_first": True, "bias": False},
    {"num_layers": 3, "dropout": 0.5},  # in evaluation
]
LENGTHS = torch.tensor([6, 4, 4, 1])


def flat(value: Any) -> list[torch.Tensor]:
    """The tensors of a layer's nested outputs."""
    if isinstance(value, sequences.PackedSequence):
        return [value.data]
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for part in value for tensor in flat(part)]


def run(module: nn.Module, inputs: tuple, device: str, lengths: torch.Tensor | None = None) -> list[torch.Tensor]:
    """Outputs, then gradients of the inputs and of the parameters; each output has its own weights in the loss."""
    module = copy.deepcopy(module).to(device)
    leaves = [tensor.detach().to(device).requires_grad_() for tensor in inputs]
    value, *state = leaves
    if lengths is not None:
        value = sequences.pack_padded_sequence(value, lengths, batch_first=getattr(module, "batch_first", False))
    arguments = [value]
    if state:
        arguments.append(tuple(state) if len(state) == 2 else state[0])
    outputs = flat(module(*arguments))
    if torch.is_grad_enabled():
        generator = torch.Generator().manual_seed(5)
        weights = [torch.randn(out.shape, generator=generator).to(out.dtype) for out in outputs]
        torch.autograd.backward(outputs, [weight.to(device) for weight in weights])
    gradients = [leaf.grad for leaf in (*leaves, *module.parameters()) if leaf.grad is not None]
    assert not torch.is_grad_enabled() or len(gradients) == len(leaves) + len(list(module.parameters()))
    return [tensor.detach().cpu() for tensor in (*outputs, *gradients)]


@functools.cache
def eager_has_one_value(dtype: torch.dtype) -> bool:
    """Whether eager gives equal numbers equal bits wherever they lie in memory.

    On AMD's processors MKL's float64 product and sigmoid do not, so there is no one value to be equal to.
    """
    generator = torch.Generator().manual_seed(1)
    x, w, bias = (torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
                  for shape in ((256, 28), (28, 28), (28,)))
    product = torch.addmm(bias, x, w.t())
    return torch.equal(product, torch.addmm(bias, x, w.t().contiguous())) and torch.equal(
        torch.sigmoid(product)[:, 14:21], torch.sigmoid(product[:, 14:21]))


def check(module: nn.Module, inputs: tuple, lengths: torch.Tensor | None = None, times: int = 2) -> None:
    """Runs twice: the first call of its kind and those that follow take different ways on hetero."""
    expected = run(module, inputs, "cpu", lengths)
    for _ in range(times):
        actual = run(module, inputs, DEVICE, lengths)
        if expected[0].dtype == torch.float64 and not eager_has_one_value(torch.float64):
            torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
        else:
            assert_same(actual, expected)


def make_inputs(layer: nn.RNNBase, with_state: bool, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    shape = (4, 6, 5) if layer.batch_first else (6, 4, 5)
    inputs = [torch.randn(shape, dtype=dtype)]
    if with_state:
        rows = layer.num_layers * (2 if layer.bidirectional else 1)
        inputs.append(torch.randn(rows, 4, layer.proj_size or layer.hidden_size, dtype=dtype))
        if layer.mode == "LSTM":
            inputs.append(torch.randn(rows, 4, layer.hidden_size, dtype=dtype))
    return tuple(inputs)


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", LAYERS)
def test_layers_and_their_gradients_are_bitwise_cpu(kind: str, options: dict, packed: bool) -> None:
    layer = LAYERS[kind](5, 7, **options).eval()
    for with_state in (False, True):
        check(layer, make_inputs(layer, with_state, torch.float32), LENGTHS if packed else None)


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", LAYERS)
def test_other_types_are_bitwise_cpu(kind: str, dtype: torch.dtype, packed: bool) -> None:
    layer = LAYERS[kind](5, 7, num_layers=2, bidirectional=True, dtype=dtype)
    check(layer, make_inputs(layer, True, dtype), LENGTHS if packed else None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", LAYERS)
def test_inference_is_bitwise_cpu(kind: str, dtype: torch.dtype) -> None:
    layer = LAYERS[kind](5, 7, num_layers=2, dtype=dtype).requires_grad_(False)
    inputs = make_inputs(layer, True, dtype)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            check(layer, inputs)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_projections_are_bitwise_cpu(packed: bool, bias: bool) -> None:
    layer = nn.LSTM(5, 7, proj_size=3, num_layers=2, bidirectional=True, bias=bias)
    check(layer, make_inputs(layer, True, torch.float32), LENGTHS if packed else None)


@pytest.mark.parametrize("kind", LAYERS)
def test_an_unbatched_sequence_is_bitwise_cpu(kind: str) -> None:
    check(LAYERS[kind](5, 7, bidirectional=True), (torch.randn(6, 5),))


@pytest.mark.parametrize("kind", LAYERS)
def test_an_empty_batch_gives_empty_outputs_and_zero_gradients(kind: str) -> None:
    check(LAYERS[kind](5, 7, num_layers=2), (torch.randn(6, 0, 5),))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", CELLS)
def test_cells_are_bitwise_cpu(kind: str, dtype: torch.dtype, bias: bool) -> None:
    cell = CELLS[kind](5, 7, bias=bias, dtype=dtype)
    states = [torch.randn(4, 7, dtype=dtype) for _ in range(2 if kind == "lstm" else 1)]
    check(cell, (torch.randn(4, 5, dtype=dtype), *states))
    check(cell, (torch.randn(5, dtype=dtype),))


def test_an_unrolled_cell_is_bitwise_cpu() -> None:
    class Unrolled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.LSTMCell(5, 7)

        def forward(self, steps: torch.Tensor) -> torch.Tensor:
            state, outputs = None, []
            for step in steps:
                state = self.cell(step, state)
                outputs.append(state[0])
            return torch.stack(outputs)

    check(Unrolled(), (torch.randn(9, 4, 5),))


@pytest.mark.parametrize("kind", LAYERS)
def test_unsorted_packed_sequences_are_bitwise_cpu(kind: str) -> None:
    layer = LAYERS[kind](5, 7, bidirectional=True)
    inputs = torch.randn(6, 4, 5)

    def forward(device: str) -> list[torch.Tensor]:
        packed = sequences.pack_padded_sequence(
            inputs.to(device), LENGTHS[[2, 0, 3, 1]], enforce_sorted=False
        )
        output, state = copy.deepcopy(layer).to(device)(packed)
        padded, lengths = sequences.pad_packed_sequence(output)
        return [tensor.detach().cpu() for tensor in (padded, lengths, *flat(state))]

    assert_same(forward(DEVICE), forward("cpu"))


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_dropout_between_layers_in_training_zeroes_and_rescales(kind: str, packed: bool) -> None:
    """With p = 1 the second layer sees zeros, and nothing is left to chance."""
    layer = LAYERS[kind](5, 7, num_layers=2, dropout=1.0)
    check(layer, make_inputs(layer, False, torch.float32), LENGTHS if packed else None)
    layer.dropout = 0.5
    inputs = make_inputs(layer, False, torch.float32)
    first, second = (run(layer, inputs, DEVICE, LENGTHS if packed else None) for _ in range(2))
    assert all(tensor.isfinite().all() for tensor in first)
    assert not torch.equal(first[0], second[0])


def test_an_lstm_without_onednn_is_bitwise_cpu() -> None:
    layer = nn.LSTM(5, 7, num_layers=2, bidirectional=True)
    with torch.backends.mkldnn.flags(enabled=False):
        check(layer, make_inputs(layer, True, torch.float32))


@pytest.mark.parametrize("kind", LAYERS)
def test_autocast_is_bitwise_cpu(kind: str) -> None:
    if kind == "lstm" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("the CPU's own LSTM in bfloat16 needs AVX-512")
    layer = LAYERS[kind](5, 7)
    inputs = torch.randn(6, 4, 5)

    def forward(device: str) -> list[torch.Tensor]:
        module = copy.deepcopy(layer).to(device)
        with torch.autocast(device, dtype=torch.bfloat16):
            output, state = module(inputs.to(device))
        output.float().sum().backward()
        gradients = [parameter.grad for parameter in module.parameters()]
        return [tensor.detach().cpu() for tensor in (output, *flat(state), *gradients)]

    assert_same(forward(DEVICE), forward("cpu"))


def test_second_derivatives_of_an_lstm_are_bitwise_cpu() -> None:
    layer, inputs = nn.LSTM(3, 4), torch.randn(5, 2, 3)

    def forward(device: str) -> list[torch.Tensor]:
        module, leaf = copy.deepcopy(layer).to(device), inputs.to(device).requires_grad_()
        (gradient,) = torch.autograd.grad(module(leaf)[0].sum(), leaf, create_graph=True)
        gradient.square().sum().backward()
        return [gradient.detach().cpu(), leaf.grad.cpu(), *(p.grad.cpu() for p in module.parameters())]

    assert_same(forward(DEVICE), forward("cpu"))


@pytest.mark.parametrize("recorded,run_in", [(True, False), (False, True)])
def test_the_grad_mode_of_the_call_decides_not_that_of_the_flush(recorded: bool, run_in: bool) -> None:
    layer, inputs = nn.LSTM(5, 7), torch.randn(6, 4, 5)
    there, arguments = copy.deepcopy(layer).to(DEVICE), inputs.to(DEVICE)
    with torch.set_grad_enabled(recorded):
        expected, _ = layer(inputs)
        for _ in range(2):
            output, _ = there(arguments)
    with torch.set_grad_enabled(run_in):
        assert torch.equal(output.detach().cpu(), expected.detach())
    if recorded:
        expected.sum().backward()
        output.sum().backward()
        assert_same([p.grad.cpu() for p in there.parameters()], [p.grad for p in layer.parameters()])


@needs_hetero
def test_an_lstm_is_recorded_once_its_shapes_are_known() -> None:
    layer = nn.LSTM(5, 7, num_layers=2).to(DEVICE)
    inputs = torch.randn(6, 3, 5).to(DEVICE)
    torch.autograd.backward(layer(inputs)[0].sum())
    torch.hetero.flush()
    with counting() as seen:
        torch.autograd.backward(layer(inputs)[0].sum())
    assert seen.straight == 0 and seen.recorded > 0


@pytest.mark.parametrize(
    "call",
    [
        lambda device: nn.LSTMCell(5, 7).to(device)(torch.ones(2, 4).to(device)),
        lambda device: nn.GRUCell(5, 7).to(device)(torch.ones(2, 5).to(device), torch.ones(3, 7).to(device)),
        lambda device: nn.GRU(5, 7).to(device)(torch.ones(0, 2, 5).to(device)),
        lambda device: nn.LSTM(5, 7).to(device)(torch.ones(0, 2, 5).to(device)),
        lambda device: torch.lstm(torch.ones(1, 1, 1).to(device), [torch.ones(1).to(device)], [], True, 1, 0.0,
                                  False, False, False),
    ],
    ids=["cell input", "cell state", "empty gru", "empty lstm", "one state"],
)
def test_wrong_calls_raise_what_they_raise_on_cpu(call: Callable) -> None:
    with pytest.raises(RuntimeError) as expected:
        call("cpu")
    with pytest.raises(RuntimeError) as actual:
        call(DEVICE)
    assert str(actual.value).splitlines()[0] == str(expected.value).splitlines()[0]


@needs_hetero
def test_weights_on_another_device_are_refused() -> None:
    for module in (nn.GRU(5, 7), nn.LSTM(5, 7)):
        with pytest.raises(RuntimeError, match="not at the same device"):
            module(torch.ones(3, 2, 5).to(DEVICE))
