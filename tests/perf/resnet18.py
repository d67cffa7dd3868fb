"""One training step of resnet18, batch 8, 64 by 64: time, and peak memory above the model's own."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from tests.perf.measure import DEVICE, Row, alternate, flush, main, timed_row

BATCH, PIXELS = 8, 64
TIME_BAR = MEMORY_BAR = 1.1


class Step:
    """A model with its optimizer and data; a call is one whole step, which ends when the parameters are updated."""

    def __init__(self, device: str) -> None:
        import models

        self.model = models.resnet18().to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self.inputs = torch.randn(BATCH, 3, PIXELS, PIXELS).to(device)
        self.targets = torch.randint(10, (BATCH,)).to(device)

    def __call__(self) -> float:
        self.optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(self.model(self.inputs), self.targets)
        loss.backward()
        self.optimizer.step()
        value = loss.item()
        flush()
        return value


def hetero_peak(step: Step) -> float:
    """Median over three steps of the bytes taken above what was held before the step."""
    peaks = []
    for _ in range(3):
        step.optimizer.zero_grad()
        flush()
        before = torch.hetero.memory_allocated()
        torch.hetero.reset_peak_memory_stats()
        step()
        peaks.append(torch.hetero.max_memory_allocated() - before)
    return statistics.median(peaks)


def cpu_peak(step: Step) -> float:
    """The same of eager, by the storages that are alive at once."""
    from eager_memory import eager_peak

    step.optimizer.zero_grad()
    run: Callable[[], object] = step
    return eager_peak(run)


def measure() -> list[Row]:
    """Two rows: milliseconds of a step, and MiB of its peak."""
    there, here = Step(DEVICE), Step("cpu")
    seconds = alternate(there, here, rounds=11, warmup=2)
    what = f"resnet18 training step, batch {BATCH}, {PIXELS}x{PIXELS}"
    rows = [timed_row(what, seconds, TIME_BAR, "ms")]
    peer = cpu_peak(here)
    ours = hetero_peak(there) if DEVICE != "cpu" else peer
    rows.append(Row(f"{what}, peak", ours / 2**20, peer / 2**20, MEMORY_BAR, "MiB"))
    return rows


if __name__ == "__main__":
    main(measure)
