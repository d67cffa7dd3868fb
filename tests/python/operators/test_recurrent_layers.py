"""GRUs, simple recurrent networks and packed sequences: each direction of a layer is one kernel in inference.

Until its weights are packed, a layer has eager's bits; then its steps are ours, within PyTorch's tolerances.
"""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from counters import counting
from helpers import DEVICE, assert_same, in_threads, needs_hetero
from torch import nn
from torch.nn.utils import rnn as sequences

pytestmark = [
    needs_hetero,
    pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="has no panels"),
]

PACKED = "recurrent layers with packed weights"
USES = 8  # of a weight before it is packed
KINDS = ["gru", "tanh", "relu", "lstm"]
INPUTS = 48
OPTIONS = [
    {},
    {"num_layers": 2, "bidirectional": True, "batch_first": True},
    {"bias": False, "bidirectional": True},
]


def make_layer(kind: str, units: int, **options: object) -> nn.RNNBase:
    if kind in ("gru", "lstm"):
        return {"gru": nn.GRU, "lstm": nn.LSTM}[kind](INPUTS, units, **options).eval()
    return nn.RNN(INPUTS, units, nonlinearity=kind, **options).eval()


def tensors(results: object) -> list[torch.Tensor]:
    if isinstance(results, torch.Tensor):
        return [results]
    if isinstance(results, sequences.PackedSequence):
        return [results.data]
    return [tensor for part in results for tensor in tensors(part)]


def packed(lengths: list[int]) -> sequences.PackedSequence:
    return sequences.pack_padded_sequence(torch.randn(max(lengths), len(lengths), INPUTS), torch.tensor(lengths))


class Pair:
    """A layer on the CPU and its twin on the device."""

    def __init__(self, kind: str, units: int = 40, **options: object) -> None:
        self.kind = kind
        self.layer = make_layer(kind, units, **options)
        self.there = copy.deepcopy(self.layer).to(DEVICE)
        self.directions = self.layer.num_layers * (1 + self.layer.bidirectional)
        # A padded LSTM is oneDNN's (test_packed_lstm.py).
        self.example = packed([5, 3, 3]) if kind == "lstm" else torch.randn(5, 3, INPUTS)

    def run_there(self, *arguments: object) -> tuple[list[torch.Tensor], int]:
        """The results, and how many layers had packed weights."""
        with counting() as seen:
            results = [tensor.cpu() for tensor in tensors(self.there(*arguments))]
        return results, seen.own_kernels.get(PACKED, 0)

    def use_until_packed(self) -> None:
        expected = tensors(self.layer(self.example))
        for _ in range(USES - 1):
            results, count = self.run_there(self.example.to(DEVICE))
            assert_same(results, expected)
            assert count == 0
        results, count = self.run_there(self.example.to(DEVICE))
        torch.testing.assert_close(results, expected)
        assert count == self.directions


@torch.no_grad()
@pytest.mark.parametrize("units", [7, 64, 100, 200])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_layers_are_within_tolerances_of_float64(kind: str, options: dict, units: int) -> None:
    pair = Pair(kind, units, **options)
    pair.use_until_packed()
    exact = copy.deepcopy(pair.layer).double()
    examples: list = [packed([7, 5, 5, 1]), packed([4]), packed([6] * 3), packed([9, 8, 7, 6, 5, 4, 3, 2, 2, 1, 1])]
    if kind != "lstm":
        examples += [torch.randn(sizes + (INPUTS,)) for sizes in ((1, 1), (6, 1), (1, 8), (5, 9), (3, 40))]
    for example in examples:
        is_packed = isinstance(example, sequences.PackedSequence)
        rows = example.batch_sizes[0] if is_packed else example.shape[0 if pair.layer.batch_first else 1]
        states = [torch.randn(pair.directions, rows, units) for _ in range(1 + (kind == "lstm"))]

        def given(device: str, dtype: torch.dtype, states: list[torch.Tensor] = states) -> tuple | torch.Tensor:
            there = tuple(state.to(device, dtype) for state in states)
            return there if kind == "lstm" else there[0]

        results, count = pair.run_there(example.to(DEVICE), given(DEVICE, torch.float32))
        expected = tensors(exact(example.to(torch.float64), given("cpu", torch.float64)))
        torch.testing.assert_close(results, [tensor.float() for tensor in expected])
        assert count == pair.directions


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 5, 12])
@pytest.mark.parametrize("kind", KINDS)
def test_bits_do_not_depend_on_the_number_of_threads(kind: str, rows: int) -> None:
    layer, threads, lengths = make_layer(kind, 300, bidirectional=True), torch.get_num_threads(), [6, 6, 5] * 4
    x = packed(sorted(lengths[:rows], reverse=True))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, data: torch.Tensor) -> list[torch.Tensor]:
            return tensors(self.layer(sequences.PackedSequence(data, x.batch_sizes)))

    program = torch.hetero.compile(Model(), (x.data,))
    results = []
    try:
        for count in (1, 2, 3, 4, 5):
            torch.set_num_threads(count)
            with counting() as seen:
                results.append(program(x.data))
            assert seen.own_kernels[PACKED] == 2
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert_same(other, results[0])
    torch.testing.assert_close(results[0], Model()(x.data))


@torch.no_grad()
def test_a_long_sequence_runs_in_blocks() -> None:
    for rows in (2, 12):
        pair = Pair("gru", 500, bidirectional=True)
        pair.use_until_packed()
        x = torch.randn(700, rows, INPUTS)
        results, count = pair.run_there(x.to(DEVICE))
        torch.testing.assert_close(results, tensors(pair.layer(x)))
        assert count == 2


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_values_that_are_not_finite_come_out_as_eagers(kind: str) -> None:
    pair = Pair(kind)
    pair.use_until_packed()
    x = packed([6, 6])
    x.data[3, 5], x.data[6, 7], x.data[8, 1] = float("nan"), float("inf"), -float("inf")
    results, _ = pair.run_there(x.to(DEVICE))
    torch.testing.assert_close(results, tensors(pair.layer(x)), equal_nan=True)


@torch.no_grad()
def test_inputs_of_any_layout() -> None:
    pair = Pair("gru", bidirectional=True)
    pair.use_until_packed()
    wide = torch.randn(3, 6, 2 * INPUTS)
    for x in (wide[..., ::2].transpose(0, 1), wide[:, :1, :INPUTS].expand(3, 6, INPUTS), wide[::2, 1:, INPUTS:]):
        state = torch.randn(2, 40, x.shape[1]).transpose(1, 2)
        results, count = pair.run_there(x.to(DEVICE), state.to(DEVICE))
        torch.testing.assert_close(results, tensors(pair.layer(x, state)))
        assert count == 2


@torch.no_grad()
@pytest.mark.parametrize("name", ["weight_ih_l0", "weight_hh_l0", "bias_hh_l0"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_parameter_that_changes(kind: str, name: str) -> None:
    pair = Pair(kind)
    pair.use_until_packed()
    for layer in (pair.layer, pair.there):
        getattr(layer, name).mul_(0.5)
    if name != "bias_hh_l0":
        pair.use_until_packed()
    results, count = pair.run_there(pair.example.to(DEVICE))
    torch.testing.assert_close(results, tensors(pair.layer(pair.example)))
    assert count == 1


@torch.no_grad()
@pytest.mark.parametrize("option", ["fusion", "verify", "packed_bytes", "deterministic"])
@pytest.mark.parametrize("kind", KINDS)
def test_bits_are_eagers_where_they_must_not_vary_or_there_is_no_room(kind: str, option: str) -> None:
    pair = Pair(kind)
    expected = tensors(pair.layer(pair.example))
    try:
        if option == "deterministic":
            torch.use_deterministic_algorithms(True)
        else:
            setattr(torch.hetero.config, option, {"fusion": False, "verify": True, "packed_bytes": 0}[option])
        for _ in range(USES + 2):
            results, count = pair.run_there(pair.example.to(DEVICE))
            assert_same(results, expected)
            assert count == 0
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("kind", KINDS)
def test_what_needs_gradients_or_autocast_runs_step_by_step(kind: str) -> None:
    pair = Pair(kind)
    there = pair.example.to(DEVICE)
    for _ in range(USES + 2):
        results, count = pair.run_there(there)
        assert_same([t.detach() for t in results], [t.detach() for t in tensors(pair.layer(pair.example))])
        assert count == 0
    tensors(pair.there(there))[0].sum().backward()
    assert all(parameter.grad.cpu().isfinite().all() for parameter in pair.there.parameters())
    with torch.no_grad(), torch.autocast(DEVICE, dtype=torch.bfloat16):
        for _ in range(USES + 2):
            assert pair.run_there(there)[1] == 0


@torch.no_grad()
def test_other_types_and_projections_run_step_by_step() -> None:
    for layer in (make_layer("gru", 40).double(), make_layer("gru", 40).bfloat16(), make_layer("lstm", 40, proj_size=8)):
        x = packed([4, 2]).to(layer.weight_ih_l0.dtype)
        there = copy.deepcopy(layer).to(DEVICE)
        for _ in range(USES + 2):
            with counting() as seen:
                results = [tensor.cpu() for tensor in tensors(there(x.to(DEVICE)))]
            torch.testing.assert_close(results, tensors(layer(x)))
            assert PACKED not in seen.own_kernels


def test_a_forward_derivative_is_eagers() -> None:
    layer = make_layer("gru", 40).requires_grad_(False)
    x, direction = torch.randn(5, 3, INPUTS), torch.randn(5, 3, INPUTS)

    def derivative(device: str) -> torch.Tensor:
        module = copy.deepcopy(layer).to(device)
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x.to(device), direction.to(device))
            return torch.autograd.forward_ad.unpack_dual(module(dual)[0]).tangent.cpu()

    torch.testing.assert_close(derivative(DEVICE), derivative("cpu"))


def test_a_gradient_around_a_gradient_reaches_the_layer() -> None:
    """The layer's weights need none within, where another function is derived."""
    layer, head, x = make_layer("gru", 40), torch.randn(40), torch.randn(5, 3, INPUTS)

    def gradient(device: str) -> list[torch.Tensor]:
        weights = {name: value.detach().to(device) for name, value in layer.named_parameters()}
        module, data = copy.deepcopy(layer).to(device), x.to(device)

        def outer(weights: dict[str, torch.Tensor]) -> torch.Tensor:
            def inner(head: torch.Tensor) -> torch.Tensor:
                return (torch.func.functional_call(module, weights, data)[0] * head).sum().square()

            return torch.func.grad(inner)(head.to(device)).sum()

        return [value.cpu() for value in torch.func.grad(outer)(weights).values()]

    actual, expected = gradient(DEVICE), gradient("cpu")
    assert all(value.count_nonzero() for value in expected)
    torch.testing.assert_close(actual, expected)


@torch.no_grad()
@pytest.mark.parametrize("rows", [2, 12])
def test_weights_that_are_computed_are_packed_for_a_call(rows: int) -> None:
    layer = torch.nn.utils.parametrizations.weight_norm(make_layer("gru", 100), "weight_hh_l0")
    there, x = copy.deepcopy(layer).to(DEVICE), torch.randn(6, rows, INPUTS)
    for _ in range(3):
        layer.parametrizations.weight_hh_l0.original0.mul_(0.9)
        there.parametrizations.weight_hh_l0.original0.mul_(0.9)
        with counting() as seen:
            results = [tensor.cpu() for tensor in there(x.to(DEVICE))]
        torch.testing.assert_close(results, list(layer(x)))
    assert seen.own_kernels[PACKED] == 1
    program = torch.hetero.compile(layer, (x,))
    with counting() as seen:
        torch.testing.assert_close(program(x), layer(x))
    assert seen.own_kernels[PACKED] == 1


@torch.no_grad()
def test_without_room_for_the_hidden_weight_few_sequences_read_it_as_it_is() -> None:
    pair = Pair("gru", 200)
    torch.hetero.config.packed_bytes = 3 * 200 * (INPUTS + 100) * 4
    few, many = torch.randn(5, 8, INPUTS), torch.randn(5, 9, INPUTS)
    for _ in range(USES + 1):
        results, count = pair.run_there(few.to(DEVICE))
        torch.testing.assert_close(results, tensors(pair.layer(few)))
    assert count == 1
    results, count = pair.run_there(many.to(DEVICE))
    assert_same(results, tensors(pair.layer(many)))
    assert count == 0


@torch.no_grad()
def test_many_sequences() -> None:
    pair = Pair("gru", 500)
    pair.use_until_packed()
    x = torch.randn(3, 1500, INPUTS)
    results, count = pair.run_there(x.to(DEVICE))
    torch.testing.assert_close(results, tensors(pair.layer(x)))
    assert count == 1


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_program_packs_before_its_first_call(tmp_path: Path, kind: str) -> None:
    layer = make_layer(kind, 100, num_layers=2, bidirectional=True)
    lengths = packed([5, 5, 2]).batch_sizes

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, data: torch.Tensor) -> torch.Tensor:
            return self.layer(sequences.PackedSequence(data, lengths))[0].data

    x = torch.randn(int(lengths.sum()), INPUTS)
    torch.hetero.compile(Model(), (x,)).save(tmp_path / "layer.hetero")
    program = torch.hetero.load(tmp_path / "layer.hetero")
    results = []
    for _ in range(3):
        with counting() as seen:
            results.append(program(x))
        assert seen.own_kernels[PACKED] == 4
    torch.testing.assert_close(results[0], Model()(x))
    assert_same(results[1:], results[:1] * 2)


@torch.no_grad()
def test_threads_share_what_is_packed() -> None:
    pair = Pair("gru", 100)
    inputs = [torch.randn(5, 3, INPUTS) for _ in range(4)]
    expected = [pair.layer(x)[0] for x in inputs]
    wrong = []

    def work(i: int) -> None:
        with torch.no_grad():
            for _ in range(USES + 4):
                if not torch.allclose(pair.there(inputs[i].to(DEVICE))[0].cpu(), expected[i], atol=1e-5):
                    wrong.append(i)

    in_threads(4, work)
    assert not wrong


@torch.no_grad()
def test_a_layer_that_does_not_fit_is_refused() -> None:
    x, weights = torch.ones(5, 3, 4).to(DEVICE), [torch.ones(6, k).to(DEVICE) for k in (4, 2)]
    state = torch.ones(3, 2).to(DEVICE)
    layer = torch.ops.hetero.rnn_layer
    assert layer(x, *weights, None, None, state, None, False, [], 3)[0].shape == (5, 3, 2)
    for arguments in (
        (x, *weights, None, None, state, None, False, [], 2),
        (x, *weights, None, None, state, None, False, [], 4),
        (x, *weights, None, None, state, state, False, [], 3),
        (x, *weights, None, None, state[:2], None, False, [], 3),
        (x, *weights[::-1], None, None, state, None, False, [], 3),
        (x, *weights, state, None, state, None, False, [], 3),
        (x.reshape(15, 4), *weights, None, None, state, None, False, [3, 3, 3, 3], 3),
        (x.reshape(15, 4), *weights, None, None, state, None, False, [1, 3, 3, 3, 3, 2], 3),
        (x.reshape(15, 4), *weights, None, None, state, None, False, [3] * 5 + [0], 3),
    ):
        with pytest.raises(RuntimeError, match="do not fit"):
            layer(*arguments)
