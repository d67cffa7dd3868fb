"""torch.compile(backend="hetero") on MiniLM: the first call, and steady calls against eager and the lazy device."""

from __future__ import annotations

import time

import torch

from tests.perf.measure import DEVICE, Row, alternate, main, missing, timed_row
from tests.perf.minilm import forward

CASES = {(1, 8): 0.35, (8, 32): 0.42}  # batch and tokens: bar against eager
FIRST_CALL_BAR = 3.0  # seconds
LAZY_BAR = 1.0


def measure() -> list[Row]:
    """For each case what the first call takes, and the program's time against eager's and the lazy device's."""
    import models

    if DEVICE == "cpu":
        return [missing("MiniLM, compiled", 1.0, "ms", "needs the device")]
    here, _ = models.minilm()
    there, _ = models.minilm()
    there.to(DEVICE)
    torch._dynamo.reset()  # imports the compiler, which is no part of compiling
    fast = torch.compile(there, backend="hetero", dynamic=False)
    rows = []
    for (batch, length), bar in CASES.items():
        what = f"MiniLM compiled, batch {batch} x {length} tokens"
        tokens = torch.randint(1000, 20000, (batch, length))
        mask = torch.ones_like(tokens)
        subjects = {
            "hetero": forward(fast, tokens.to(DEVICE), mask.to(DEVICE)),
            "lazy": forward(there, tokens.to(DEVICE), mask.to(DEVICE)),
            "eager": forward(here, tokens, mask),
        }
        with torch.no_grad():
            start = time.perf_counter()
            subjects["hetero"]()
            first = time.perf_counter() - start
            times = alternate(subjects, seconds=8.0)
        rows.append(Row(f"{what}: first call", first, None, FIRST_CALL_BAR, "s", "", "absolute"))
        rows.append(timed_row(what, times, bar, "ms"))
        rows.append(timed_row(what, times, LAZY_BAR, "ms", peer="lazy"))
    return rows


if __name__ == "__main__":
    main(measure)
