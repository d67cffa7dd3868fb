"""What a compiled program writes, returns and shares, and what autograd sees of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiled_models import both, compiled, linear, numbers, state
from helpers import assert_same, needs_hetero
from torch import nn

import torch_hetero

pytestmark = [
    needs_hetero,
    # TorchDynamo and AOTAutograd warn about themselves.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]


def test_arguments_are_written() -> None:
    both(lambda x, y: (x.add_(y), y.mul_(2))[0] * 3, numbers(3, 4), numbers(3, 4))


def test_an_argument_is_written_through_a_view() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x[:, 1].zero_()
        x.t()[0] += 1
        return x.sum()

    both(function, numbers(3, 4))


def test_arguments_that_share_memory_see_each_others_writes() -> None:
    def function(base: torch.Tensor) -> torch.Tensor:
        part = base[1:]
        part.add_(1)
        return base * part[0]

    both(function, numbers(3, 4))
    fast = compiled(lambda x, y: (x.add_(1), x + y)[1])
    for device in ("hetero", "cpu"):
        base = torch.zeros(4, device=device)
        assert_same(fast(base[:2], base[:2]).cpu(), torch.full((2,), 2.0))
        assert_same(base.cpu(), torch.tensor([1.0, 1, 0, 0]))


def test_results_may_be_arguments_views_constants_and_none() -> None:
    def function(x: torch.Tensor) -> tuple[Any, ...]:
        return x, x.t(), x[1:], None, 7, torch.arange(3, device=x.device), x + 1

    fast = compiled(function)
    x = numbers(3, 4).to("hetero")
    for _ in range(2):
        same, turned, part, nothing, seven, counted, more = fast(x)
        assert same is x and nothing is None and seven == 7
        for view in (turned, part):
            assert view.untyped_storage()._cdata == x.untyped_storage()._cdata
        assert_same(counted.cpu(), torch.arange(3))
        assert_same(more.cpu(), x.cpu() + 1)
    turned.zero_()
    assert x.cpu().abs().sum() == 0


def test_results_may_be_views_of_each_other() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        return y, y[0]

    fast = compiled(function)
    for _ in range(2):
        whole, part = fast(numbers(3, 4).to("hetero"))
        part.fill_(5)
        assert whole.cpu()[0].eq(5).all()


def test_a_constant_tensor_stays_the_same() -> None:
    table = torch.arange(4.0)
    both(lambda x: x + torch.tensor([1.0, 2, 3, 4], device=x.device), torch.ones(4))
    there = table.to("hetero")
    fast = compiled(lambda x: x * there)
    for _ in range(2):
        assert_same(fast(torch.ones(4, device="hetero")).cpu(), table)
    there.add_(1)
    assert_same(fast(torch.ones(4, device="hetero")).cpu(), table + 1)


def test_a_parameter_is_updated_in_place_by_compiled_code() -> None:
    torch.manual_seed(0)
    oracle = nn.Linear(4, 3)
    model = copy.deepcopy(oracle).to("hetero")

    def update(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            layer.weight.sub_(0.1 * layer.weight.sign())
        return layer(x).sum()

    fast = compiled(update)
    x = numbers(2, 4)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fast(model, x.to("hetero")).cpu(), update(oracle, x))
    assert_same(state(model), state(oracle))


MODIFIED = "has been modified by an inplace operation"


def write(tensor: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.add_(1)


@pytest.mark.parametrize("device", ("cpu", "hetero"))
@pytest.mark.parametrize(
    "function", (lambda x, w: (x * w).sum(), lambda x, w: (x @ w.t()).sum()), ids=("itself", "view")
)
def test_an_argument_that_is_written_before_its_backward_is_an_error(
    function: Callable[..., torch.Tensor], device: str
) -> None:
    x, w = numbers(4, 4).to(device).requires_grad_(), numbers(4, 4).to(device)
    loss = compiled(function)(x, w)
    write(w)
    with pytest.raises(RuntimeError, match=MODIFIED):
        loss.backward()


@pytest.mark.parametrize("device", ("cpu", "hetero"))
def test_a_result_that_is_written_before_its_backward_is_an_error(device: str) -> None:
    result = compiled(torch.exp)(numbers(4).to(device).requires_grad_())
    write(result)
    with pytest.raises(RuntimeError, match=MODIFIED):
        result.sum().backward()


@pytest.mark.parametrize("device", ("cpu", "hetero"))
def test_a_step_between_two_backwards_is_an_error(device: str) -> None:
    model = linear().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fast = compiled(model)
    x = numbers(4, 12).to(device).requires_grad_()
    first, second = fast(x).sum(), fast(x).square().sum()
    first.backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match=MODIFIED):
        second.backward()


@pytest.mark.parametrize("device", ("cpu", "hetero"))
def test_what_a_program_writes_has_a_new_version(device: str) -> None:
    x, w = numbers(4).to(device), numbers(4).to(device).requires_grad_()
    loss = (x * w).sum()
    compiled(lambda x: x.add_(1))(x)
    with pytest.raises(RuntimeError, match=MODIFIED):
        loss.backward()


@pytest.mark.parametrize("device", ("cpu", "hetero"))
def test_double_backward_is_refused_in_pytorchs_words(device: str) -> None:
    x = numbers(4).to(device).requires_grad_()
    (gradient,) = torch.autograd.grad(compiled(lambda x: (x**3).sum())(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        gradient.sum().backward()


def test_a_result_that_is_an_argument_is_that_tensor() -> None:
    program = torch_hetero._C.CompiledProgram()
    for device in ("cpu", "hetero"):
        argument = numbers(4).to(device)
        (stand_in,) = program.begin_capture([argument])
        made = stand_in + 1
        program.end_capture([stand_in, made, made], [device] * 3)
        same, first, second = program.run([argument])
        assert same is argument
        assert first is second
        assert_same(first.cpu(), numbers(4) + 1)


def test_pending_work_that_the_arguments_wait_for_runs_first() -> None:
    fast = compiled(lambda x: x.add_(1))
    x = torch.zeros(4, device="hetero")
    fast(x)
    x.mul_(10)
    seen = x + 1  # pending, and reads what the program writes
    fast(x)
    assert_same(seen.cpu(), torch.full((4,), 11.0))
    assert_same(x.cpu(), torch.full((4,), 11.0))
