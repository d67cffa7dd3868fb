"""Launches that are the same each time a program runs become one (graph/run/segments.h): a CUDA graph on a GPU."""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Callable, Iterator

import pytest
import torch
from counters import Seen, counting
from helpers import DEVICE, assert_same, needs_hetero
from torch import nn

pytestmark = needs_hetero

# Runs that are measured kernel by kernel, those in which addresses settle, and some more.
WARM = 40


@pytest.fixture(autouse=True, params=[True, False], ids=["the CPU's kernels", "kernels of the device"])
def accelerator(request: pytest.FixtureRequest) -> Iterator[None]:
    config = torch.hetero.config
    config.memory_budget = 0
    config.fusion = False
    torch.hetero._C.set_sim_options([("host_kernels", float(request.param))])
    config.accelerator = "sim"
    config.placement = "accelerator"
    yield
    config.segments = True
    torch.hetero._C.remove_faults()
    torch.hetero._C.set_sim_options([("host_kernels", float(os.environ.get("HETERO_TEST_HOST_KERNELS", "1")))])


# Of the next model. No two tests have models of one size, which would share plans: a plan remembers what could not be launched as one.
widths = itertools.count(16)


def perceptron() -> nn.Module:
    width = next(widths)
    return nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))


class Pair:
    """A model on the CPU and its copy on the device, which do the same."""

    def __init__(self, step: Callable[[nn.Module, torch.Tensor], list[torch.Tensor]]) -> None:
        model = perceptron()
        self.models = model, copy.deepcopy(model).to(DEVICE)
        self.step = step

    def both(self, change: Callable[[nn.Module], None]) -> None:
        for model in self.models:
            change(model)

    def run(self, times: int = 1) -> Seen:
        """The device's counters of the last step; every step's values are the CPU's."""
        for _ in range(times):
            x = torch.randn(5, 8)
            expected = self.step(self.models[0], x)
            with counting() as seen:
                found = self.step(self.models[1], x.to(DEVICE))
            assert_same(found, expected)
        return seen

    def settle(self) -> Seen:
        """The first run with segments. One in sixteen is measured, kernel by kernel; so are some in a row where times surprise."""
        self.run(WARM)
        for _ in range(16):
            seen = self.run()
            if seen.segments:
                break
        return seen


def infer(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    with torch.no_grad():
        return [model(x).cpu()]


def test_inference_becomes_segments_of_the_same_kernels() -> None:
    pair = Pair(infer)
    alone = pair.run(3).kernels_on("accelerator")
    seen = pair.settle()
    assert seen.segments >= 1
    assert seen.kernels_on("accelerator") == alone and seen.kernels_on("cpu") == 0
    assert torch.hetero.explain().segments >= seen.segments


@pytest.mark.parametrize("fusion", [False, True])
def test_training_steps_become_segments(fusion: bool) -> None:
    torch.hetero.config.fusion = fusion
    torch.use_deterministic_algorithms(fusion)
    try:
        model = perceptron().to(DEVICE)
        whole = copy.deepcopy(model)

        def train(model: nn.Module, segments: bool) -> tuple[list[torch.Tensor], int]:
            torch.hetero.config.segments = segments
            torch.manual_seed(3)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
            losses = []
            with counting() as seen:
                for _ in range(WARM):
                    optimizer.zero_grad()
                    loss = (model(torch.randn(5, 8).to(DEVICE)) ** 2).mean()
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.item())
            return [*(p.detach().cpu() for p in model.parameters()), torch.tensor(losses)], seen.segments

        alone, none = train(whole, False)
        found, some = train(model, True)
        assert none == 0 and some > 0
        assert_same(found, alone)
    finally:
        torch.use_deterministic_algorithms(False)


def test_no_segment_has_the_address_of_weights_that_were_replaced() -> None:
    pair = Pair(infer)
    assert pair.settle().segments >= 1
    values = torch.randn_like(pair.models[0][2].weight)

    def replace(model: nn.Module) -> None:
        model[2].weight = nn.Parameter(values.to(model[0].weight.device))

    pair.both(replace)
    pair.run(2)
    assert pair.settle().segments >= 1


def test_no_segment_has_a_number_that_has_changed() -> None:
    count = [0]

    def step(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
        with torch.no_grad():
            hidden = model[:3](x) * (count[0] // 2)
            count[0] += 1
            return [model[3:](torch.tanh(hidden)).cpu()]

    pair = Pair(step)
    pair.run(WARM)
    assert pair.settle().segments >= 1


def test_other_sizes_find_no_stale_segment() -> None:
    sizes = [5]

    def step(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
        return infer(model, x[: sizes[0]])

    pair = Pair(step)
    assert pair.settle().segments >= 1
    for sizes[0] in (3, 5, 2, 5, 4, 3, 5):
        pair.run(3)


@pytest.mark.parametrize("kind", ["launch", "recording of a segment"])
@pytest.mark.parametrize("for_ever", [False, True])
def test_what_cannot_be_recorded_or_launched_as_one_is_launched_alone(kind: str, for_ever: bool) -> None:
    core = torch.hetero._C
    core.interpose_faults("accelerator")
    pair = Pair(infer)
    if kind == "launch":
        assert pair.settle().segments >= 1
    core.fail("accelerator", kind, 1, for_ever)
    if kind == "launch" and for_ever:
        with pytest.raises(RuntimeError, match="launch"):
            pair.run(2)
        core.heal("accelerator")
    pair.run(WARM)


def test_an_error_is_the_cpus_and_the_next_run_is_right() -> None:
    table = torch.randn(10, 8)

    def step(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
        rows = (x[:, 0] > 100).long() + index[0]
        device = model[0].weight.device
        return infer(model, table.to(device)[rows])

    index = [1]
    pair = Pair(step)
    assert pair.settle().segments >= 1
    index[0] = 99
    with pytest.raises(IndexError):
        infer(pair.models[1], table.to(DEVICE)[(torch.zeros(5, device=DEVICE)).long() + 99])
    index[0] = 2
    pair.run(3)


def test_kernels_with_other_settings_are_recorded_anew() -> None:
    """PyTorch's CUDA kernels look at settings when they are launched, and a graph would keep those of its recording."""
    pair = Pair(infer)
    assert pair.settle().segments >= 1
    cudnn = torch.backends.cudnn
    # Not by assignment, which PyTorch forbids once its test helpers were imported (tests/upstream, in this process).
    with cudnn.flags(enabled=cudnn.enabled, benchmark=not cudnn.benchmark, deterministic=cudnn.deterministic):
        assert pair.run().segments == 0
        assert pair.settle().segments >= 1
    assert pair.run().segments == 0
    assert pair.settle().segments >= 1


def test_a_profiler_sees_each_kernel() -> None:
    pair = Pair(infer)
    assert pair.settle().segments >= 1
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert pair.run().segments == 0
