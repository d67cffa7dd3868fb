"""Each test runs on the machine whose name it has, and the lists of what is left out name tests that exist."""

from __future__ import annotations

import os
import re
from pathlib import Path

import machines
import pytest
import torch
from counters import snapshot
from helpers import needs_hetero, run_python_ok

pytestmark = needs_hetero
FOLDER = Path(machines.__file__).parent


@pytest.mark.parametrize("name", machines.MACHINES)
def test_a_machine_holds_in_this_process_and_in_those_it_starts(name: str) -> None:
    before = (dict(os.environ), torch.hetero.config.as_dict())
    ask = "import torch; print(torch.hetero.config.accelerator, torch.hetero.config.fusion)"
    with machines.on_machine(name):
        variables = machines.MACHINES[name]
        config = torch.hetero.config
        assert (config.accelerator, config.placement) == (variables["HETERO_ACCELERATOR"], variables["HETERO_PLACEMENT"])
        assert config.memory_budget == 16 << 20
        assert config.verify_plans and config.fusion == (variables["HETERO_FUSION"] == "1")
        assert machines.host_kernels() == ("HETERO_TEST_HOST_KERNELS" not in variables)
        assert run_python_ok(ask) == f"{config.accelerator} {config.fusion}\n"
        kernels = snapshot()["kernels"]["accelerator"]
        x = torch.ones(64, device="hetero")
        for _ in range(64):
            x = x * 1.01
        x.cpu()
        assert config.fusion or snapshot()["kernels"]["accelerator"] > kernels
    assert (dict(os.environ), torch.hetero.config.as_dict()) == before


def test_this_test_runs_where_its_name_says(machine: str) -> None:
    if machine:
        assert torch.hetero.config.accelerator == machines.MACHINES[machine]["HETERO_ACCELERATOR"]


@pytest.mark.parametrize("run", machines.RUNS, ids=lambda run: f"{run.machine} {run.tests}")
def test_every_run_has_tests(run: machines.Run) -> None:
    assert (FOLDER.parents[1] / run.tests).exists()
    assert run.machine in machines.runs_of(run.tests, "all")


@pytest.mark.parametrize("tests", machines.ONCE)
def test_what_runs_once_exists_and_runs_on_a_machine_that_is_named(tests: str) -> None:
    assert (FOLDER.parents[1] / tests).exists()
    assert not machines.runs_of(tests, "all") and "two_devices" in machines.runs_of(tests, "two_devices")


@pytest.mark.parametrize("test", [*machines.CPU_ALONE, *machines.BITS_OF_HOST_KERNELS])
def test_what_is_left_out_exists(test: str) -> None:
    name, _, function = test.partition("::")
    (file,) = FOLDER.glob(f"*/{name}")
    assert re.search(rf"^def {re.escape(function.split('[')[0])}", file.read_text(), re.M)
