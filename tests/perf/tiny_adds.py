"""A thousand dependent tiny additions from Python: recorded, run and read back. record_cpp.py has the same in C++."""

from __future__ import annotations

import torch

from tests.perf.measure import DEVICE, Row, alternate, main, timed_row

COUNT = 1000
BAR = 0.6


def add_and_read(x: torch.Tensor) -> list[float]:
    """COUNT additions of 16 floats, each of the result before."""
    y = x
    for _ in range(COUNT):
        y = y + x
    return y.tolist()


def measure() -> list[Row]:
    """Two rows, for the whole chain: without gradients, and in inference mode."""
    rows = []
    for mode, guard in (("no_grad", torch.no_grad), ("inference_mode", torch.inference_mode)):
        with guard():
            x = torch.randn(16)
            there = x.to(DEVICE)
            times = alternate({"hetero": lambda t=there: add_and_read(t), "eager": lambda t=x: add_and_read(t)})
        rows.append(timed_row(f"1,000 dependent tiny adds from Python, run and read, {mode}", times, BAR, "ms"))
    return rows


if __name__ == "__main__":
    main(measure)
