"""Recording one typed operator in C++ against `at::add` on CPU; runs the Google Benchmark binary.

The binary prints JSON; of its benchmarks this takes two. Run it by hand for the others.
"""

from __future__ import annotations

import json
import statistics
import subprocess

from tests.perf.measure import ROOT, Row, main

BINARY = ROOT / "build" / "tests" / "perf" / "record_bench"
WHAT = "record one typed op in C++, inference mode"
OURS, PEER = "record_add", "at_add"
BAR = 0.35
NANOSECONDS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}


def measure() -> list[Row]:
    """One row; without the binary it says "not built"."""
    if not BINARY.exists():
        return [Row(WHAT, None, None, BAR, "ns", note="not built")]
    command = [
        str(BINARY),
        "--benchmark_format=json",
        f"--benchmark_filter=^({OURS}|{PEER})$",
        "--benchmark_repetitions=7",
        "--benchmark_enable_random_interleaving=true",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return [Row(WHAT, None, None, BAR, "ns", note=f"failed: {last}")]
    times: dict[str, list[float]] = {OURS: [], PEER: []}
    for run in json.loads(done.stdout)["benchmarks"]:
        if run.get("run_type") != "iteration":
            continue
        times[run["run_name"]].append(run["cpu_time"] * NANOSECONDS[run["time_unit"]])
    if not all(times.values()):
        return [Row(WHAT, None, None, BAR, "ns", note="a benchmark is missing in the binary")]
    ours, peer = (statistics.median(times[key]) for key in (OURS, PEER))
    return [Row(WHAT, ours, peer, BAR, "ns")]


if __name__ == "__main__":
    main(measure)
