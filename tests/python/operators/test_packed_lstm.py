"""An LSTM whose weights do not change packs them once: oneDNN's layer has eager's bits, ours PyTorch's tolerances.

oneDNN's are those of many sequences with many units; see test_recurrent_layers.py for other layers that are ours.
"""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from counters import counting
from helpers import DEVICE, assert_same, in_threads, needs_hetero
from torch import nn

pytestmark = needs_hetero

PACKED = "recurrent layers with packed weights"
USES = 8  # of a weight before it is packed
FEW, MANY = 100, 160  # units of a layer that is ours, and of one that is oneDNN's with more than eight sequences
OPTIONS = [
    {},
    {"num_layers": 2, "bidirectional": True, "batch_first": True},
    {"bias": False},
]


def onednn_packs(dtype: torch.dtype, inputs: int = 48, hidden: int = MANY) -> bool:
    """Whether oneDNN wants another layout on this processor than that of the parameters."""
    if not torch.backends.mkldnn.is_available():
        return False
    weights = [torch.zeros(4 * hidden, width, dtype=dtype) for width in (inputs, hidden)]
    try:
        packed = torch.ops.mkldnn._reorder_mkldnn_rnn_layer_weight(*weights, hidden, False, True, False, [5, 12, inputs])
    except RuntimeError:  # not this dtype
        return False
    return all(weight.is_mkldnn for weight in packed)


PACKS = onednn_packs(torch.float32)


OURS = torch.backends.cpu.get_cpu_capability() != "DEFAULT"


class Pair:
    """An LSTM on the CPU and its twin on the device."""

    def __init__(self, dtype: torch.dtype = torch.float32, hidden: int = MANY, **options: object) -> None:
        self.layer = nn.LSTM(48, hidden, dtype=dtype, **options).eval()
        self.there = copy.deepcopy(self.layer).to(DEVICE)
        self.directions = self.layer.num_layers * (1 + self.layer.bidirectional)
        self.dtype = dtype
        self.is_ours = hidden == FEW
        self.rows = 3 if self.is_ours else 12
        self.packs = OURS if self.is_ours else PACKS

    def check(self, *sizes: int, bits: bool | None = None) -> int:
        """Compares one call with eager's. Returns how many layers had packed weights."""
        x = torch.randn(*(sizes or (self.rows, self.rows)), 48).to(self.dtype)
        expected, (hidden, cell) = self.layer(x)
        with counting() as seen:
            output, (there_hidden, there_cell) = self.there(x.to(DEVICE))
            actual = [t.cpu() for t in (output, there_hidden, there_cell)]
        if self.is_ours if bits is None else not bits:
            torch.testing.assert_close(actual, [expected, hidden, cell])
        else:
            assert_same(actual, [expected, hidden, cell])
        return seen.own_kernels.get(PACKED, 0)

    def use_until_packed(self) -> None:
        for _ in range(USES - 1):
            assert self.check() == 0
        assert self.check() == self.directions * self.packs


@torch.no_grad()
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_weights_are_packed_once_they_were_used_often(options: dict) -> None:
    pair = Pair(**options)
    pair.use_until_packed()
    for sizes in ((9, 9), (12, 17), (30, 40)):
        assert pair.check(*sizes) == pair.directions * pair.packs


@torch.no_grad()
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_few_sequences_run_our_steps_within_tolerances_of_float64(options: dict) -> None:
    pair = Pair(hidden=FEW, **options)
    pair.use_until_packed()
    exact = copy.deepcopy(pair.layer).double()
    for sizes in ((1, 1), (8, 1), (1, 8), (7, 2), (8, 8), (40, 3)):
        states = [torch.randn(pair.directions, sizes[0 if pair.layer.batch_first else 1], FEW) for _ in range(2)]
        x = torch.randn(*sizes, 48)
        with counting() as seen:
            output, last = pair.there(x.to(DEVICE), tuple(state.to(DEVICE) for state in states))
            actual = [t.cpu() for t in (output, *last)]
        assert seen.own_kernels.get(PACKED, 0) == pair.directions * pair.packs
        output, last = exact(x.double(), tuple(state.double() for state in states))
        torch.testing.assert_close(actual, [t.float() for t in (output, *last)])


@torch.no_grad()
@pytest.mark.skipif(not OURS, reason="has no panels")
def test_more_sequences_have_eagers_bits_from_the_same_weights() -> None:
    pair = Pair()
    pair.use_until_packed()
    assert pair.check(5, 8, bits=False) == 1
    assert pair.check(5, 9) == pair.packs


@torch.no_grad()
@pytest.mark.skipif(not OURS, reason="has no panels")
def test_both_directions_run_side_by_side_with_the_bits_of_one_thread() -> None:
    layer, x = nn.LSTM(48, 100, num_layers=2, bidirectional=True).eval(), torch.randn(6, 2, 48)
    expected, threads = layer(x), torch.get_num_threads()
    program = torch.hetero.compile(layer, (x,))
    results = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            with counting() as seen:
                results.append(program(x))
            assert seen.own_kernels[PACKED] == 4
    finally:
        torch.set_num_threads(threads)
    assert str(program).count("compute: batch") == 2
    assert_same([results[0][0], *results[0][1]], [results[1][0], *results[1][1]])
    assert_same([results[0][0], *results[0][1]], [results[2][0], *results[2][1]])
    torch.testing.assert_close((results[0][0], *results[0][1]), (expected[0], *expected[1]))


@torch.no_grad()
@pytest.mark.skipif(not OURS, reason="has no panels")
def test_a_long_sequence_runs_in_blocks() -> None:
    pair = Pair(hidden=1024, bidirectional=True)
    pair.use_until_packed()
    assert pair.check(150, 8, bits=False) == 2


@torch.no_grad()
def test_values_that_are_not_finite_come_out_as_eagers() -> None:
    pair = Pair(hidden=FEW)
    pair.use_until_packed()
    x = torch.randn(6, 2, 48)
    x[3, 0, 5], x[2, 1, 7] = float("nan"), float("inf")
    expected, actual = pair.layer(x)[0], pair.there(x.to(DEVICE))[0].cpu()
    torch.testing.assert_close(actual, expected, equal_nan=True)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_weights_in_two_bytes_are_packed(dtype: torch.dtype) -> None:
    if not onednn_packs(dtype):
        pytest.skip("oneDNN takes these weights as they are on this processor")
    pair = Pair(dtype)
    for _ in range(USES):
        pair.check()
    assert pair.check() == 1


@torch.no_grad()
@pytest.mark.parametrize("name", ["weight_ih_l0", "weight_hh_l0"])
@pytest.mark.parametrize("by", ["operator", "copy", "host"])
@pytest.mark.parametrize("hidden", [FEW, MANY])
def test_a_weight_that_changes_is_packed_again(hidden: int, name: str, by: str) -> None:
    pair = Pair(hidden=hidden)
    pair.use_until_packed()
    for layer in (pair.layer, pair.there):
        weight = getattr(layer, name)
        if by == "operator":
            weight.mul_(0.5)
        elif by == "copy":
            weight.copy_(torch.full(weight.shape, 0.01))
        else:
            weight.data = weight.detach().cpu().flip(0).to(weight.device)
    pair.use_until_packed()


@torch.no_grad()
@pytest.mark.parametrize("hidden", [FEW, MANY])
def test_a_bias_that_changes_leaves_the_weights_packed(hidden: int) -> None:
    pair = Pair(hidden=hidden)
    pair.use_until_packed()
    for layer in (pair.layer, pair.there):
        layer.bias_hh_l0.add_(1)
    assert pair.check() == pair.packs


def test_training_packs_nothing() -> None:
    pair = Pair(hidden=FEW)
    for _ in range(USES + 2):
        assert pair.check(bits=True) == 0
    torch.autograd.backward(pair.there(torch.randn(5, 3, 48).to(DEVICE))[0].sum())
    assert all(parameter.grad.cpu().isfinite().all() for parameter in pair.there.parameters())


def test_steps_of_an_optimizer_between_evaluations() -> None:
    """What was packed for an evaluation is not used after the next step."""
    pair = Pair()
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in (pair.layer, pair.there)]
    for _ in range(2):
        with torch.no_grad():
            pair.use_until_packed()
        x = torch.randn(5, 3, 48)
        for layer, optimizer, device in zip((pair.layer, pair.there), optimizers, ("cpu", DEVICE), strict=True):
            optimizer.zero_grad()
            torch.autograd.backward(layer(x.to(device))[0].sum())
            optimizer.step()


@torch.no_grad()
@pytest.mark.parametrize("option", ["fusion", "verify", "packed_bytes", "deterministic"])
@pytest.mark.parametrize("hidden", [FEW, MANY])
def test_the_stock_kernel_runs_where_bits_must_not_vary_or_there_is_no_room(hidden: int, option: str) -> None:
    pair = Pair(hidden=hidden)
    try:
        if option == "deterministic":
            torch.use_deterministic_algorithms(True)
        else:
            setattr(torch.hetero.config, option, {"fusion": False, "verify": True, "packed_bytes": 0}[option])
        assert [pair.check(bits=True) for _ in range(USES + 2)] == [0] * (USES + 2)
    finally:
        torch.use_deterministic_algorithms(False)


@torch.no_grad()
def test_room_for_one_of_two_weights_is_no_room() -> None:
    pair = Pair()
    torch.hetero.config.packed_bytes = 4 * MANY * MANY * 4
    assert [pair.check() for _ in range(USES + 2)] == [0] * (USES + 2)


@torch.no_grad()
def test_weights_of_layers_in_one_storage_are_not_mixed_up() -> None:
    flat = torch.randn(2, 4 * MANY, MANY) * 0.1
    bias, state = torch.zeros(4 * MANY), torch.zeros(1, 12, MANY)

    def run(device: str) -> list[torch.Tensor]:
        weights = flat.to(device)
        params = [weights[0], weights[1], bias.to(device), bias.to(device)]
        swapped = [params[1], params[0], *params[2:]]
        x, hx = torch.ones(5, 12, MANY).to(device), [state.to(device), state.to(device)]
        results = []
        for _ in range(USES + 2):
            for given in (params, swapped):
                results.append(torch.lstm(x, hx, given, True, 1, 0.0, False, False, False)[0].cpu())
        return results

    assert_same(run(DEVICE), run("cpu"))


@torch.no_grad()
@pytest.mark.parametrize("hidden", [FEW, MANY])
def test_a_saved_program_packs_before_its_first_call(tmp_path: Path, hidden: int) -> None:
    pair = Pair(hidden=hidden, num_layers=2, bidirectional=True)
    x = torch.randn(5, pair.rows, 48)
    expected, _ = pair.layer(x)
    path = tmp_path / "lstm.hetero"
    torch.hetero.compile(pair.layer, (x,)).save(path)
    program = torch.hetero.load(path)
    results = []
    for _ in range(10):
        with counting() as seen:
            results.append(program(x)[0])
        assert seen.own_kernels.get(PACKED, 0) == 4 * pair.packs
    torch.testing.assert_close(results[0], expected)
    assert_same(results[1:], results[:1] * 9)


@torch.no_grad()
@pytest.mark.parametrize("hidden", [FEW, MANY])
def test_threads_share_what_is_packed(hidden: int) -> None:
    pair = Pair(hidden=hidden)
    inputs = [torch.randn(5, pair.rows, 48) for _ in range(4)]
    expected = [pair.layer(x)[0] for x in inputs]
    wrong = []

    def work(i: int) -> None:
        with torch.no_grad():
            for _ in range(USES + 4):
                if not torch.allclose(pair.there(inputs[i].to(DEVICE))[0].cpu(), expected[i], atol=1e-5):
                    wrong.append(i)

    in_threads(4, work)
    assert not wrong
    assert pair.check() == pair.packs
