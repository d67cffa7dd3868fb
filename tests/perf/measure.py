"""Alternating measurement, and the rows that benchmarks return.

A row compares a figure of hetero with the same figure of a peer, taken in turns in one process, and names the bar that
the comparison should reach. Nothing here asserts: a machine that is busy moves ratios, which the spread shows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "python"))

DEVICE = os.environ.get("HETERO_TEST_DEVICE", "hetero")
# Set by `--peers`: peers that take long, inductor on whole models, are measured too.
PEERS = "HETERO_BENCH_PEERS"
# Set by `--depth N`: layers of the Qwen3 shape; 28 are the real model's.
DEPTH = "HETERO_BENCH_DEPTH"

SCALES = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}
SECONDS = 3.0  # what the timed rounds of one `alternate` may take, all subjects together


def with_peers() -> bool:
    """Whether the slow peers are wanted."""
    return os.environ.get(PEERS) == "1"


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table.

    The compared figure is `ours / peer`; `ours - peer` where `compare` is "difference"; and `ours` itself, without a
    peer, where it is "absolute".

    Attributes:
        what: the work, in words.
        ours: hetero's figure in `unit`; None where it was not measured, and `note` says why.
        peer: the peer's figure in `unit`.
        bar: the most that is wanted of the compared figure.
        unit: "ns", "us", "ms", "s", "MiB", "bytes".
        peer_name: who the peer is: "eager", "inductor", "jax", "one read of the weights", ...
        compare: "ratio", "difference" or "absolute".
        median: the median of the compared figure over the rounds, which is then the figure: a machine that slows down
            for a while slows both halves of a round.
        spread: the quartiles of the compared figure over the rounds.
        best: the compared figure of the fastest rounds of both, which a busy machine moves least.
        rounds: how many rounds the medians are of.
        note: what a reader must know beside the figures, such as a compile time.
    """

    what: str
    ours: float | None
    peer: float | None
    bar: float
    unit: str
    peer_name: str = "eager"
    compare: str = "ratio"
    median: float | None = None
    spread: tuple[float, float] | None = None
    best: float | None = None
    rounds: int = 0
    note: str = ""

    @property
    def figure(self) -> float | None:
        """What is held against the bar: a number without unit for ratios, else in `unit`."""
        if self.median is not None:
            return self.median
        if self.compare == "absolute" or self.ours is None:
            return self.ours
        if not self.peer:
            return None
        return self.ours - self.peer if self.compare == "difference" else self.ours / self.peer

    @property
    def verdict(self) -> str:
        """ "reached", "MISSED" or "not measured"."""
        if self.figure is None:
            return "not measured"
        return "reached" if self.figure <= self.bar else "MISSED"


def missing(what: str, bar: float, unit: str, why: str, *, peer_name: str = "eager", compare: str = "ratio") -> Row:
    """A row that stands in the table without figures, and says why."""
    return Row(what, None, None, bar, unit, peer_name, compare, note=why)


def flush() -> None:
    """Leaves nothing pending: what was recorded has run when this returns."""
    import torch

    if DEVICE != "cpu":
        torch.hetero.flush()


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The lower and the upper quartile; both are the value where there is only one."""
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


Times = dict[str, list[float]]  # seconds of one call, round by round, by subject


def _time(run: Callable[[], object], calls: int) -> float:
    """Seconds of one of `calls` calls. A call's result dies when the next one is there, as in a loop of a program."""
    result = None
    start = time.perf_counter()
    for _ in range(calls):
        result = run()
    seconds = (time.perf_counter() - start) / calls
    del result
    return seconds


def _settle(run: Callable[[], object], seconds: float) -> None:
    """Calls of `run` for so long, one at least, where that is not 0."""
    end = time.perf_counter() + seconds
    while seconds > 0:
        run()
        if time.perf_counter() > end:
            return


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """No garbage collection inside, and as little garbage as there can be at its start."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def alternate(
    subjects: Mapping[str, Callable[[], object]],
    *,
    calls: int = 1,
    warmup: int = 3,
    rounds: int = 41,
    least: int = 5,
    seconds: float = SECONDS,
    settle: float = 0.0,
) -> Times:
    """Seconds of one call of each subject, timed in turns, `calls` calls at a time; the order changes every round.

    Rounds end after `rounds`, or after `seconds`, but not before there are `least`. Pending work is flushed between
    the timings, with the clock stopped. `settle` is for subjects with threads of their own: OpenMP's threads spin for
    some milliseconds after their last call, on the cores that the next subject needs. Each is called for so many
    seconds before it is timed.
    """
    for run in subjects.values():
        for _ in range(warmup):
            _time(run, calls)
            flush()
    times: Times = {name: [] for name in subjects}
    names = list(subjects)
    with no_collection():
        end = time.perf_counter() + seconds
        for done in range(rounds):
            if done >= least and time.perf_counter() > end:
                break
            for name in names[done % len(names) :] + names[: done % len(names)]:
                _settle(subjects[name], settle)
                times[name].append(_time(subjects[name], calls))
                flush()
    return times


def timed_row(
    what: str, times: Times, bar: float, unit: str, *, peer: str = "eager", ours: str = "hetero", note: str = ""
) -> Row:
    """A row from the rounds of `alternate`: medians in `unit`; median, quartiles and best of the ratios."""
    ratios = [mine / other for mine, other in zip(times[ours], times[peer], strict=True)]
    return Row(
        what,
        statistics.median(times[ours]) * SCALES[unit],
        statistics.median(times[peer]) * SCALES[unit],
        bar,
        unit,
        peer_name=peer,
        median=statistics.median(ratios),
        spread=quartiles(ratios),
        best=min(times[ours]) / min(times[peer]),
        rounds=len(ratios),
        note=note,
    )


def main(measure: Callable[[], list[Row]]) -> None:
    """What a benchmark's file does when it is run alone."""
    from tests.perf.report import table

    print(table(measure()))
