"""Figures of the C++ side from the Google Benchmark binary: recording, tiny additions, the start of a flush.

The binary prints JSON; of its benchmarks this takes five. Run it by hand for the others.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import subprocess

from tests.perf.measure import ROOT, Row, main, missing, quartiles

BINARY = ROOT / "build" / "tests" / "perf" / "record_bench"
REPETITIONS = 9
NANOSECONDS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}


@dataclasses.dataclass(frozen=True)
class Figure:
    """A row, and the benchmarks of the binary that give it; without a peer the time itself is held against the bar."""

    what: str
    ours: str
    peer: str | None
    bar: float
    unit: str
    note: str = ""


FIGURES = (
    Figure("record a predicted op in C++, handles included", "record_add", "at_add", 0.2, "ns"),
    Figure("1,000 dependent tiny adds from C++, run and read", "run_tiny_adds", "at_tiny_adds", 0.3, "us"),
    Figure(
        "flush of a predicted 1,000-node plan until its first kernel",
        "flush_until_first_kernel",
        None,
        20.0,
        "us",
        "to the call of a custom operator's kernel, which is the plan's first node",
    ),
)


def run_binary() -> tuple[dict[str, list[float]], str]:
    """Nanoseconds of each benchmark by repetition, or why there are none."""
    if not BINARY.exists():
        return {}, f"not built: {BINARY.relative_to(ROOT)}"
    names = [name for figure in FIGURES for name in (figure.ours, figure.peer) if name]
    command = [
        str(BINARY),
        "--benchmark_format=json",
        f"--benchmark_filter=^({'|'.join(names)})(/|$)",
        f"--benchmark_repetitions={REPETITIONS}",
        "--benchmark_min_time=0.1",
        "--benchmark_enable_random_interleaving=true",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        return {}, f"failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}"
    times: dict[str, list[float]] = {}
    for run in json.loads(done.stdout)["benchmarks"]:
        if run.get("run_type") == "iteration":
            name = run["run_name"].partition("/")[0]
            times.setdefault(name, []).append(run["real_time"] * NANOSECONDS[run["time_unit"]])
    return times, "a benchmark is missing in the binary"


def row_of(figure: Figure, times: dict[str, list[float]], why: str) -> Row:
    """The row of one figure. Repetitions are interleaved at random, so ratios are taken in the order they came."""
    compare = "ratio" if figure.peer else "absolute"
    ours = times.get(figure.ours, [])
    peer = times.get(figure.peer, []) if figure.peer else [1.0] * len(ours)
    if not ours or not peer:
        return missing(figure.what, figure.bar, figure.unit, why, compare=compare)
    scale = NANOSECONDS[figure.unit]
    ratios = [mine / (other if figure.peer else scale) for mine, other in zip(ours, peer, strict=False)]
    return Row(
        figure.what,
        statistics.median(ours) / scale,
        statistics.median(peer) / scale if figure.peer else None,
        figure.bar,
        figure.unit,
        compare=compare,
        spread=quartiles(ratios),
        best=min(ours) / (min(peer) if figure.peer else scale),
        rounds=len(ratios),
        note=figure.note,
    )


def measure() -> list[Row]:
    """Three rows; without the binary they say why."""
    times, why = run_binary()
    return [row_of(figure, times, why) for figure in FIGURES]


if __name__ == "__main__":
    main(measure)
