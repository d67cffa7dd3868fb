"""Costs: plans follow what operators take on this machine, which may be another than its profile says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from counters import counting
from helpers import DEVICE, assert_same, fresh, needs_hetero
from simulated import Heads, Layers
from torch import nn

from torch_hetero import _C

pytestmark = [needs_hetero, pytest.mark.usefixtures("simulated_accelerator")]


def test_plans_are_kept_with_an_accelerator() -> None:
    torch.hetero.config.placement = "mixed"
    model = Layers(3, 64).to(DEVICE)
    with torch.no_grad():
        for _ in range(8):
            model(torch.randn(2, 64).to(DEVICE)).cpu()
        with counting() as seen:
            for _ in range(5):
                model(torch.randn(2, 64).to(DEVICE)).cpu()
    assert seen.plans_made == 0


def test_a_machine_that_is_slower_than_its_profile_is_found_out() -> None:
    model = Layers(4, 1024)
    x = torch.randn(128, 1024)
    with torch.no_grad():
        expected = model(x)
        model.to(DEVICE)
        torch.hetero.use_profile("h200", slowdown=5000)
        on_accelerator = []
        for _ in range(40):
            with counting() as seen:
                assert_same(model(x.to(DEVICE)).cpu(), expected)
            on_accelerator.append(seen.kernels_on("accelerator"))
    assert max(on_accelerator) >= 4
    assert on_accelerator[-1] == 0


def test_a_machine_that_becomes_slower_is_found_out_however_late() -> None:
    model = Layers(4, 1024)
    x = torch.randn(128, 1024)
    with torch.no_grad():
        expected = model(x)
        model.to(DEVICE)

        def kernels_there(runs: int) -> int:
            with counting() as seen:
                for _ in range(runs):
                    assert_same(model(x.to(DEVICE)).cpu(), expected)
            return seen.kernels_on("accelerator")

        torch.hetero.use_profile("h200", slowdown=5000, slowdown_after=0.01)
        assert kernels_there(40) >= 4 * 40
        with counting() as seen:
            kernels_there(400)
        assert seen.plans_made > 0
        assert kernels_there(10) == 0


def virtual_step(step: Callable[[], Any]) -> float:
    """Seconds of the simulated machine's clock."""
    torch.hetero.synchronize()
    before = _C.virtual_seconds()
    step()
    return _C.virtual_seconds() - before


def steady_step(step: Callable[[], Any], placement: str, **machine: float) -> float:
    """What a step comes to take on a machine of which nothing is known."""
    torch.hetero.config.placement = placement
    torch.hetero.use_profile("h200", **machine)
    return [virtual_step(step) for _ in range(60)][-1]


@pytest.mark.parametrize("slowdown", [1.7, 10.0])
def test_what_is_predicted_converges_to_what_a_slower_machine_takes(slowdown: float) -> None:
    torch.hetero.config.keep_plans = True
    torch.hetero.config.placement = "accelerator"
    model = Layers(4, 512).to(DEVICE)
    x = torch.randn(64, 512)

    def run() -> dict[str, Any]:
        with torch.no_grad():
            model(x.to(DEVICE)).cpu()
        return torch.hetero.explain().program

    torch.hetero.use_profile("h200", schedule_seed=31)
    as_described = [run() for _ in range(3)][-1]["measured_seconds"]
    torch.hetero.use_profile("h200", slowdown=slowdown, schedule_seed=31)
    programs = [run() for _ in range(80)]
    # What was learned does not change what the machine does.
    for program in programs[3:]:
        assert program["measured_seconds"] == pytest.approx(slowdown * as_described, rel=0.02)
    for program in programs[20:]:
        assert program["predicted_seconds"] == pytest.approx(program["measured_seconds"], rel=0.1)
    for node in programs[-1]["nodes"]:
        if node["live"]:
            assert node["predicted"] == pytest.approx(node["measured"], rel=0.1)


@pytest.mark.parametrize("slowdown", [1.2, 1.7, 3.0])
def test_work_stays_where_it_is_faster_on_a_machine_that_is_slower_than_its_profile(slowdown: float) -> None:
    model = Layers(4, 1024).to(DEVICE)
    x = torch.randn(128, 1024)

    def step() -> None:
        with torch.no_grad():
            model(x.to(DEVICE)).cpu()

    on_cpu = steady_step(step, "cpu", slowdown=slowdown, schedule_seed=41)
    there = steady_step(step, "accelerator", slowdown=slowdown, schedule_seed=42)
    chosen = steady_step(step, "auto", slowdown=slowdown, schedule_seed=43)
    assert there < on_cpu
    assert chosen <= 1.05 * min(on_cpu, there)
    with counting() as seen:
        step()
    assert seen.kernels_on("accelerator") >= 4


@pytest.mark.parametrize("slowdown", [0.5, 1.0, 1.3, 3.0, 10.0])
def test_kernels_that_run_beside_each_other_are_measured_alone_where_the_prediction_is_wrong(slowdown: float) -> None:
    torch.hetero.config.keep_plans = True
    torch.hetero.config.placement = "accelerator"
    torch.hetero.use_profile("h200", slowdown=slowdown)
    model = Heads(4, 64).to(DEVICE)
    x = fresh(torch.randn(8, 64))
    for tensor in (x, *model.parameters()):
        tensor.sum().item()  # comes to the accelerator
    queues, ratios, made = [], [], []
    for _ in range(30):
        with counting() as seen, torch.no_grad():
            model(x).cpu()
        program = torch.hetero.explain().program
        kernels = [span for span in program["spans"] if span["kind"] in ("run", "fused")]
        queues.append(len({span["queue"] for span in kernels}))
        ratios.append(program["predicted_seconds"] / program["measured_seconds"])
        made.append(seen.plans_made)
    alone = queues.count(1)
    if slowdown == 1.0:
        assert alone == 0 and sum(made[3:]) == 0 and ratios == pytest.approx([1] * 30, rel=0.01)
    else:
        assert alone == 5
        assert ratios[3] == pytest.approx(1, abs=0.6) and ratios[3] != pytest.approx(1, rel=0.1)
        assert sum(made[20:]) == 0
    assert queues[0] == queues[-1] == 4
    assert ratios[12:] == pytest.approx([1] * 18, rel=0.1)


@pytest.mark.parametrize("slowdown", [1.3, 1.7, 3.0])
def test_how_much_kernels_are_in_each_others_way_is_learned(slowdown: float) -> None:
    """Of other sizes, whose kernels are not known though the trace is, and of kernels that fill much of the machine."""
    torch.hetero.config.keep_plans = True
    torch.hetero.config.placement = "accelerator"
    torch.hetero.use_profile("h200", slowdown=slowdown, schedule_seed=61)
    first_ratios = []
    for count, size, batch in ((4, 64, 8), (4, 512, 128), (8, 512, 256), (4, 1024, 256), (4, 1024, 1024)):
        model = Heads(count, size).to(DEVICE)
        x = fresh(torch.randn(batch, size))
        for tensor in (x, *model.parameters()):
            tensor.sum().item()  # comes to the accelerator
        ratios, queues = [], []
        for _ in range(30):
            with torch.no_grad():
                model(x).cpu()
            program = torch.hetero.explain().program
            ratios.append(program["predicted_seconds"] / program["measured_seconds"])
            queues.append(len({span["queue"] for span in program["spans"] if span["kind"] in ("run", "fused")}))
        assert queues.count(1) <= 5 and queues[-1] >= 2
        assert ratios[20:] == pytest.approx([1] * 10, rel=0.1)
        first_ratios.append(ratios[0])
    assert first_ratios[0] != pytest.approx(1, rel=0.1)


def test_a_placement_is_doubted_anew_on_another_machine() -> None:
    torch.hetero.config.keep_plans = True
    torch.hetero.config.placement = "accelerator"
    model = Heads(4, 64).to(DEVICE)
    x = torch.randn(8, 64)

    def last_ratio() -> float:
        for _ in range(30):
            with torch.no_grad():
                model(x.to(DEVICE)).cpu()
        program = torch.hetero.explain().program
        return program["predicted_seconds"] / program["measured_seconds"]

    # On each of them less than a surprise would be, after the one before.
    for slowdown in (1.0, 1.4, 1.9, 1.4):
        torch.hetero.use_profile("h200", slowdown=slowdown)
        assert last_ratio() == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize(("slowdown", "size"), [(4.0, 513), (10.0, 512)])
def test_a_placement_gives_way_when_kernels_are_found_to_be_in_each_others_way(slowdown: float, size: int) -> None:
    """As few elements as the profile says fill the machine, all kernels would run beside each other; they do not."""
    torch.hetero.config.keep_plans = True
    x, *weights = (torch.randn(size, size).to(DEVICE) for _ in range(9))

    def step() -> None:
        torch.stack([x @ weight @ weight @ weight for weight in weights]).sum(0).cpu()

    def run(placement: str) -> tuple[list[int], list[float], list[float]]:
        torch.hetero.use_profile("h200", slowdown=slowdown, schedule_seed=51, copy_latency=1e-7, parallelism=1e12)
        torch.hetero.config.placement = "accelerator"
        for tensor in (x, *weights):
            tensor.sum().item()  # comes to the accelerator
        torch.hetero.config.placement = placement
        kernels, seconds, surprises = [], [], []
        for _ in range(30):
            with counting() as seen:
                seconds.append(virtual_step(step))
            kernels.append(seen.kernels_on("accelerator"))
            program = torch.hetero.explain().program
            surprises.append(program["measured_seconds"] / program["predicted_seconds"])
        return kernels, seconds, surprises

    kernels, seconds, surprises = run("auto")
    assert kernels[0] == kernels[3] == 26
    assert surprises[0] > 1.5
    assert surprises[-10:] == pytest.approx([1] * 10, rel=0.1)
    there, elsewhere = run("accelerator")[1][-1], run("cpu")[1][-1]
    assert seconds[-1] <= 1.02 * min(there, elsewhere)
    if slowdown == 4.0:
        assert kernels[-10:] == [26] * 10
    else:
        assert max(kernels[-10:]) <= 20
        assert seconds[-1] < 0.8 * seconds[3]


@pytest.mark.parametrize("placement", ["accelerator", "mixed"])
def test_batch_norm_in_inference_runs_on_the_accelerator(placement: str) -> None:
    torch.hetero.config.placement = placement
    model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()).eval()
    x = torch.randn(8, 3, 64, 64)
    with torch.no_grad():
        expected = model(x)
        model.to(DEVICE)
        for _ in range(3):
            assert_same(model(x.to(DEVICE)).cpu(), expected)
