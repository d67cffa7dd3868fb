"""Cross entropy and its parts, seen once, planned and replayed: the values and errors of eager, in fewer kernels."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from counters import counting
from helpers import DEVICE, ON_HETERO, fresh, needs_hetero
from torch.nn import functional

Loss = Callable[..., torch.Tensor]

# A first sight, a plan, replays.
ROUNDS = 4
# Eager adds losses of a half dtype up in that dtype.
HALF_TOLERANCE = {"rtol": 2e-2, "atol": 2e-2}


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    return HALF_TOLERANCE if dtype.itemsize == 2 else {}


def logits(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (4 * torch.randn(*sizes)).to(dtype)


def classes(*sizes: int, count: int) -> torch.Tensor:
    return torch.randint(count, sizes)


def agree(loss: Loss, *operands: torch.Tensor) -> int:
    """`loss` and its gradient are eager's in each round. Returns the last round's fused operators, forward only."""
    here = [fresh(operand) for operand in operands]
    nodes = 0
    for _ in range(ROUNDS if ON_HETERO else 1):
        with torch.no_grad():
            expected = loss(*operands)
            if ON_HETERO:
                with counting() as seen:
                    actual = loss(*here).cpu()
                nodes = seen.fused_nodes
            else:
                actual = loss(*here)
        torch.testing.assert_close(actual, expected, equal_nan=True, **tolerance(expected.dtype))
        gradients = []
        for given in (operands, here):
            x = given[0].detach().clone().requires_grad_()
            result = loss(x, *given[1:])
            (result * torch.ones_like(result)).sum().backward()
            gradients.append(x.grad.cpu())
        torch.testing.assert_close(gradients[1], gradients[0], equal_nan=True, **tolerance(expected.dtype))
    return nodes


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_cross_entropy_fuses_with_its_softmax_and_gives_what_eager_gives(
    reduction: str, weighted: bool, dtype: torch.dtype
) -> None:
    x, target = logits(40, 50, dtype=dtype), classes(40, count=50)
    target[::7] = 5
    weight = torch.rand(50).to(dtype)

    def loss(x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        given = weight if weighted else None
        return functional.cross_entropy(x, target, given, reduction=reduction, ignore_index=5)

    fused = agree(loss, x, target, weight)
    assert fused == 2 or not ON_HETERO


@pytest.mark.parametrize(
    "sizes", [(1, 7), (3, 1), (300, 2), (2, 300), (5, 70_000), (4096, 10)], ids=lambda sizes: "x".join(map(str, sizes))
)
def test_cross_entropy_of_any_size(sizes: tuple[int, int]) -> None:
    agree(functional.cross_entropy, logits(*sizes), classes(sizes[0], count=sizes[1]))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_the_loss_of_one_row_without_a_batch(reduction: str) -> None:
    agree(lambda x, t: functional.cross_entropy(x, t, reduction=reduction), logits(9), torch.tensor(4))
    agree(lambda x, t: functional.cross_entropy(x, t, reduction=reduction), logits(9), torch.tensor(-100))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_no_rows_and_rows_that_are_all_ignored(reduction: str) -> None:
    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(x, target, reduction=reduction)

    agree(loss, logits(0, 6), classes(0, count=6))
    agree(loss, logits(4, 6), torch.full((4,), -100))


def test_infinities_and_nans_at_and_beside_the_targets() -> None:
    x = logits(6, 8)
    x[0, 1], x[1, 2], x[2, 3], x[3, 4] = float("inf"), float("-inf"), float("nan"), float("-inf")
    agree(lambda x, t: functional.cross_entropy(x, t, reduction="none"), x, torch.tensor([1, 2, 3, 5, 6, -100]))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_label_smoothing(reduction: str, weighted: bool) -> None:
    x, target, weight = logits(30, 20), classes(30, count=20), torch.rand(20)
    target[3] = -100

    def loss(x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        given = weight if weighted else None
        return functional.cross_entropy(x, target, given, reduction=reduction, label_smoothing=0.1)

    agree(loss, x, target, weight)


def test_inputs_that_are_not_contiguous() -> None:
    wide, tall = logits(24, 64), logits(50, 24)
    target = classes(48, count=50)
    agree(functional.cross_entropy, wide[:, ::2], target[:24] % 32)
    agree(functional.cross_entropy, tall.t(), target[::2])
    agree(functional.cross_entropy, wide[::2], target[::4])


def test_classes_that_are_not_the_last_dimension() -> None:
    agree(functional.cross_entropy, logits(4, 10, 6), classes(4, 6, count=10))
    agree(functional.cross_entropy, logits(2, 10, 3, 5), classes(2, 3, 5, count=10))


def test_the_loss_of_computed_targets_and_of_something_else_than_log_softmax() -> None:
    x, target = logits(20, 12), classes(20, count=6)
    agree(lambda x, t: functional.cross_entropy(x, t * 2), x, target)
    agree(lambda x, t: functional.nll_loss(x * 3 + 1, t), x, target)
    agree(lambda x, t: functional.nll_loss(x.log_softmax(1), x.argmax(1)), x, target)
    agree(lambda x, t: functional.cross_entropy(x.relu() * 2 - 1, t) * 3 + x.sum(), x, target)
    # One column, where all is one row.
    agree(lambda x, t: functional.nll_loss(x.log_softmax(1), t) + x.log_softmax(1).sum(), x[:1], target[:1])


def test_scores_and_loss_are_both_used() -> None:
    x, target = logits(20, 12), classes(20, count=12)

    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        scores = x.log_softmax(1)
        return scores * functional.nll_loss(scores, target, reduction="none")[:, None]

    agree(loss, x, target)


def test_rows_of_another_number_resize_the_plan() -> None:
    for rows in (8, 8, 8, 9, 200, 30, 8):
        x, target = logits(rows, 40), classes(rows, count=40)
        expected = functional.cross_entropy(x, target)
        torch.testing.assert_close(functional.cross_entropy(fresh(x), fresh(target)).cpu(), expected)


@pytest.mark.parametrize("bad", [-1, 12, 2**40])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_a_bad_target_raises_what_eager_raises_and_nothing_is_lost(bad: int, reduction: str) -> None:
    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        scores = x.log_softmax(1)
        return functional.nll_loss(scores, target, reduction=reduction), scores, scores + 1

    x, target = logits(20, 12), classes(20, count=12)
    wrong = target.clone()
    wrong[13] = bad
    with pytest.raises(IndexError) as expected:
        loss(x, wrong)
    here, right, wrong = fresh(x), fresh(target), fresh(wrong)
    for _ in range(ROUNDS):
        torch.testing.assert_close(loss(here, right)[0].cpu(), loss(x, target)[0])
        with pytest.raises(IndexError) as actual:
            result, scores, more = loss(here, wrong)
            result.cpu()
        assert str(actual.value).splitlines()[0] == str(expected.value).splitlines()[0]
        if ON_HETERO:
            torch.testing.assert_close(scores.cpu(), x.log_softmax(1))
            torch.testing.assert_close(more.cpu(), x.log_softmax(1) + 1)
    assert (here + 1).cpu().equal(x + 1)


@needs_hetero
def test_a_loss_alone_does_not_store_the_scores() -> None:
    x, target = fresh(logits(256, 1024)), fresh(classes(256, count=1024))
    with torch.no_grad():
        for _ in range(ROUNDS):
            functional.cross_entropy(x, target).item()
        torch.hetero.reset_peak_memory_stats()
        before = torch.hetero.memory_allocated()
        functional.cross_entropy(x, target).item()
    assert torch.hetero.max_memory_allocated() - before < x.nbytes // 4
    assert x.device.type == DEVICE
