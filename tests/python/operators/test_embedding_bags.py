"""Embedding bags: few by a kernel of ours, with the CPU's bits, and all others as on the CPU."""

from __future__ import annotations

import pytest
import torch
from convolution_models import ran
from helpers import DEVICE, needs_hetero
from torch import nn
from torch.nn import functional as F

pytestmark = needs_hetero

BEGINS = {"no bags": [], "one": [0], "empty ones": [0, 0, 3, 3, 7, 12], "all empty": [0, 0]}


def table(rows: int = 40, width: int = 9) -> torch.Tensor:
    made = torch.randn(rows, width) * 10.0 ** torch.randint(-9, 9, (rows, width))
    made[3, 0], made[4, 1], made[5, 2] = -0.0, float("inf"), float("nan")
    return made


def ids_of(begins: list[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.randint(40, (12 if begins and begins[-1] else 0,), dtype=dtype)


@torch.no_grad()
@pytest.mark.parametrize("name", BEGINS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("ends", [False, True])
def test_bags_have_the_cpus_bits(name: str, dtype: torch.dtype, mode: str, ends: bool) -> None:
    weight, ids = table(), ids_of(BEGINS[name], dtype)
    begins = torch.tensor([*BEGINS[name], *([len(ids)] if ends else [])], dtype=dtype)
    number = {"sum": 0, "mean": 1, "max": 2}[mode]

    def outcome(bag: object, *on: torch.Tensor) -> object:
        try:
            return bag(*on, False, number, False, None, ends)  # type: ignore[operator]
        except RuntimeError as error:
            return str(error).splitlines()[0]

    for bag in (torch.ops.aten._embedding_bag, torch.ops.aten._embedding_bag_forward_only):
        expected = outcome(bag, weight, ids, begins)
        for _ in range(3):  # run, planned, replayed
            results = outcome(bag, *(value.to(DEVICE) for value in (weight, ids, begins)))
            assert isinstance(results, str) == isinstance(expected, str)
            if isinstance(expected, tuple) and isinstance(results, tuple):
                for result, of_cpu in zip(results, expected, strict=True):
                    torch.testing.assert_close(result.cpu(), of_cpu, rtol=0, atol=0, equal_nan=True)


@torch.no_grad()
def test_few_bags_run_by_a_kernel_of_ours_and_many_by_pytorchs() -> None:
    bag = nn.EmbeddingBag(1000, 64, mode="sum")
    moved = nn.EmbeddingBag(1000, 64, mode="sum", _weight=bag.weight.detach().clone()).to(DEVICE)
    few, many = torch.randint(1000, (4, 10)), torch.randint(1000, (300, 10))
    for ids, count in ((few, 1), (many, 0)):
        for _ in range(3):
            moved(ids.to(DEVICE)).cpu()
        kernels = ran(lambda ids=ids: moved(ids.to(DEVICE)).cpu())
        assert kernels.get("embedding bags", 0) == count
        assert torch.equal(moved(ids.to(DEVICE)).cpu(), bag(ids))


@torch.no_grad()
@pytest.mark.parametrize("options", [{"padding_idx": 3}, {"per_sample_weights": True}, {"dtype": torch.float64}])
def test_what_the_kernel_does_not_take_is_as_on_the_cpu(options: dict[str, object]) -> None:
    weight = table().nan_to_num(posinf=1).to(options.get("dtype", torch.float32))  # type: ignore[arg-type]
    ids = torch.randint(40, (3, 5))
    factors = torch.rand(3, 5) if "per_sample_weights" in options else None
    padding = options.get("padding_idx")
    for _ in range(3):
        result = F.embedding_bag(ids.to(DEVICE), weight.to(DEVICE), mode="sum", padding_idx=padding,  # type: ignore
                                 per_sample_weights=None if factors is None else factors.to(DEVICE))  # fmt: skip
        expected = F.embedding_bag(ids, weight, mode="sum", padding_idx=padding, per_sample_weights=factors)  # type: ignore
        assert torch.equal(result.cpu(), expected)


@torch.no_grad()
@pytest.mark.parametrize("bad", [-1, 40, 2**40])
def test_an_id_out_of_range_is_the_cpus_error_and_the_next_call_works(bad: int) -> None:
    bag = nn.EmbeddingBag(40, 8, mode="mean").to(DEVICE)
    good = torch.randint(40, (2, 3))
    expected = bag(good.to(DEVICE)).cpu()
    for _ in range(3):
        ids = good.clone()
        ids[1, 1] = bad
        with pytest.raises((IndexError, RuntimeError)):
            bag(ids.to(DEVICE)).cpu()
        assert torch.equal(bag(good.to(DEVICE)).cpu(), expected)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_gradients_and_updates_are_the_cpus(mode: str) -> None:
    bag = nn.EmbeddingBag(40, 8, mode=mode)
    moved = nn.EmbeddingBag(40, 8, mode=mode, _weight=bag.weight.detach().clone()).to(DEVICE)
    ids, begins = torch.randint(40, (12,)), torch.tensor([0, 3, 3, 9])
    for _ in range(4):
        for layer, on in ((bag, "cpu"), (moved, DEVICE)):
            optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
            optimizer.zero_grad()
            layer(ids.to(on), begins.to(on)).square().sum().backward()
            optimizer.step()
        torch.testing.assert_close(moved.weight.detach().cpu(), bag.weight.detach())
