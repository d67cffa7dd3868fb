"""What a program captures: random numbers and custom operators; what it cannot capture runs lazily."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.utils.checkpoint
from compiled_models import MODELS, assert_steady, both, compiled, gradients, linear, numbers, state, step
from counters import COMPILED, counting
from helpers import assert_same, needs_hetero
from torch import nn

pytestmark = [
    needs_hetero,
    # TorchDynamo and AOTAutograd warn about themselves.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]


def test_random_numbers_are_those_of_the_lazy_device() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = nn.functional.dropout(x, 0.3)
        return y, torch.rand(5, device=x.device), torch.randn_like(x), torch.bernoulli(torch.full_like(x, 0.5))

    x = torch.ones(64, device="hetero")
    fast = compiled(function)
    fast(x)
    torch.manual_seed(7)
    lazy = [[value.cpu() for value in function(x)] for _ in range(3)]
    state = torch.hetero.get_rng_state()
    torch.manual_seed(7)
    assert_same([[value.cpu() for value in fast(x)] for _ in range(3)], lazy)
    assert_same(torch.hetero.get_rng_state(), state)
    assert not torch.equal(lazy[0][1], lazy[1][1])


def test_dropout_in_training_drops_what_the_lazy_device_drops(unfused: None) -> None:
    model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 2)).to("hetero")
    fast = compiled(model)
    x = numbers(4, 8).to("hetero")
    step(fast, x)
    results = []
    for forward in (model, fast):
        torch.manual_seed(3)
        model.zero_grad()
        results.append((step(forward, x).cpu(), gradients(model)))
    assert_same(results[1], results[0])


@pytest.mark.parametrize("device", ("cpu", "hetero"))
def test_dropout_under_checkpointing_drops_the_same_in_the_backward_pass(device: str) -> None:
    layer = linear().to(device)

    def block(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(layer(x).sigmoid(), 0.5)

    fast = torch.compile(lambda x: torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False), backend="hetero")
    x = numbers(8, 12).to(device).requires_grad_()
    state = torch.hetero.get_rng_state()
    result = fast(x)
    result.sum().backward()
    with torch.no_grad():
        slopes = layer(x).sigmoid()
        expected = ((result != 0) * 2 * slopes * (1 - slopes)).sum(0)
    torch.testing.assert_close(layer.bias.grad, expected)
    if device == "hetero":
        assert not torch.equal(torch.hetero.get_rng_state(), state)


@torch.library.custom_op("hetero_compile_test::scale", mutates_args=())
def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


@scale.register_fake
def _(x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("hetero_compile_test::bump", mutates_args=("x",))
def bump(x: torch.Tensor) -> None:
    x.add_(1)


@torch.library.custom_op("hetero_compile_test::fail_on_negative", mutates_args=())
def fail_on_negative(x: torch.Tensor) -> torch.Tensor:
    if bool((x < 0).any()):
        raise ValueError("a negative number")
    return x.clone()


@fail_on_negative.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_custom_operators_are_part_of_a_program() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = scale(x + 1, 3.0)
        bump(y)
        return y.relu()

    both(function, numbers(3, 4))
    x = numbers(3, 4).to("hetero")
    fast = compiled(function)
    assert_steady(lambda: fast(x))


@pytest.mark.parametrize("device", ("cpu", "hetero"))
def test_a_custom_operator_of_python_is_called_in_each_run(
    device: str, counted: tuple[Callable[..., Any], Callable[..., Any]]
) -> None:
    count, count_into = counted

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        count_into(y)
        return y + count(y)  # of y: two calls at the same time would count as one

    fast = compiled(function)
    before = torch.hetero.explain()
    assert [fast(torch.zeros(1, device=device)).item() for _ in range(3)] == [4.0, 10.0, 16.0]
    told = (torch.hetero.explain() - before).compiled
    assert told["calls"] == 3 and not any(told["refused"].values()), told
    x = torch.zeros(1, device="hetero")
    assert count(x).item() == 7.0
    program = torch.hetero.compile(lambda x: count(x) * 1, (x,))
    first = program(x).item()
    assert [program(x).item() for _ in range(2)] == [first + 1, first + 2]


def test_a_custom_operator_with_a_kernel_for_the_device_runs_lazily() -> None:
    calls = 0

    @torch.library.custom_op("hetero_compile_test::on_device", mutates_args=(), device_types=("cpu", "hetero"))
    def on_device(x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return x + calls

    @on_device.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    fast = compiled(lambda x: on_device(x) * 1)
    before = torch.hetero.explain()
    x = torch.zeros(1, device="hetero")
    assert [fast(x).item() for _ in range(3)] == [1.0, 2.0, 3.0]
    refused = (torch.hetero.explain() - before).compiled["refused"]
    assert any("on_device" in reason and "a kernel of its own for the device" in reason for reason in refused), refused


def test_an_error_of_an_operator_is_its_own_and_the_next_call_works() -> None:
    fast = compiled(lambda x: fail_on_negative(x * 2) + 1)
    x = torch.ones(3, device="hetero")
    fast(x)
    with pytest.raises(ValueError, match="a negative number"):
        fast(-x)
    assert_same(fast(x).cpu(), torch.full((3,), 3.0))


def test_an_index_out_of_range_raises_what_the_lazy_device_raises_and_names_the_operator() -> None:
    table = numbers(5, 2).to("hetero")
    fast = compiled(nn.functional.embedding)
    fast(torch.tensor([1, 2], device="hetero"), table)
    wrong = torch.tensor([1, 9], device="hetero")
    with pytest.raises(IndexError) as lazy:
        nn.functional.embedding(wrong, table).cpu()
    with pytest.raises(IndexError) as seen:
        fast(wrong, table)
    assert str(seen.value) == f"{lazy.value} (hetero: in aten::embedding)"


def test_what_depends_on_values_runs_lazily_and_explain_says_why() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x[x > 0] * 2

    before = torch.hetero.explain()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        both(function, numbers(3, 4), calls=4)
    told = (torch.hetero.explain() - before).compiled
    assert told["calls"] == 0
    assert any("data-dependent shape" in reason for reason in told["refused"]), told
    assert "data-dependent shape" in str(torch.hetero.explain())


def test_recording_goes_on_across_a_graph_break() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2 + 1
        torch._dynamo.graph_break()
        return (y * y).sum()

    fast = torch.compile(function, backend="hetero")
    x = numbers(3, 4)
    for _ in range(2):
        torch.testing.assert_close(fast(x.to("hetero")).cpu(), function(x))
    there = x.to("hetero")
    assert_steady(lambda: fast(there), programs=2)


def test_default_settings_capture_the_layers_of_a_transformer_and_leave_an_lstm_to_the_lazy_device() -> None:
    # TorchDynamo of torch 2.15 traces LSTMs whatever allow_rnn says, here in two graphs.
    of_lstm = 0 if torch.__version__ < "2.12" else 2
    with torch._dynamo.config.patch(allow_rnn=False), torch.no_grad():
        for name, captures in (("transformer", 1), ("lstm", of_lstm)):
            assert torch.backends.mha.get_fastpath_enabled()
            build, inputs = MODELS[name]
            expected = build().eval()(inputs)
            fast = torch.compile(build().eval().to("hetero"), backend="hetero")
            there = inputs.to("hetero")
            before = torch.hetero.explain()
            for _ in range(3):
                torch.testing.assert_close(fast(there).cpu(), expected)
            seen = torch.hetero.explain() - before
            assert (seen.compiled["captures"], seen.compiled["calls"]) == (captures, 3 * captures)
            assert not seen.compiled["refused"]
            assert not seen.fallbacks
            assert seen.nodes["straight"] == 0


def test_what_is_recorded_in_a_graph_break_runs_with_the_graphs_around_it() -> None:
    @torch._dynamo.disable
    def between(x: torch.Tensor) -> torch.Tensor:
        return x * 3 + 1

    def function(x: torch.Tensor) -> torch.Tensor:
        return between(x.sin()).cos().sum()

    fast = torch.compile(function, backend="hetero")
    x = numbers(3, 4)
    there = x.to("hetero")
    for _ in range(2):
        torch.testing.assert_close(fast(there).cpu(), function(x))
    with counting() as seen:
        fast(there)
        torch.hetero.flush()
    # The two operators between run when the second graph needs them, as one program.
    assert (seen.recorded, seen.straight, seen.captures) == (2, 0, 0), str(torch.hetero.explain())
    assert seen.compiled_calls == 2
    assert seen.flushes == {COMPILED: 3}
