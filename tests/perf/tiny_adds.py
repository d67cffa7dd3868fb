"""A thousand dependent tiny additions: recorded, run and read back."""

from __future__ import annotations

import torch

from tests.perf.measure import DEVICE, Row, alternate, main, timed_row

COUNT = 1000
BAR = 1.2


def add_and_read(x: torch.Tensor) -> list[float]:
    y = x
    for _ in range(COUNT):
        y = y + x
    return y.tolist()


def measure() -> list[Row]:
    """One row, in milliseconds for the whole chain."""
    x = torch.randn(16)
    there = x.to(DEVICE)
    with torch.no_grad():
        seconds = alternate(lambda: add_and_read(there), lambda: add_and_read(x), rounds=31)
    return [timed_row("1,000 dependent tiny adds, run and read", seconds, BAR, "ms")]


if __name__ == "__main__":
    main(measure)
