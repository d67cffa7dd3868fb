"""Other sizes of the arguments: programs are resized, and not planned again."""

from __future__ import annotations

import copy
from collections.abc import Callable

import models
import pytest
import torch
from compiled_models import ALL_MODELS, compiled, gradients, mlp, numbers, state, step, tokens
from counters import counting
from helpers import assert_close_in_scale, assert_same, needs_hetero
from torch import nn

pytestmark = [
    needs_hetero,
    # TorchDynamo and AOTAutograd warn about themselves.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]


@pytest.mark.parametrize("dynamic", (True, None))
def test_another_batch_size_does_not_plan_anew(dynamic: bool | None) -> None:
    model, oracle = mlp().to("hetero"), mlp()
    fast = compiled(model, dynamic=dynamic)
    with torch.no_grad():
        for size in (4, 6):
            fast(numbers(size, 12).to("hetero"))
        with counting() as seen:
            for size in (5, 9, 17):
                inputs = numbers(size, 12)
                torch.testing.assert_close(fast(inputs.to("hetero")).cpu(), oracle(inputs))
    assert (seen.plans_made, seen.plans_resized, seen.captures, seen.compiled_calls) == (0, 3, 3, 3)


def test_another_sequence_length_does_not_plan_anew() -> None:
    model, oracle = models.transformer().eval().to("hetero"), models.transformer().eval()
    fast = compiled(model, dynamic=True)
    with torch.no_grad():
        fast(tokens(40, 2, 5).to("hetero"))
        with counting() as seen:
            for length in (6, 9, 7):
                inputs = tokens(40, 2, length)
                torch.testing.assert_close(fast(inputs.to("hetero")).cpu(), oracle(inputs))
        assert (seen.plans_made, seen.plans_resized) == (0, 3)
        with counting() as seen:
            fast(tokens(40, 2, 9).to("hetero"))
        assert seen.recorded == seen.plans_resized == 0  # sizes that come back find their program


# Inputs by batch and length.
RESIZABLE: dict[str, Callable[[int, int], torch.Tensor]] = {
    "resnet18": lambda batch, length: numbers(batch, 3, 48, 48),
    "vit": lambda batch, length: numbers(batch, 3, 32, 32),
    "transformer": lambda batch, length: tokens(40, batch, length),
    # PyTorch takes an LSTM apart into operators for each step, so each length has a graph of its own.
    "lstm": lambda batch, length: tokens(50, batch, 5),
    "minilm": lambda batch, length: tokens(20000, batch, length),
    "gpt2": lambda batch, length: tokens(64, batch, length),
    "llama": lambda batch, length: tokens(64, batch, length),
    "qwen3": lambda batch, length: tokens(64, batch, length),
}
# What is fused depends on sizes in two places (docs/compile.md): a mask joins what it is broadcast over for up to four
# sequences, and with an odd batch these heads are so small that eager's loop over them ends within a vector.
FIRST_SIZE, OTHER_SIZES = (6, 5), ((8, 7), (10, 9), (6, 3))


@pytest.mark.parametrize("name", RESIZABLE)
def test_other_batches_and_lengths_of_a_model_do_not_plan_anew(name: str) -> None:
    build, inputs = ALL_MODELS[name][0], RESIZABLE[name]
    model, oracle = build().eval().to("hetero"), build().eval()
    known = set(torch.hetero.compiled_graphs())  # of other tests
    fast = compiled(model, dynamic=True)
    with torch.no_grad():
        fast(inputs(*FIRST_SIZE).to("hetero"))
        for size in OTHER_SIZES:
            with counting() as seen:
                actual = fast(inputs(*size).to("hetero")).cpu()
            torch.testing.assert_close(actual, oracle(inputs(*size)))
            assert (seen.compiled_calls, seen.plans_made, seen.plans_resized) == (1, 0, seen.captures)
        assert len(set(torch.hetero.compiled_graphs()) - known) == 1


# It was seen in every second run, and in none of the last eighteen, beside other load too. Why is not known.
SOMETIMES = pytest.mark.xfail(strict=False, reason="resnet18's training is sometimes planned anew for another batch")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=SOMETIMES) if name == "resnet18" else name for name in RESIZABLE])
def test_training_with_other_batches_and_lengths_does_not_plan_anew(name: str) -> None:
    build, inputs = ALL_MODELS[name][0], RESIZABLE[name]
    model, oracle = build().train().to("hetero"), build().train()
    known = set(torch.hetero.compiled_graphs())  # of other tests
    fast = compiled(lambda values: model(values).float().square().mean(), dynamic=True)
    for size in (FIRST_SIZE, *OTHER_SIZES):
        for one in (oracle, model):
            one.zero_grad()
        there = inputs(*size).to("hetero")
        with counting() as seen:
            loss = fast(there)
            loss.backward()
        torch.testing.assert_close(loss.detach().cpu(), step(oracle, inputs(*size)))
        assert_close_in_scale(gradients(model), gradients(oracle), 1e-4, floor=1e-6)
        assert seen.compiled_calls == 2
        if size in OTHER_SIZES[1:]:  # the gradient that backward() begins with is planned at second sight
            assert seen.plans_made == 0
    assert len(set(torch.hetero.compiled_graphs()) - known) == 2


def test_training_with_other_sizes_does_not_plan_anew() -> None:
    model = mlp().to("hetero")
    fast = compiled(lambda x: model(x).square().mean(), dynamic=True)
    for size in (4, 6):
        model.zero_grad()
        fast(numbers(size, 12).to("hetero")).backward()
    with counting() as seen:
        for size in (5, 9):
            model.zero_grad()
            fast(numbers(size, 12).to("hetero")).backward()
    assert seen.compiled_calls == 4
    assert seen.plans_made == 0


@pytest.mark.parametrize("device", ["cpu", "hetero"])
def test_a_backward_pass_views_what_a_kernel_lays_out_otherwise_than_traced(device: str) -> None:
    """The gradient of a batch norm of a transposed input is transposed; a layer's gradient views it as rows."""

    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x)
            return self.norm((y + y.sigmoid()).transpose(1, 2)).transpose(1, 2)

    torch.manual_seed(0)
    oracle = Normed()
    model = copy.deepcopy(oracle).to(device)
    fast = compiled(model)
    for _ in range(3):
        x = torch.randn(4, 5, 6)
        expected = step(oracle, x)
        torch.testing.assert_close(step(fast, x.to(device)).cpu(), expected)
        torch.testing.assert_close(gradients(model), gradients(oracle), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(state(model), state(oracle))


def test_sizes_may_be_results() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return x * x.shape[0], x.shape[0] + 1

    fast = compiled(function, dynamic=True)
    for size in (3, 5, 4):
        x = numbers(size, 2)
        values, count = fast(x.to("hetero"))
        assert count == size + 1
        assert_same(values.cpu(), x * size)


def test_more_sizes_than_are_kept_still_run() -> None:
    fast = compiled(lambda x: (x * 2).sum(), dynamic=True)
    for size in [*range(2, 30), *range(2, 30)]:
        x = numbers(size)
        torch.testing.assert_close(fast(x.to("hetero")).cpu(), (x * 2).sum())
