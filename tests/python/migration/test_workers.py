"""DataLoader workers: same bytes by fork, spawn and forkserver, no device in children, errors that arrive, counters summed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import ROOT, needs_hetero
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

pytestmark = needs_hetero

cv2 = pytest.importorskip("cv2")

from torch_hetero import _C  # noqa: E402
from torch_hetero.migration import PipelineMigrator, session  # noqa: E402
from torch_hetero.migration.context import current_key  # noqa: E402

PLAN = {"cv2.flip": "hetero", "torch.from_numpy": "hetero"}


def uses_of_devices() -> int:
    """How many operators this process recorded; a large number with a CUDA context."""
    return sum(_C.counters()["nodes"].values()) + 10**6 * torch.cuda.is_initialized()


class Pictures(Dataset):
    """Images that are flipped at random, as random crops would be: the number of steps differs between samples."""

    def __init__(self, count: int = 8, broken: int = -1, large: bool = False) -> None:
        self.count, self.broken, self.large = count, broken, large

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        before = uses_of_devices()
        random = np.random.default_rng(index)
        size = (64, 48, 3) if self.large else (16, 12, 3)
        image = cv2.flip(random.integers(0, 256, size, dtype=np.uint8), 1)
        if index % 2:
            image = cv2.flip(image, 0)
        if self.large:
            image = image[::4, ::4]
        if index == self.broken:
            image = cv2.flip(image.reshape(-1, 2, 3, 2), 1)
        pixels = (image.astype(np.float32) / 255 - np.float32(0.5)).transpose(2, 0, 1)
        tensor = torch.from_numpy(pixels)
        return {"pixels": tensor, "image": image, "index": index, "uses": uses_of_devices() - before}


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        information = get_worker_info()
        first, step = (0, 1) if information is None else (information.id, information.num_workers)
        return (Pictures()[index] for index in range(first, 8, step))


def batches(dataset: Any = None, **options: Any) -> list[dict[str, torch.Tensor]]:
    loader = DataLoader(dataset or Pictures(), batch_size=4, **options)
    return [{name: entry.cpu() for name, entry in batch.items()} for batch in loader]


def assert_equal(got: list[Any], want: list[Any]) -> None:
    assert len(got) == len(want)
    for left, right in zip(got, want, strict=True):
        assert left.keys() == right.keys()
        for name in left:
            if name != "uses":
                assert left[name].dtype == right[name].dtype and torch.equal(left[name], right[name]), name


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_the_same_and_computed_by_the_parent(workers: int) -> None:
    want = batches()
    with PipelineMigrator(PLAN) as migrator:
        got = batches(num_workers=workers)
    assert_equal(got, want)
    counts = migrator.report.total()["cv2.flip"]
    assert (counts.device_calls, counts.cpu_calls, counts.host_calls) == (12, 0, 0)
    assert counts.batches == 6  # in each of two batches: those with two flips, then their second one, and the others
    if workers:
        assert all((batch["uses"] == 0).all() for batch in got)


@pytest.mark.parametrize(
    "options", [{"persistent_workers": True}, {"pin_memory": True}, {"prefetch_factor": 4}, {"timeout": 60}]
)
def test_options_of_the_loader_make_no_difference(options: dict[str, Any]) -> None:
    want = batches()
    with PipelineMigrator(PLAN):
        loader = DataLoader(Pictures(), batch_size=4, num_workers=2, **options)
        for _ in range(2):
            assert_equal([{name: entry.cpu() for name, entry in batch.items()} for batch in loader], want)


def test_streams_are_shipped_as_well() -> None:
    want = sorted(index for batch in batches(Stream(), num_workers=2) for index in batch["index"].tolist())
    with PipelineMigrator(PLAN) as migrator:
        got = batches(Stream(), num_workers=2)
    assert sorted(index for batch in got for index in batch["index"].tolist()) == want
    assert migrator.report.total()["cv2.flip"].device_calls == 12


def test_the_smallest_bytes_travel() -> None:
    """A crop to a sixteenth is computed by the worker; the parent gets that, and does the rest."""
    want = batches(Pictures(large=True))
    with PipelineMigrator(PLAN) as migrator:
        assert_equal(batches(Pictures(large=True), num_workers=2), want)
    total = migrator.report.total()
    assert total["cv2.flip"].device_calls == 0 and total["cv2.flip"].host_calls == 12
    assert total["numpy.ndarray.astype"].device_calls == 8


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_in_a_dataset_arrives_and_the_next_epoch_works(workers: int) -> None:
    with PipelineMigrator(PLAN):
        with pytest.raises(cv2.error):
            batches(Pictures(broken=5), num_workers=workers)
        assert len(batches(num_workers=workers)) == 2


BACKGROUND: list[Any] = []


def prepare_worker(worker: int) -> None:
    """What each worker needs for its samples."""
    BACKGROUND[:] = [cv2.flip(np.full((4, 4, 3), worker + 1, np.uint8), 0), current_key()]


class Pairs(Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        image = cv2.flip(np.full((4, 4, 3), index, np.uint8), 1)
        return torch.from_numpy(image), torch.from_numpy(BACKGROUND[0])


@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}])
def test_what_a_worker_prepares_is_part_of_its_samples(options: dict[str, Any]) -> None:
    """A handle that `worker_init_fn` made travels with each batch that needs it; its call has a context."""

    def loaded() -> list[Any]:
        loader = DataLoader(Pairs(), batch_size=2, num_workers=2, worker_init_fn=prepare_worker, **options)
        return [torch.stack(pair).cpu() for _ in range(2) for pair in loader]

    want = loaded()
    plan = {**PLAN, "prepare_worker/cv2.flip": "hetero"}
    with PipelineMigrator(plan) as migrator:
        got = loaded()
    assert all(map(torch.equal, got, want))
    counts = migrator.report.total()
    prepared = counts["test_workers.prepare_worker/cv2.flip"]
    assert (prepared.cpu_calls, prepared.host_calls) == (0, 0)
    assert prepared.device_calls == 8  # in each of four batches and two epochs
    assert counts["cv2.flip"].device_calls == 16


def test_a_collate_function_of_the_program_may_read_or_stack() -> None:
    def stacks(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        return {"pixels": torch.stack([sample["pixels"] for sample in samples])}

    def reads(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        return {"pixels": torch.tensor([float(np.asarray(sample["image"]).sum()) for sample in samples])}

    for collate in (stacks, reads):
        want = batches(collate_fn=collate)
        with PipelineMigrator(PLAN):
            assert_equal(batches(num_workers=2, collate_fn=collate), want)
            assert_equal(batches(collate_fn=collate), want)


def test_counters_of_workers_are_summed() -> None:
    with PipelineMigrator({**PLAN, "cv2.flip": {"mode": "cpu"}}) as migrator:
        batches(num_workers=2)
    assert migrator.report.total()["cv2.flip"].fallbacks == {"the plan keeps it on the CPU": 12}


def test_a_child_that_is_forked_computes_by_the_originals() -> None:
    image = np.random.default_rng(0).integers(0, 256, (5, 4, 3), dtype=np.uint8)
    with PipelineMigrator(PLAN):
        recorded = cv2.flip(image, 1)
        child = os.fork()
        if child == 0:
            right = not session.on_device_here() and np.array_equal(recorded, image[:, ::-1])
            os._exit(0 if right else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert np.array_equal(recorded, image[:, ::-1])


PROGRAM = """
import sys, warnings
import numpy as np, torch, cv2
from cv2 import flip as mirrored
from torch.utils.data import DataLoader, Dataset

class Pictures(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        image = np.random.default_rng(index).integers(0, 256, (6, 5, 3), dtype=np.uint8)
        image = mirrored(cv2.flip(image, 1), 0)
        if index == 6 and len(sys.argv) > 3:
            raise KeyError("sample 6")
        return torch.from_numpy(image.astype(np.float32) / 255), torch.cuda.is_initialized()

def total(method):
    loader = DataLoader(Pictures(), batch_size=4, num_workers=2, multiprocessing_context=method)
    return torch.cat([pixels.cpu() for pixels, used in loader if not used.any()])

if __name__ == "__main__":
    want = total("fork")
    from torch_hetero.migration import PipelineMigrator
    with PipelineMigrator({"cv2.flip": "hetero", "torch.from_numpy": "hetero"}) as migrator:
        try:
            assert torch.equal(total(sys.argv[1]), want)
        except KeyError as error:
            print("KeyError", "sample 6" in str(error))
    counts = migrator.report.total()["cv2.flip"]
    print(counts.device_calls, counts.cpu_calls)
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("fails", [False, True])
def test_children_that_are_not_forked_activate_the_plan(method: str, fails: bool, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    arguments = [sys.executable, str(program), method, "x"] + ["fails"] * fails
    if fails:
        program.write_text(PROGRAM.replace('want = total("fork")', "want = None"))
    done = subprocess.run(
        arguments, capture_output=True, text=True, cwd=ROOT, timeout=300, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[:2] == (["KeyError", "True"] if fails else ["16", "0"]), done.stdout + done.stderr
    assert not re.search("Traceback|Warning", done.stderr), done.stderr


def test_neither_a_process_nor_a_migrator_that_is_gone_leaves_a_folder(tmp_path: Path) -> None:
    program = """
import gc, os, PIL.Image
from torch_hetero.migration import PipelineMigrator
def folders(): return [name for name in os.listdir(os.environ["TMPDIR"]) if name.startswith("hetero-migration-")]
with PipelineMigrator({"PIL.Image.Image.rotate": "hetero"}) as first:
    first.report.directory.stat()
assert len(folders()) == 1
del first
gc.collect()
assert not folders()
last = PipelineMigrator({"PIL.Image.Image.rotate": "hetero"}).activate()
assert len(folders()) == 1
"""
    done = subprocess.run([sys.executable, "-c", program], env=os.environ | {"TMPDIR": str(tmp_path)}, capture_output=True,
                          text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.glob("hetero-migration-*"))
