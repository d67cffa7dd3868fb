"""Tensors that have no room in the host's memory leave it for a file, and come back when they are needed."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import subprocess
import threading
import time
from pathlib import Path

import pytest
import torch
from counters import snapshot
from helpers import DEVICE, assert_same, fresh, needs_hetero, run_python, start_python
from torch import nn

pytestmark = needs_hetero

MIB = 1 << 20


@pytest.fixture(autouse=True)
def limited(tmp_path: Path) -> Path:
    """Room for four tensors of 4 MiB beside what is there already, and a folder."""
    torch.hetero.empty_cache()
    torch.hetero.config.spill = str(tmp_path)
    torch.hetero.config.memory_limit = torch.hetero.memory_allocated() + 16 * MIB
    yield tmp_path
    torch.hetero._C.set_spill_faults(-1, False)


@pytest.fixture
def on_the_cpu() -> None:
    """Also where there is an accelerator, whose copies would serve in place of a file."""
    torch.hetero.config.placement = "cpu"


def tensors(count: int) -> list[torch.Tensor]:
    made = [fresh(torch.full((MIB,), float(i))) + 1 for i in range(count)]
    for tensor in made:
        tensor[0].item()
    return made


def spilled() -> int:
    return snapshot()["storages_spilled"]


def test_more_tensors_than_memory_keep_their_values(limited: Path) -> None:
    before = spilled()
    kept = tensors(12)
    assert spilled() > before
    for _ in range(2):
        for i, tensor in enumerate(kept):
            assert tensor.sum().item() == (i + 1) * MIB
    for i, tensor in enumerate(kept):
        assert_same(tensor.cpu(), torch.full((MIB,), float(i + 1)))
    core = torch.hetero._C
    on_host = core.memory_stats()["allocated_bytes"] - core.accelerator_stats()["allocated_bytes"]
    assert on_host <= torch.hetero.config.memory_limit
    assert list(limited.iterdir()) == []


@pytest.fixture
def host_only() -> None:
    """All tensors are in the host's memory, and go to the file."""
    torch.hetero.config.accelerator = "none"


@pytest.mark.parametrize("first", ["spill", "memory_limit"])
def test_tensors_that_were_made_before_the_options_were_set_leave(first: str, limited: Path, host_only: None) -> None:
    config = torch.hetero.config
    config.spill = ""
    config.memory_limit = 0
    model = nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(16)])
    weights = [layer.weight.detach().clone() for layer in model]
    x = torch.randn(2, 512)
    expected = model(x)
    model = model.to(DEVICE)
    torch.hetero.flush()
    options = {"spill": str(limited), "memory_limit": torch.hetero.memory_allocated() - 8 * MIB}
    setattr(config, first, options.pop(first))
    for name, value in options.items():
        setattr(config, name, value)
    before = spilled()
    for _ in range(2):
        y = x.to(DEVICE)
        for layer in model:
            y = layer(y)
            torch.hetero.flush()
        torch.testing.assert_close(y.cpu(), expected)
    assert spilled() >= before + 8
    assert torch.hetero.memory_allocated() <= config.memory_limit
    for layer, weight in zip(model, weights, strict=True):
        assert_same(layer.weight.detach().cpu(), weight)


@pytest.mark.parametrize("kib", [4, 62])
def test_small_tensors_leave_where_no_large_one_can(kib: int, limited: Path, host_only: None) -> None:
    config = torch.hetero.config
    config.memory_limit = torch.hetero.memory_allocated() + 4 * MIB
    count = 12 * 1024 // kib
    before = spilled()
    kept = []
    for i in range(count):
        kept.append(torch.full((kib * 256,), float(i), device=DEVICE))
        torch.hetero.flush()
    assert spilled() - before >= count * 2 // 3
    assert torch.hetero.memory_allocated() <= config.memory_limit
    assert len(files_in(limited)) == 1
    for i, tensor in enumerate(kept):
        assert_same(tensor.cpu(), torch.full((kib * 256,), float(i)))
    assert torch.hetero.memory_allocated() <= config.memory_limit


def test_small_tensors_stay_where_large_ones_can_leave() -> None:
    small = [torch.full((256,), float(i), device=DEVICE).repeat(16) for i in range(8)]
    torch.hetero.flush()
    kept = tensors(8)
    before = spilled()
    assert [tensor[1].item() for tensor in small] == list(range(8))
    # They were used longest ago, and nothing of them had to come back.
    assert spilled() == before
    assert kept[0].sum().item() == MIB


def test_many_tensors_need_one_descriptor_and_their_space_is_given_back(limited: Path, host_only: None) -> None:
    torch.hetero.config.memory_limit = torch.hetero.memory_allocated() + 4 * MIB
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(name) for name in os.listdir("/proc/self/fd")) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 8, hard))
    try:
        kept = []
        for i in range(256):
            kept.append(torch.full((16 << 10,), float(i), device=DEVICE))
            torch.hetero.flush()
        (file,) = files_in(limited)
        on_disk = os.fstat(file).st_blocks * 512
        assert on_disk >= 11 * MIB
        for i, tensor in enumerate(kept):
            assert tensor[-1].item() == i
        assert [int(tensor.sum().item()) for tensor in kept[:80]] == [i << 14 for i in range(80)]
        del kept[40:]
        assert os.fstat(file).st_blocks * 512 <= 3 * MIB
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [tensor[7].item() for tensor in kept] == list(range(40))
    del kept, tensor
    assert files_in(limited) == []


def test_a_disk_that_is_full_in_the_middle_of_a_write_is_told_and_nothing_is_lost(
    limited: Path, on_the_cpu: None
) -> None:
    kept = tensors(3)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6 * MIB, hard))
    try:
        with pytest.raises(torch.OutOfMemoryError):
            for _ in range(8):
                kept += tensors(1)
        assert len(files_in(limited)) == 1
        assert kept[-1].sum().item() == MIB
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    kept += tensors(4)
    assert [int(tensor.sum().item()) for tensor in kept[:3]] == [MIB, 2 * MIB, 3 * MIB]
    assert all(tensor[3].item() == 1 for tensor in kept[3:-4])


def test_a_relative_folder_stays_the_one_it_was(
    limited: Path, monkeypatch: pytest.MonkeyPatch, on_the_cpu: None
) -> None:
    (limited / "below").mkdir()
    monkeypatch.chdir(limited)
    torch.hetero.config.spill = "below"
    monkeypatch.chdir("/")
    assert torch.hetero.config.spill == str(limited / "below")
    kept = tensors(8)
    assert len(files_in(limited / "below")) == 1
    assert [int(tensor.sum().item()) for tensor in kept] == [(i + 1) * MIB for i in range(8)]


def test_without_a_folder_there_is_an_error_and_nothing_is_lost() -> None:
    torch.hetero.config.spill = ""
    kept = tensors(2)
    with pytest.raises(torch.OutOfMemoryError):
        tensors(12)
    assert kept[0].sum().item() == MIB


def test_written_viewed_and_resized_tensors_come_back() -> None:
    kept = tensors(10)
    kept[0].add_(1)
    kept[1][:10] = 7
    view = kept[2].view(1024, 1024)[3]
    assert view.sum().item() == 3 * 1024
    assert kept[0].sum().item() == 2 * MIB
    assert kept[1].sum().item() == 2 * (MIB - 10) + 70
    kept[3].untyped_storage().resize_(8)
    assert kept[3].untyped_storage().nbytes() == 8
    kept[4].set_()
    assert kept[5].sum().item() == 6 * MIB


def test_what_numpy_shares_stays() -> None:
    shared = tensors(1)[0]
    array = shared.cpu().numpy() if shared.device.type == "cpu" else torch.hetero._C.host_view(shared).numpy()
    tensors(10)
    array[0] = 123.0
    assert shared[0].item() == 123.0


def test_a_disk_that_fails_is_told_and_nothing_is_lost(on_the_cpu: None) -> None:
    kept = tensors(10)
    torch.hetero._C.set_spill_faults(0, True)
    failed = 0
    for tensor in kept:
        try:
            tensor.sum().item()
        except RuntimeError as error:
            assert "spill" in str(error) or "memory" in str(error)
            failed += 1
    assert failed > 0
    torch.hetero._C.set_spill_faults(-1, False)
    for i, tensor in enumerate(kept):
        assert tensor.sum().item() == (i + 1) * MIB


@pytest.mark.parametrize("accelerator", ["none", "sim"])
def test_threads_use_what_others_make_leave(accelerator: str) -> None:
    torch.hetero.config.accelerator = accelerator
    # Too little memory on both devices: what a program is about to use must stay where it is.
    torch.hetero.config.placement = "mixed"
    torch.hetero.config.memory_budget = 16 * MIB
    kept = tensors(8)
    errors: list[Exception] = []

    def work(first: int) -> None:
        try:
            for round_ in range(20):
                i = (first + round_) % 8
                assert kept[i].sum().item() == (i + 1) * MIB
                assert kept[i][5].cpu().item() == i + 1
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(3 * i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_with_an_accelerator_its_copy_serves() -> None:
    torch.hetero.config.accelerator = "sim"
    torch.hetero.config.placement = "accelerator"
    kept = tensors(12)
    for i, tensor in enumerate(kept):
        assert (tensor * 2).sum().item() == 2 * (i + 1) * MIB


def test_a_process_that_is_killed_leaves_no_file(tmp_path: Path) -> None:
    code = f"""
        import os, signal, torch
        torch.hetero.config.memory_limit = 16 << 20
        torch.hetero.config.spill = {str(tmp_path)!r}
        kept = [torch.full((1 << 20,), float(i)).to("hetero") + 1 for i in range(10)]
        for tensor in kept:
            tensor[0].item()
        assert torch.hetero.explain().storages_spilled > 0
        os.kill(os.getpid(), signal.SIGKILL)
    """
    assert run_python(code).returncode == -9
    assert list(tmp_path.iterdir()) == []


# The work stays on the CPU: a copy on the accelerator would serve, and nothing would be written.
SPILLING_FOR_EVER = """
    import os, torch
    torch.hetero.config.memory_limit = 16 << 20
    torch.hetero.config.spill = {folder!r}
    torch.hetero.config.placement = "cpu"
    kept = [torch.full((1 << 20,), float(i)).to("hetero") + 1 for i in range(10)]
    started = False
    while True:
        for tensor in kept:
            tensor.add_(1).sum().item()
        if not started and torch.hetero._C.spill_operations() > 20:
            started = True
            os.write(1, b"spilling\\n")
"""


def test_processes_that_are_killed_while_they_write_leave_no_file(tmp_path: Path) -> None:
    processes = [start_python(SPILLING_FOR_EVER.format(folder=str(tmp_path))) for _ in range(3)]
    try:
        for process in processes:
            assert first_line_of(process) == "spilling\n"
        # At that moment the files are open, have no name, and grow.
        for process in processes:
            assert process.poll() is None
            assert any(str(tmp_path) in name for name in open_files(process.pid))
    finally:
        for i, process in enumerate(processes):
            # Not all at the same point of a write.
            time.sleep(0.013 * i)
            process.kill()
            process.communicate()
    assert [process.returncode for process in processes] == [-9, -9, -9]
    assert list(tmp_path.iterdir()) == []


def first_line_of(process: subprocess.Popen[str]) -> str:
    """What the process says first, or nothing where it has not spoken within two minutes."""
    said, _, _ = select.select([process.stdout], [], [], 120)
    return process.stdout.readline() if said else ""


def files_in(folder: Path) -> list[int]:
    """This process's descriptors of files in the folder."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            if os.readlink(f"/proc/self/fd/{name}").startswith(f"{folder}/"):
                found.append(int(name))
    return found


def open_files(process: int) -> list[str]:
    names = []
    for file in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            names.append(os.readlink(file))
    return names


def test_a_folder_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="spill"):
        torch.hetero.config.spill = "/nonexistent/folder"
    assert DEVICE == "hetero"


@pytest.mark.parametrize("folder", ("/proc", "/no/such/folder"))
def test_a_folder_without_files_is_refused(folder: str, limited: Path) -> None:
    with pytest.raises(ValueError, match=f"spill.*{folder}"):
        torch.hetero.config.spill = folder
    assert torch.hetero.config.spill == str(limited)
