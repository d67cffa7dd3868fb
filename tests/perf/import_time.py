"""`import torch` in a new process, with and without autoload, in turns."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

from tests.perf.measure import Row, main, quartiles

ROUNDS = 7
BAR_MS = 200.0


def seconds(autoload: str) -> float:
    """Seconds of a whole process that imports torch; `autoload` is "0" or "1"."""
    variables = dict(os.environ, TORCH_DEVICE_BACKEND_AUTOLOAD=autoload)
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], env=variables, check=True)
    return time.perf_counter() - start


def measure() -> list[Row]:
    """One row; the figure is the difference of the medians in milliseconds."""
    for autoload in ("0", "1"):
        seconds(autoload)
    times: dict[str, list[float]] = {"0": [], "1": []}
    for _ in range(ROUNDS):
        for autoload, values in times.items():
            values.append(seconds(autoload) * 1e3)
    ours, peer = (statistics.median(times[key]) for key in ("1", "0"))
    spread = quartiles([with_it - without for with_it, without in zip(times["1"], times["0"], strict=True)])
    return [
        Row(
            "import torch with autoload",
            ours,
            peer,
            BAR_MS,
            "ms",
            "without",
            "difference",
            spread=spread,
            rounds=ROUNDS,
        )
    ]


if __name__ == "__main__":
    main(measure)
