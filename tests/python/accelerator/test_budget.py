"""A budget of bytes on the accelerator: programs keep it, whatever they need, and it may change at any time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import models
import pytest
import torch
from counters import counting
from helpers import DEVICE, assert_same, fresh, needs_hetero
from simulated import MIB, Layers, accelerator_peak

pytestmark = [needs_hetero, pytest.mark.usefixtures("simulated_accelerator")]


def test_a_model_five_times_the_budget_infers_within_it() -> None:
    model = Layers(20, 512)
    size = sum(p.nbytes for p in model.parameters())
    x = torch.randn(16, 512)
    torch.hetero.config.placement = "accelerator"
    torch.hetero.set_memory_budget(size // 5)
    torch.hetero.reset_peak_memory_stats()
    with torch.no_grad():
        expected = model(x)
        model.to(DEVICE)
        for _ in range(6):
            with counting() as seen:
                assert_same(model(x.to(DEVICE)).cpu(), expected)
    assert 0 < accelerator_peak() <= size // 5
    assert seen.kernels_on("accelerator") >= 20
    # What has a place there is not copied again and again.
    assert seen.copies["bytes_to_accelerator"] < size
    assert seen.copies["bytes_to_cpu"] < MIB


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
@pytest.mark.parametrize("policy", ["auto", "accelerator", "mixed"])
def test_a_model_five_times_the_budget_trains_within_it(optimizer: str, policy: str) -> None:
    inputs, targets = torch.randint(40, (2, 8)), torch.randint(40, (2, 8))
    expected = models.train(models.transformer, inputs, targets, optimizer, "cpu")
    size = sum(p.nbytes for p in models.transformer().parameters())
    torch.hetero.config.placement = policy
    torch.hetero.set_memory_budget(size // 5)
    torch.hetero.reset_peak_memory_stats()
    with counting() as seen:
        actual = models.train(models.transformer, inputs, targets, optimizer, DEVICE)
    assert_same(actual, expected)
    assert accelerator_peak() <= size // 5
    if policy != "auto":
        # Not the optimizer's operators on all parameters at once, which do not fit.
        assert seen.kernels_on("accelerator") > 20


@pytest.mark.parametrize("percent", [100, 50, 25, 10])
def test_generation_by_transformers_within_a_budget_gives_the_tokens_of_the_cpu(percent: int) -> None:
    model = models.causal_lm("qwen3")
    prompt = torch.randint(3, 64, (2, 5))

    def generate(device: str) -> torch.Tensor:
        ids = prompt.to(device)
        return model.to(device).generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False
        )

    expected = generate("cpu")
    budget = sum(p.nbytes for p in model.parameters()) * percent // 100
    torch.hetero.config.placement = "accelerator"
    torch.hetero.set_memory_budget(budget)
    torch.hetero.reset_peak_memory_stats()
    with counting() as seen:
        assert_same(generate(DEVICE).cpu(), expected)
    assert accelerator_peak() <= budget
    assert seen.kernels_on("accelerator") > 20


def test_the_budget_changes_between_iterations() -> None:
    model = Layers(8, 256)
    size = sum(p.nbytes for p in model.parameters())
    x = torch.randn(4, 256)
    torch.hetero.config.placement = "accelerator"
    with torch.no_grad():
        expected = model(x)
        model.to(DEVICE)
        for budget in (size // 3, 0, size // 2, 2 * size, 64 * 1024, size // 4):
            torch.hetero.set_memory_budget(budget)
            torch.hetero.reset_peak_memory_stats()
            for _ in range(3):
                assert_same(model(x.to(DEVICE)).cpu(), expected)
            assert budget == 0 or accelerator_peak() <= budget
        with torch.hetero.memory_budget("256KiB"):
            assert torch.hetero.get_memory_budget() == 256 * 1024
            assert_same(model(x.to(DEVICE)).cpu(), expected)
        assert torch.hetero.get_memory_budget() == size // 4
    with pytest.raises(ValueError, match="memory_budget"):
        torch.hetero.set_memory_budget("much")


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9, nesterov=True),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
}


def trained_with_budgets(optimizer: str, device: str, budgets: list[int]) -> tuple[list[float], list[torch.Tensor]]:
    """Losses of a step under each of the budgets, which none exceeds, and the parameters afterwards."""
    torch.manual_seed(0)
    model = Layers(8, 128)
    batches = [torch.randn(16, 128) for _ in budgets]
    model.to(device)
    stepper = OPTIMIZERS[optimizer](model.parameters())
    losses = []
    for batch, budget in zip(batches, budgets, strict=True):
        torch.hetero.set_memory_budget(budget)
        torch.hetero.reset_peak_memory_stats()
        stepper.zero_grad()
        loss = model(batch.to(device)).square().mean()
        loss.backward()
        stepper.step()
        losses.append(loss.item())
        torch.hetero.synchronize()
        assert budget == 0 or accelerator_peak() <= budget
    return losses, [p.detach().cpu() for p in model.parameters()]


@pytest.mark.parametrize("placement", ["auto", "accelerator"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_budget_changes_between_iterations_of_training(optimizer: str, placement: str) -> None:
    torch.hetero.config.placement = placement
    size = sum(p.nbytes for p in Layers(8, 128).parameters())
    budgets = [size // 5, size // 3, 0, size // 10, 2 * size, 64 * 1024, size // 2, size // 5]
    expected = trained_with_budgets(optimizer, "cpu", budgets)
    with counting() as seen:
        actual = trained_with_budgets(optimizer, DEVICE, budgets)
    assert_same(actual, expected)
    assert placement == "auto" or seen.kernels_on("accelerator") > 100


def test_the_budget_of_a_block_holds_for_the_process() -> None:
    torch.hetero.config.placement = "accelerator"
    torch.hetero.set_memory_budget("8MiB")
    x = torch.randn(256, 512)
    first_is_inside, second_has_begun, first_has_ended = (threading.Event() for _ in range(3))
    seen: dict[str, Any] = {}

    def first() -> None:
        with torch.hetero.memory_budget("1MiB"):
            first_is_inside.set()
            second_has_begun.wait(60)
        seen["after the first"] = torch.hetero.get_memory_budget()
        first_has_ended.set()

    def second() -> None:
        first_is_inside.wait(60)
        seen["inside the first"] = torch.hetero.get_memory_budget()
        torch.hetero.reset_peak_memory_stats()
        seen["sum"] = ((fresh(x) * 2).relu() + 1).sum().item()
        seen["peak"] = accelerator_peak()
        with torch.hetero.memory_budget("2MiB"):
            second_has_begun.set()
            first_has_ended.wait(60)
            seen["inside the second"] = torch.hetero.get_memory_budget()

    threads = [threading.Thread(target=each) for each in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen.pop("sum") == ((x * 2).relu() + 1).sum().item()
    assert 0 < seen.pop("peak") <= MIB
    assert seen == {"inside the first": MIB, "after the first": 2 * MIB, "inside the second": 2 * MIB}
    assert torch.hetero.get_memory_budget() == 8 * MIB


def test_what_was_used_long_ago_makes_room() -> None:
    torch.hetero.config.placement = "accelerator"
    torch.hetero.set_memory_budget("4MiB")
    torch.hetero.reset_peak_memory_stats()
    with counting() as seen:
        kept = [(fresh(torch.full((256, 1024), float(i))) * 2).relu() for i in range(8)]
        for tensor in kept:
            torch.hetero.flush()
            (tensor + 1).sum().item()
        for i, tensor in enumerate(kept):
            assert tensor.sum().item() == 2.0 * i * 256 * 1024
    assert seen.kernels_on("accelerator") > 16
    assert accelerator_peak() <= 4 * MIB


def evicted_by_a_large_program(share: float) -> int:
    """How many of seven tensors of 512 KiB leave 4 MiB of the accelerator to a program that can use all of it."""
    torch.hetero.config.memory_pressure = share
    kept = []
    for i in range(7):
        kept.append(fresh(torch.full((128, 1024), float(i))) + 1)
        torch.hetero.flush()
    assert torch.hetero._C.accelerator_stats()["allocated_bytes"] >= 3 * MIB
    before = torch.hetero._C.counters()["storages_evicted"]
    made = fresh(torch.ones(512, 1024)) * 2
    torch.hetero.flush()
    evicted = torch.hetero._C.counters()["storages_evicted"] - before
    assert made.sum().item() == 2 * 512 * 1024
    for i, tensor in enumerate(kept):
        assert tensor.sum().item() == (i + 1) * 128 * 1024
    return evicted


def test_a_program_claims_the_share_of_memory_that_the_option_says_from_others_also_when_it_changes() -> None:
    torch.hetero.config.placement = "accelerator"
    torch.hetero.set_memory_budget("4MiB")
    # There are 512 KiB free, and each tensor that leaves frees as much.
    for _ in range(2):
        assert [evicted_by_a_large_program(share) for share in (0.0, 0.5, 0.8, 1.0)] == [0, 3, 6, 7]


@pytest.mark.parametrize(("share", "on_cpu"), [(0.0, True), (0.8, False)])
def test_a_program_that_may_not_claim_the_memory_of_others_computes_on_the_cpu(share: float, on_cpu: bool) -> None:
    torch.hetero.config.placement = "accelerator"
    torch.hetero.config.memory_pressure = share
    torch.hetero.set_memory_budget("8MiB")
    kept = [fresh(torch.full((256, 1024), float(i))) + 1 for i in range(7)]
    torch.hetero.flush()
    x = torch.randn(512, 1024)
    before = torch.hetero.explain()
    total = ((fresh(x) * 2 + fresh(x)).relu()).sum().item()
    seen = torch.hetero.explain() - before
    assert total == (x * 2 + x).relu().sum().item()
    assert (seen.kernels["cpu"] > 0) == on_cpu
    assert (seen.storages_evicted == 0) == on_cpu
    for i, tensor in enumerate(kept):
        assert tensor.sum().item() == (i + 1) * 256 * 1024


def test_a_budget_that_holds_nothing_leaves_all_to_the_cpu() -> None:
    torch.hetero.config.placement = "accelerator"
    torch.hetero.set_memory_budget(64)
    x = torch.randn(64, 64)
    with counting() as seen:
        assert_same((fresh(x) @ fresh(x)).relu().cpu(), (x @ x).relu())
    assert seen.kernels_on("accelerator") == 0
