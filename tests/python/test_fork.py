"""Processes: a forked child is told what to do, workers feed the parent, exits are clean."""

from __future__ import annotations

import pytest
import torch
from helpers import DEVICE, ON_HETERO, needs_hetero, run_python_ok
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
