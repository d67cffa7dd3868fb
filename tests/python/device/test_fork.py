"""Processes: a forked child is told what to do, workers feed the parent, exits are clean."""

from __future__ import annotations

import pytest
import torch
from helpers import DEVICE, ON_HETERO, needs_hetero, run_python, run_python_ok
from torch.utils.data import DataLoader, Dataset, TensorDataset


class Squares(Dataset):
    """Sixteen small samples that a worker process makes on CPU."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((3,), float(index * index)), index


@needs_hetero
def test_a_forked_child_gets_a_clear_error_and_the_parent_goes_on() -> None:
    out = run_python_ok(
        """
        import os, torch
        value = torch.ones(3, device="hetero") + 1
        pid = os.fork()
        if pid == 0:
            try:
                torch.ones(2, device="hetero") + 1
                value.sum().item()
                os.write(1, b"child: no error\\n")
            except RuntimeError as error:
                os.write(1, f"child: {error}".splitlines()[0].encode() + b"\\n")
            os._exit(0)
        os.waitpid(pid, 0)
        print("parent:", value.sum().item(), flush=True)
        """
    )
    assert "parent: 6.0" in out
    assert "child: Cannot re-initialize hetero in forked subprocess" in out
    assert "spawn" in out


@needs_hetero
def test_a_forked_child_may_use_cpu_tensors_and_knows_that_it_is_forked() -> None:
    out = run_python_ok(
        """
        import os, torch
        value = torch.ones(3, device="hetero") + 1
        pid = os.fork()
        if pid == 0:
            bad = torch.hetero._is_in_bad_fork()
            os.write(1, f"{bad} {torch.arange(4.0).sum().item()}\\n".encode())
            torch.manual_seed(3)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        print(status, torch.hetero._is_in_bad_fork(), flush=True)
        """
    )
    assert out.split("\n")[:2] == ["True 6.0", "0 False"]


@needs_hetero
def test_a_child_forked_before_first_use_may_use_the_device() -> None:
    out = run_python_ok(
        """
        import os, torch
        pid = os.fork()
        if pid == 0:
            total = (torch.ones(3, device="hetero") + 1).sum().item()
            os.write(1, f"child {total}\\n".encode())
            os._exit(0)
        os.waitpid(pid, 0)
        """
    )
    assert out == "child 6.0\n"


SIM = {"HETERO_ACCELERATOR": "sim", "HETERO_PLACEMENT": "accelerator"}


@needs_hetero
def test_the_accelerator_of_the_environment_is_made_at_the_first_use() -> None:
    out = run_python_ok(
        """
        import torch
        core = torch.hetero._C
        print(torch.hetero.config.accelerator, core.accelerator_name(), core.accelerator_stats()["limit_bytes"])
        torch.ones(2, device="hetero")
        print(core.accelerator_stats()["limit_bytes"])
        """,
        {**SIM, "HETERO_MEMORY_BUDGET": "3MiB"},
    )
    assert out.split() == ["sim", "sim", "0", str(3 << 20)]


@needs_hetero
@pytest.mark.parametrize("chosen", ("environment", "option"))
def test_a_child_forked_before_first_use_has_an_accelerator_of_its_own(chosen: str) -> None:
    out = run_python_ok(
        """
        import os, torch
        from counters import snapshot
        torch.hetero.config.accelerator = "sim"
        torch.hetero.config.placement = "accelerator"
        def work(name):
            x = torch.eye(3).to("hetero") + 1
            total = (x @ x).sum().item()
            there = snapshot()["kernels"]["accelerator"] > 0
            os.write(1, f"{name} {total} {there}\\n".encode())
        def fork(name):
            pid = os.fork()
            if pid == 0:
                work(name)
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        for name in ("first", "second"):
            fork(name)
        work("parent")
        """,
        SIM if chosen == "environment" else {},
    )
    assert out == "first 48.0 True\nsecond 48.0 True\nparent 48.0 True\n"


@needs_hetero
def test_a_child_of_a_process_that_used_its_accelerator_is_told_what_to_do() -> None:
    out = run_python_ok(
        """
        import os, torch
        value = torch.ones(3, device="hetero") + 1
        pid = os.fork()
        if pid == 0:
            try:
                torch.ones(2, device="hetero")
            except RuntimeError as error:
                os.write(1, f"{error}\\n".encode())
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        print(value.sum().item())
        """,
        SIM,
    )
    assert "'spawn' start method" in out and out.endswith("6.0\n")


@needs_hetero
@pytest.mark.parametrize("environment", ({}, SIM), ids=("cpu", "sim"))
def test_dataloader_workers_use_the_device_that_the_parent_has_not_used(environment: dict[str, str]) -> None:
    out = run_python_ok(
        """
        import torch
        from torch.utils.data import DataLoader
        class Products(torch.utils.data.Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, index):
                return (torch.full((2, 2), float(index)).to("hetero") @ torch.eye(2).to("hetero")).sum().item()
        values = [v for batch in DataLoader(Products(), batch_size=2, num_workers=2) for v in batch.tolist()]
        print(values, (torch.ones(2, device="hetero") * 3).tolist())
        """,
        environment,
    )
    assert out == f"{[4.0 * i for i in range(8)]} [3.0, 3.0]\n"


@needs_hetero
def test_an_accelerator_that_the_machine_lacks_is_told_at_the_first_use_and_not_before() -> None:
    done = run_python(
        """
        import torch
        print("CPU:", torch.ones(3).sum().item(), flush=True)
        torch.ones(2, device="hetero")
        """,
        {"HETERO_ACCELERATOR": "cuda"},
    )
    if done.returncode == 0 or "CPU-only" in done.stderr:
        pytest.skip("there is a GPU, or the build has no CUDA, which is told at once")
    assert done.stdout == "CPU: 3.0\n"
    assert "cuda" in done.stderr


def test_a_spawned_process_uses_the_device() -> None:
    out = run_python_ok(
        """
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor
        import torch
        from helpers import sum_of_ones
        context = multiprocessing.get_context("spawn")
        here = (torch.ones(2, device=DEVICE) * 2).sum().item()
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            print(here, pool.submit(sum_of_ones, DEVICE).result())
        """
    )
    assert out.strip().endswith("4.0 6.0")


@pytest.mark.parametrize("ending", ("", "import sys; sys.exit(0)", "del value"))
def test_a_process_that_exits_with_work_pending_exits_cleanly(ending: str) -> None:
    out = run_python_ok(
        "import torch\n"
        "value = torch.randn(100, 100, device=DEVICE)\n"
        "for _ in range(20): value = value @ value\n"
        "print('recorded', flush=True)\n" + ending
    )
    assert out == "recorded\n"


def test_a_process_exits_cleanly_with_work_that_a_finished_thread_recorded() -> None:
    out = run_python_ok(
        """
        import threading, torch
        kept = []
        def work():
            value = torch.ones(8, 8, device=DEVICE)
            for _ in range(100):
                value = (value @ value).tanh()
            kept.append(value)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        print("recorded", flush=True)
        """
    )
    assert out == "recorded\n"


@pytest.mark.parametrize("workers", (0, 2))
def test_dataloader_batches_move_to_the_device(workers: int) -> None:
    warm = torch.ones(2, device=DEVICE) + 1
    totals = [
        (batch.to(DEVICE) * 2).sum().item() + indices.to(DEVICE).sum().item()
        for batch, indices in DataLoader(Squares(), batch_size=4, num_workers=workers)
    ]
    assert sum(totals) == 6 * sum(i * i for i in range(16)) + sum(range(16))
    assert warm.tolist() == [2.0, 2.0]


@needs_hetero
@pytest.mark.parametrize("workers", (0, 2))
def test_dataloader_pins_batches_for_the_device(workers: int) -> None:
    loader = DataLoader(Squares(), batch_size=4, num_workers=workers, pin_memory=True)
    total = 0.0
    for batch, _ in loader:
        assert batch.is_pinned()
        total += batch.to(DEVICE, non_blocking=True).sum().item()
    assert total == 3.0 * sum(i * i for i in range(16))


@needs_hetero
def test_pin_memory_makes_pinned_copies_with_the_same_values() -> None:
    source = torch.arange(100.0)
    pinned = source.pin_memory()
    assert pinned.is_pinned() and not source.is_pinned()
    assert pinned.device.type == "cpu" and torch.equal(pinned, source)
    assert torch.empty(3, pin_memory=True).is_pinned()


def test_a_dataset_of_device_tensors_loads_without_workers() -> None:
    data = TensorDataset(torch.arange(8.0, device=DEVICE), torch.arange(8, device=DEVICE))
    batches = [(x * y).sum().item() for x, y in DataLoader(data, batch_size=3)]
    assert batches == [5.0, 50.0, 85.0]


def test_dataloader_shuffling_does_not_depend_on_the_device() -> None:
    def order() -> list[int]:
        torch.manual_seed(11)
        if ON_HETERO:
            torch.rand(5, device=DEVICE)
        loader = DataLoader(Squares(), batch_size=1, shuffle=True)
        return [int(index) for _, index in loader]

    first = order()
    assert sorted(first) == list(range(16)) and first == order()
