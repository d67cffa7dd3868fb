"""For all suites of pytest: the device under test, the accelerator that the environment names, and `--sample`."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "python"))

if os.environ.get("HETERO_TEST_DEVICE", "hetero") == "cpu":
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import pytest
import torch
from helpers import ACCELERATOR, HOST_KERNELS


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        torch.set_num_threads(1)
    if not HOST_KERNELS:
        torch.hetero._C.set_sim_options([("host_kernels", 0.0)])


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
    if ACCELERATOR == "cuda" and not torch.cuda.is_available():
        for item in items:
            item.add_marker(pytest.mark.skip(reason="HETERO_ACCELERATOR=cuda, and there is no GPU"))


def sampled(items: list[pytest.Item], most: int) -> set[pytest.Item]:
    """At most so many of the items of each test function, chosen by its name."""
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        functions.setdefault(item.nodeid.split("[")[0], []).append(item)
    kept: set[pytest.Item] = set()
    for name, of_function in functions.items():
        kept.update(random.Random(name).sample(of_function, min(most, len(of_function))))
    return kept
