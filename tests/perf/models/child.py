"""One case in a process of its own: prints one line of JSON. `driver.py` calls it.

    python -m tests.perf.models.child KIND MODEL BATCH SUBJECT REFERENCE SECONDS [turns]

KIND is "inference" or "training". SUBJECT "reference" computes the results in float64, counts the model's work, and
writes both to the file REFERENCE, which the others compare their results with.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
if os.environ.get("HETERO_TEST_DEVICE", "hetero") == "cpu":
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import json
import resource
import statistics

import torch

from tests.perf.measure import flush, no_collection
from tests.perf.models import subjects, turns, work
from tests.perf.models.table import BY_NAME, PROBE, Inputs, Model

LEAST_SAMPLE = 200e-6  # seconds; shorter calls are timed several at a time
SETTLE = 0.3  # seconds of calls before the first sample
LARGEST_ERROR = {"float32": 2e-3, "bfloat16": 0.2}  # of the largest element; beyond it something else was computed
STEPS = 3  # after which losses of a training are compared


def clock() -> Callable[[], float]:
    """What tells the time: a clock, or how long cores worked for this process."""
    return time.process_time if os.environ.get("HETERO_BENCH_CLOCK") == "cpu" else time.perf_counter


def settled(call: Callable[[], object], seconds: float) -> int:
    """Calls it for a while; returns how many calls a sample takes."""
    now = clock()
    end = time.perf_counter() + seconds
    calls = 0
    start = now()
    while calls < 3 or time.perf_counter() < end:
        call()
        calls += 1
    return max(1, int(LEAST_SAMPLE / ((now() - start) / calls)))


def sampled(call: Callable[[], object], group: int, seconds: float, least: int) -> list[float]:
    """Seconds of a call, over so many seconds of calls; so many samples at least."""
    now = clock()
    samples: list[float] = []
    with no_collection():
        end = time.perf_counter() + seconds
        while len(samples) < least or time.perf_counter() < end:
            begin = now()
            for _ in range(group):
                result = call()
            samples.append((now() - begin) / group)
    del result
    return samples


def measured(call: Callable[[], object], seconds: float) -> dict[str, Any]:
    """Medians over so many seconds of calls, five at least."""
    group = settled(call, min(SETTLE, seconds))
    samples = sampled(call, group, seconds, 5)
    return {
        "median_us": statistics.median(samples) * 1e6,
        "best_us": min(samples) * 1e6,
        "samples": len(samples),
        "group": group,
    }


def error_of(results: subjects.Results, expected: subjects.Results) -> float:
    """The largest difference of two lists of results, over the largest expected element of each."""
    if len(results) != len(expected):
        raise ValueError(f"{len(results)} results instead of {len(expected)}")
    worst = 0.0
    for result, truth in zip(results, expected, strict=True):
        difference = (result.double() - truth.double()).abs().max() / truth.double().abs().max().clamp(min=1e-30)
        worst = max(worst, float("inf") if torch.isnan(difference) else float(difference))
    return worst


def doubled(inputs: Inputs) -> Inputs:
    """The same inputs, floats in float64."""
    return tuple(tensor.double() if tensor.is_floating_point() else tensor for tensor in inputs)


def steps(call: subjects.Call) -> subjects.Results:
    """The results of the last of some steps."""
    for _ in range(STEPS - 1):
        call()
    return call()


def reference(kind: str, row: Model, batch: int) -> dict[str, Any]:
    """Results in float64, and the work of a call in float32."""
    made = work.count(row.make(), row.arguments(batch))
    model, inputs = row.make().double(), doubled(row.arguments(batch))
    torch.set_default_dtype(torch.float64)
    try:
        if kind == "training":
            expected = steps(subjects.Training(row, model, inputs, "eager"))
        else:
            with torch.no_grad():
                expected = subjects.listed(model(*inputs))
    finally:
        torch.set_default_dtype(torch.float32)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return {"work": {**made, "parameters": parameters}, "expected": expected}


def run(
    kind: str, row: Model, batch: int, subject: subjects.Subject, file: Path, seconds: float, in_turns: bool = False
) -> dict[str, Any]:
    """What one subject takes for one model; in turns it is told when to run, until it is ended."""
    expected = torch.load(file)["expected"]
    model, inputs = row.make(), row.arguments(batch)
    with torch.set_grad_enabled(kind == "training"):
        start = time.perf_counter()
        call = subject.prepare(row, model, inputs)
        prepared = time.perf_counter()
        results = call()
        first = time.perf_counter()
        if kind == "training":
            results = [call() for _ in range(STEPS - 1)][-1]
        error = error_of(results[: row.compared], expected[: row.compared])
        if not error <= LARGEST_ERROR[subject.precision]:
            return {"reason": f"computes something else: {error:.2g} of the largest element from float64"}
        if in_turns:
            group = settled(call, SETTLE)
            turns.serve(call, lambda: sampled(call, group, seconds, 3))
            return {}
        times = measured(call, seconds)
        if subject.ours:
            flush()
    return {
        **times,
        "prepare_s": prepared - start,
        "first_call_s": first - prepared,
        "error": error,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    """Does what the command line says."""
    kind, name, batch, who, file, seconds, *in_turns = sys.argv[1:]
    warnings.simplefilter("ignore")
    row = BY_NAME[name]
    try:
        if who == "reference":
            found = reference(kind, row, int(batch))
            torch.save(found, file)
            answer = found["work"]
        else:
            table = subjects.TRAINING if kind == "training" else subjects.SUBJECTS
            subject = next(subject for subject in table if subject.name == who)
            if row.family == PROBE and subject.precision != "float32":
                raise ValueError("probes are for float32")
            answer = run(kind, row, int(batch), subject, Path(file), float(seconds), bool(in_turns))
    except Exception as error:
        traceback.print_exc()
        lines = str(error).strip().splitlines() or [""]
        answer = {"reason": f"{type(error).__name__}: {lines[0][:160]}"}
    sys.stdout.flush()
    print("\n" + json.dumps(answer), flush=True)
    os._exit(0)  # peers' threads may hang at exit


if __name__ == "__main__":
    main()
