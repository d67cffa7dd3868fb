"""Fixtures: each test starts seeded, on few threads, with nothing pending and default options."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

if os.environ.get("HETERO_TEST_DEVICE", "hetero") == "cpu":
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
from helpers import DEVICE, ON_HETERO, OPTIONS


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        torch.set_num_threads(1)
    if not HOST_KERNELS:
        torch.hetero._C.set_sim_options([("host_kernels", 0.0)])


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
HOST_KERNELS = os.environ.get("HETERO_TEST_HOST_KERNELS", "1") != "0"
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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--sample",
        type=int,
        default=0,
        help="of each test with more sets of parameters than this, run so many, always the same; 0: all",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    sample = config.getoption("--sample")
    if sample > 0:
        kept = sampled(items, sample)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]
    accelerator = os.environ.get("HETERO_ACCELERATOR", "none")
    if accelerator == "none":
        return
    if accelerator == "cuda" and not torch.cuda.is_available():
        for item in items:
            item.add_marker(pytest.mark.skip(reason="HETERO_ACCELERATOR=cuda, and there is no GPU"))
        return
    for item in items:
        for name, reason in CPU_ALONE.items():
            if f"/{name}" in item.nodeid:
                item.add_marker(pytest.mark.skip(reason=f"without an accelerator: {reason}"))
        for name, reason in BITS_OF_HOST_KERNELS.items():
            if not HOST_KERNELS and f"/{name}" in item.nodeid:
                item.add_marker(pytest.mark.skip(reason=f"with the CPU's kernels: {reason}"))


def sampled(items: list[pytest.Item], most: int) -> set[pytest.Item]:
    """At most so many of the items of each test function, chosen by its name."""
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        functions.setdefault(item.nodeid.split("[")[0], []).append(item)
    kept: set[pytest.Item] = set()
    for name, of_function in functions.items():
        kept.update(random.Random(name).sample(of_function, min(most, len(of_function))))
    return kept


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
    before = {name: getattr(config, name) for name in OPTIONS}
    yield
    for name, value in before.items():
        if getattr(config, name) != value:
            setattr(config, name, value)
    torch.hetero.flush()


@pytest.fixture
def unfused() -> None:
    """Without fusion: a program that was seen before has eager's bits also where it sums."""
    if ON_HETERO:
        torch.hetero.config.fusion = False
