"""One program on two devices: the simulated accelerator shares the work, the bits stay CPU's."""

from __future__ import annotations

import re

import models
import pytest
import torch
from counters import Seen, counting
from helpers import DEVICE, assert_same, fresh, needs_hetero, run_python_ok

pytestmark = needs_hetero


@pytest.fixture(autouse=True)
def simulated_accelerator() -> None:
    """Turns the accelerator on, and spreads the work over both devices; clean_state gives the old choices back."""
    torch.hetero.config.accelerator = "sim"
    torch.hetero.config.placement = "mixed"


def assert_both_devices_worked(seen: Seen) -> None:
    assert seen.kernels_on("cpu") > 0 and seen.kernels_on("accelerator") > 0
    copies = seen.copies
    assert copies.get("to_accelerator", 0) > 0 and copies.get("to_cpu", 0) > 0
    assert copies.get("bytes_to_accelerator", 0) > 0 and copies.get("bytes_to_cpu", 0) > 0
    assert seen.events > 0 and seen.waits > 0


def test_minilm_on_two_devices_is_bitwise_cpu(unfused: None) -> None:
    model, tokenize = models.minilm()
    batch = tokenize(["Return the sum of numbers.", "Open a file and return a stream."])
    with torch.no_grad():
        expected = model(**batch).last_hidden_state
        with counting() as seen:
            model.to(DEVICE)
            there = {name: value.to(DEVICE) for name, value in batch.items()}
            actual = model(**there).last_hidden_state.cpu()
    assert_same(actual, expected)
    assert_both_devices_worked(seen)
    weights = sum(parameter.nbytes for parameter in model.encoder.parameters())
    assert seen.copies["bytes_to_accelerator"] >= weights / 4
    assert seen.copies["bytes_to_cpu"] >= expected.nbytes


@pytest.mark.parametrize("optimizer", models.OPTIMIZERS)
def test_training_a_transformer_on_two_devices_is_bitwise_cpu(optimizer: str, unfused: None) -> None:
    inputs, targets = torch.randint(40, (2, 8)), torch.randint(40, (2, 8))
    expected = models.train(models.transformer, inputs, targets, optimizer, "cpu")
    with counting() as seen:
        actual = models.train(models.transformer, inputs, targets, optimizer, DEVICE)
    assert_same(actual, expected)
    assert_both_devices_worked(seen)


def chain(x: torch.Tensor) -> torch.Tensor:
    y = x @ x.t()
    y = y.softmax(-1) @ x
    y[:, 1:].add_(1)
    return y.sum(0) + x[0]


def test_forced_onto_the_accelerator_every_supported_node_runs_there() -> None:
    x = torch.randn(8, 8)
    with counting() as seen, torch.hetero.placement("accelerator"):
        actual = chain(fresh(x)).cpu()
    assert_same(actual, chain(x))
    assert seen.kernels_on("accelerator") >= 5
    assert seen.copies["bytes_to_accelerator"] >= x.nbytes


def test_forced_onto_the_cpu_nothing_is_copied() -> None:
    x = torch.randn(8, 8)
    with counting() as seen, torch.hetero.placement("cpu"):
        actual = chain(fresh(x)).cpu()
    assert_same(actual, chain(x))
    assert seen.kernels_on("accelerator") == 0
    assert seen.copies.get("bytes_to_accelerator", 0) == 0


def test_placement_may_change_between_operators_of_one_program() -> None:
    x = torch.randn(6, 6)
    with counting() as seen:
        there = fresh(x)
        with torch.hetero.placement("accelerator"):
            there = there @ there
        with torch.hetero.placement("cpu"):
            there = there.tanh()
        with torch.hetero.placement("accelerator"):
            there = there @ there.t()
        actual = there.cpu()
    expected = (x @ x).tanh()
    assert_same(actual, expected @ expected.t())
    assert_both_devices_worked(seen)


def test_writes_on_one_device_are_seen_on_the_other() -> None:
    def run(x: torch.Tensor, alternate: bool) -> list[torch.Tensor]:
        results = []
        for step in range(8):
            place = "auto" if not alternate else ("cpu", "accelerator")[step % 2]
            with torch.hetero.placement(place):
                x[step % 4].add_(step)
                x.t()[1:3].mul_(1.5)
                results.append(x.sum(1))
        return [*results, x]

    x = torch.randn(4, 4)
    expected = run(x.clone().to(DEVICE), alternate=False)
    with counting() as seen:
        actual = [value.cpu() for value in run(x.to(DEVICE), alternate=True)]
    assert_same(actual, [value.cpu() for value in expected])
    assert_both_devices_worked(seen)


def test_a_value_read_twice_is_copied_once() -> None:
    with torch.hetero.placement("accelerator"):
        value = torch.randn(16, 16).to(DEVICE) @ torch.eye(16).to(DEVICE)
    first = value.cpu()
    with counting() as seen:
        second = value.cpu()
    assert_same(second, first)
    assert seen.copies.get("bytes_to_cpu", 0) == 0


def test_random_numbers_do_not_depend_on_placement() -> None:
    def draw(place: str) -> list[torch.Tensor]:
        torch.manual_seed(4)
        with torch.hetero.placement(place):
            values = [
                torch.randn(5, 5, device=DEVICE),
                torch.nn.functional.dropout(torch.ones(50, device=DEVICE), 0.5),
                torch.rand(7, device=DEVICE) + torch.randperm(7, device=DEVICE),
            ]
        return [value.cpu() for value in values]

    assert_same(draw("accelerator"), draw("cpu"))


def test_errors_of_values_on_the_accelerator_reach_the_reader() -> None:
    with torch.hetero.placement("accelerator"):
        bad = torch.arange(4.0, device=DEVICE)[torch.tensor([9], device=DEVICE)]
        with pytest.raises(IndexError, match="index 9 is out of bounds"):
            bad.cpu()
        assert (torch.ones(2, device=DEVICE) + 1).tolist() == [2.0, 2.0]


def test_turning_the_accelerator_off_brings_every_value_home() -> None:
    with torch.hetero.placement("accelerator"):
        value = torch.arange(6.0).to(DEVICE) * 2
        torch.hetero.flush()
    torch.hetero.config.accelerator = "none"
    assert (value + 1).tolist() == [1.0, 3.0, 5.0, 7.0, 9.0, 11.0]


def test_views_cross_devices_with_their_base() -> None:
    def run(x: torch.Tensor, forced: bool) -> list[torch.Tensor]:
        with torch.hetero.placement("accelerator" if forced else "cpu"):
            window = x.t()[1:3]
            product = window @ x
        with torch.hetero.placement("cpu"):
            window.copy_(product[:, :4] + 1)
        with torch.hetero.placement("accelerator" if forced else "cpu"):
            return [x @ x, window.clone()]

    x = torch.randn(4, 4)
    expected = [value.cpu() for value in run(x.clone().to(DEVICE), forced=False)]
    with counting() as seen:
        actual = [value.cpu() for value in run(x.to(DEVICE), forced=True)]
    assert_same(actual, expected)
    assert_both_devices_worked(seen)


def test_the_accelerator_is_chosen_by_the_environment() -> None:
    out = run_python_ok(
        """
        import torch
        from counters import snapshot
        x = torch.randn(32, 32)
        y = (x.to("hetero") @ x.to("hetero")).relu().cpu()
        seen = snapshot()
        print(torch.equal(y, (x @ x).relu()), torch.hetero.config.accelerator,
              seen["kernels"]["accelerator"] > 0, seen["copies"]["bytes_to_cpu"] > 0)
        """,
        {"HETERO_ACCELERATOR": "sim", "HETERO_PLACEMENT": "accelerator", "HETERO_VERIFY_PLANS": "1"},
    )
    assert out == "True sim True True\n"


def test_results_are_the_same_in_every_run_of_the_simulator() -> None:
    x = torch.randn(12, 12)
    results = []
    for _ in range(5):
        there = fresh(x)
        for step in range(10):
            with torch.hetero.placement("accelerator" if step % 3 else "cpu"):
                there = (there @ there.t()).tanh() + step
        results.append(there.cpu())
    for result in results[1:]:
        assert_same(result, results[0])


def test_bytes_that_the_host_looks_at_are_written_on_the_host() -> None:
    value = torch.arange(6.0).to(DEVICE) * 2
    seen_by_host = torch.from_dlpack(value)
    with torch.hetero.placement("accelerator"):
        value.add_(1)
        other = value * 2
    assert seen_by_host.tolist() == [1.0, 3.0, 5.0, 7.0, 9.0, 11.0]
    assert other.tolist() == [2.0, 6.0, 10.0, 14.0, 18.0, 22.0]


def test_the_report_tells_how_long_the_last_program_was_predicted_to_take() -> None:
    x = torch.randn(256, 256).to(DEVICE)
    with torch.hetero.config.override(keep_plans=True, placement="accelerator"):
        (x @ x).cpu()
        plan = torch.hetero.explain().plan
    assert re.search(r"^predicted: \S+ s; .*accelerator compute: busy \S+ s, waits \S+ s", plan, re.MULTILINE), plan


def test_threads_may_change_the_accelerator_and_its_budget_at_once() -> None:
    code = """
import threading, time, torch
H = torch.hetero
end = time.monotonic() + 3
def choose():
    while time.monotonic() < end:
        H.config.accelerator = "none"
        H.config.accelerator = "sim"
def limit():
    while time.monotonic() < end:
        with H.memory_budget("1MiB"):
            assert (torch.ones(4, device="hetero") + 1).tolist() == [2.0] * 4
threads = [threading.Thread(target=work) for work in (choose, choose, limit)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print("done")
"""
    assert run_python_ok(code).strip() == "done"
