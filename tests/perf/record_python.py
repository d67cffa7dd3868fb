"""`x + y` on 16 floats from Python: recording alone, against running it on CPU."""

from __future__ import annotations

import torch

from tests.perf.measure import DEVICE, Row, alternate, main, timed_row

CALLS = 1000
BAR = 0.5


def measure() -> list[Row]:
    """Two rows: with autograd's bookkeeping, and in inference mode."""
    rows = []
    for inference in (False, True):
        with torch.inference_mode(inference):
            x, y = torch.randn(16), torch.randn(16)
            there_x, there_y = x.to(DEVICE), y.to(DEVICE)
            subjects = {
                "hetero": lambda a=there_x, b=there_y: a + b,
                "eager": lambda a=x, b=y: a + b,
            }
            times = alternate(subjects, calls=CALLS)
        mode = "inference_mode" if inference else "grad mode"
        rows.append(timed_row(f"x + y, 16 floats, recorded only, {mode}", times, BAR, "ns"))
    return rows


if __name__ == "__main__":
    main(measure)
