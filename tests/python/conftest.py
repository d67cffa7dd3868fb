"""Fixtures: each test starts seeded, on few threads, with nothing pending and default options."""

from __future__ import annotations

import os
from collections.abc import Iterator

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
from helpers import ACCELERATOR, DEVICE, HOST_KERNELS, ON_HETERO

# What suites with an accelerator in the environment leave out, and why: tests of how the CPU does something when it is
# alone. Every other test runs there as well.
CPU_ALONE = {
    "test_attention.py::test_the_kernels_are_ours": "counts the CPU's attention kernels",
    "test_compile.py::test_a_model_on_the_cpu_runs_on_the_device_and_its_results_come_back[lstm]": (
        "an LSTM layer's outputs have other shapes on the CPU than on an accelerator"
    ),
    "test_compile.py::test_another": "plans are made anew while costs are learned",
    "test_compile.py::test_max_autotune_plans_each_size": "plans are made anew while costs are learned",
    "test_compile.py::test_recording_goes_on_across_a_graph_break": "counts plans, and costs are learned",
    "test_compile.py::test_training_is_close": "counts plans, and costs are learned",
    "test_compile.py::test_training_leaves_no_memory_behind": "counts the bytes of the host's allocator",
    "test_compile.py::test_other_batches": "plans are made anew while costs are learned",
    "test_compile.py::test_training_with_other": "plans are made anew while costs are learned",
    "test_config.py::test_an_empty_variable": "looks at the variables that choose the accelerator and the placement",
    "test_config.py::test_sizes_that_are_none": "expects no memory budget",
    "test_saved.py::test_a_call_after_the_budget": "compares bytes with a budget of its own and one placement",
    "test_compile.py::test_an_exported_program_is_compiled[lstm]": (
        "an LSTM layer's outputs have other shapes on the CPU than on an accelerator"
    ),
    "test_config.py::test_jit_compiles": "counts kernels that are fused and compiled for the CPU",
    "test_growth.py": "tensors grow in place without an accelerator only",
    "test_lazy.py::test_sizes_that_come_back": "plans are made anew while costs are learned",
    "test_losses.py": "counts groups that are fused for the CPU",
    "test_memory.py": "counts the bytes of the host's allocator, peaks and reuse included",
    "test_overlap.py": "programs are recorded while they run without an accelerator only",
    "test_patterns.py": "counts groups that are fused for the CPU",
    "test_saved.py::test_planned_memory": "knows what the CPU's arena holds at least",
    "test_server.py::test_calls_run_at_once": "operators on the accelerator run on its threads, not on a lane's",
    "test_server.py::test_parallel_regions_of_a_lane": "operators on the accelerator run on its threads",
}

# What suites leave out beside, where the simulated accelerator does not run the CPU's kernels: the bits of what a GPU
# computes otherwise.
BITS_OF_HOST_KERNELS = {
    f"{test}{which}": "attention is not the CPU's"
    for test, whichs in {
        "test_compile.py::test_training_without_fusion_has_the_bits_of_the_same_graphs_on_the_cpu": ["[transformer]"],
        "test_models.py::test_three_training_steps_leave_every_parameter_bitwise_cpu": [
            f"[{model}-" for model in ("transformer", "vit", "language_model")
        ],
        "test_placement.py::test_placement_does_not_change_a_bit_of_what_is_fused": ["[transformer]"],
        "test_sim.py::test_training_a_transformer_on_two_devices_is_bitwise_cpu": [""],
    }.items()
    for which in whichs
} | {
    "test_placement.py::test_placement_does_not_change_a_bit_of_what_is_fused[perceptron]": "the CPU draws numbers",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if ACCELERATOR == "none":
        return
    for item in items:
        for name, reason in CPU_ALONE.items():
            if f"/{name}" in item.nodeid:
                item.add_marker(pytest.mark.skip(reason=f"without an accelerator: {reason}"))
        for name, reason in BITS_OF_HOST_KERNELS.items():
            if not HOST_KERNELS and f"/{name}" in item.nodeid:
                item.add_marker(pytest.mark.skip(reason=f"with the CPU's kernels: {reason}"))


@pytest.fixture
def device() -> str:
    return DEVICE


@pytest.fixture(autouse=True)
def clean_state() -> Iterator[None]:
    """Seeds, and gives back every option that the test changed."""
    torch.manual_seed(0)
    if not ON_HETERO:
        yield
        return
    config = torch.hetero.config
    before = config.as_dict()
    yield
    for name, value in config.as_dict().items():
        if value != before[name]:
            setattr(config, name, before[name])
    torch.hetero.flush()


@pytest.fixture
def unfused() -> None:
    """Without fusion: a program that was seen before has eager's bits also where it sums."""
    if ON_HETERO:
        torch.hetero.config.fusion = False
