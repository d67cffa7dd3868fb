"""For all suites of pytest: the device under test, the machines that tests run on, and how many sets of parameters."""

from __future__ import annotations

import gc
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "python"))

if os.environ.get("HETERO_TEST_DEVICE", "hetero") == "cpu":
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import pytest
import torch
from helpers import ON_HETERO
from machines import MACHINES, accelerator, apply_host_kernels, host_kernels, on_machine, runs_of


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--sample",
        type=int,
        default=0,
        help="of each test with more sets of parameters than this, run so many, always the same; 0: all",
    )
    parser.addoption(
        "--machines",
        choices=["", "all", *MACHINES],
        default="",
        help="also run what tests/python/machines.py says on all other machines, or only that, on one of them",
    )
    parser.addoption(
        "--all-parameters", action="store_true", help="on other machines, run all sets of parameters of each test"
    )


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        torch.set_num_threads(1)
    if not host_kernels():
        apply_host_kernels()


@pytest.fixture(autouse=True)
def machine(request: pytest.FixtureRequest) -> Iterator[str]:
    """The machine on which the test runs; "" where it is what the environment says."""
    name = getattr(request, "param", "")
    if not name:
        yield name
        return
    with on_machine(name):
        yield name
        torch.hetero.flush()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    chosen = metafunc.config.getoption("--machines")
    if not chosen or not ON_HETERO:
        return
    path = str(metafunc.definition.path.relative_to(metafunc.config.rootpath))
    names = list(runs_of(path, chosen))
    here = [""] if chosen == "all" else []
    if names or here != [""]:
        metafunc.parametrize("machine", [*here, *names], ids=[name or "here" for name in [*here, *names]], indirect=True)


def pytest_collection_finish() -> None:
    # PyTorch and the tests are millions of objects, which each collection of garbage would visit.
    gc.collect()
    gc.freeze()


def machine_of(item: pytest.Item) -> str:
    """The machine on which an item runs; "" where it is what the environment says."""
    return item.callspec.params.get("machine", "") if hasattr(item, "callspec") else ""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # A test that does not run on the chosen machine has no machine.
    there = [item for item in items if machine_of(item) in ("", *MACHINES)]
    kept = sampled(there, config.getoption("--sample"), config.getoption("--all-parameters"))
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    # One machine after the other: a process seldom moves to another.
    order = ["", *MACHINES]
    items[:] = sorted((item for item in items if item in kept), key=lambda item: order.index(machine_of(item)))
    if accelerator() == "cuda" and not torch.cuda.is_available():
        for item in items:
            item.add_marker(pytest.mark.skip(reason="HETERO_ACCELERATOR=cuda, and there is no GPU"))


def sampled(items: list[pytest.Item], sample: int, all_parameters: bool) -> set[pytest.Item]:
    """At most so many of the items of each test function on each machine, chosen by the function's name."""
    functions: dict[tuple[str, str], list[pytest.Item]] = {}
    for item in items:
        functions.setdefault((item.nodeid.split("[")[0], machine_of(item)), []).append(item)
    kept: set[pytest.Item] = set()
    for (function, machine), of_function in functions.items():
        most = sample
        if machine and not all_parameters:
            most = runs_of(function, machine)[machine] or sample
        most = min(most or len(of_function), len(of_function))
        kept.update(random.Random(function).sample(of_function, most))
    return kept
