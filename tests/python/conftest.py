"""Fixtures: each test starts seeded, on few threads, with nothing pending and default options."""

from __future__ import annotations

import os
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


# Tests that assert how the CPU does something when it is alone (fusion, growth in place, its memory, a fork before the
# first use), for suites that run with an accelerator in the environment.
CPU_ALONE = (
    "test_attention.py::test_the_kernels_are_ours",
    "test_compile.py::test_a_model_on_the_cpu_runs_on_the_device_and_its_results_come_back[lstm]",
    "test_compile.py::test_another",
    "test_compile.py::test_max_autotune_plans_each_size",
    "test_compile.py::test_recording_goes_on_across_a_graph_break",
    "test_compile.py::test_training_is_close",
    "test_compile.py::test_training_leaves_no_memory_behind",
    "test_compile.py::test_training_with_other_sizes",
    "test_config.py::test_jit_compiles",
    "test_fork.py::test_a_child_forked_before_first_use",
    "test_growth.py",
    "test_losses.py",
    "test_memory.py",
    "test_overlap.py",
    "test_patterns.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("HETERO_ACCELERATOR", "none") == "none":
        return
    skip = pytest.mark.skip(reason="asserts what happens without an accelerator")
    for item in items:
        if any(f"/{name}" in item.nodeid for name in CPU_ALONE):
            item.add_marker(skip)


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
