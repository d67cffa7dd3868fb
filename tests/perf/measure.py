"""Alternating measurement, and the table that benchmarks print.

A row compares a figure of hetero with the same figure of a peer, taken in turns in one process, and
names the bar that the ratio should reach. Nothing here asserts: a machine that is busy moves ratios.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "python"))

DEVICE = os.environ.get("HETERO_TEST_DEVICE", "hetero")


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table. `ours` and `peer` are in `unit`; `bar` is the most that is wanted.

    The compared figure is ours / peer, or ours - peer where `difference` is set.
    """

    what: str
    ours: float | None
    peer: float | None
    bar: float
    unit: str
    difference: bool = False
    note: str = ""

    @property
    def figure(self) -> float | None:
        if self.ours is None or self.peer is None:
            return None
        return self.ours - self.peer if self.difference else self.ours / self.peer


def flush() -> None:
    """Leaves nothing pending, so that a measurement starts clean."""
    import torch

    if DEVICE != "cpu":
        torch.hetero.flush()


def _time(run: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls


def alternate(
    ours: Callable[[], object],
    peer: Callable[[], object],
    *,
    calls: int = 1,
    rounds: int = 15,
    warmup: int = 3,
) -> tuple[float, float]:
    """Median seconds of one call of each, timed in turns, `calls` calls at a time.

    Pending work is flushed between the rounds, outside of the timing.
    """
    for run in (ours, peer):
        for _ in range(warmup):
            _time(run, calls)
            flush()
    times: tuple[list[float], list[float]] = ([], [])
    gc.collect()
    gc.disable()
    try:
        for round_index in range(rounds):
            order = ((0, ours), (1, peer)) if round_index % 2 else ((1, peer), (0, ours))
            for which, run in order:
                times[which].append(_time(run, calls))
                flush()
    finally:
        gc.enable()
    return statistics.median(times[0]), statistics.median(times[1])


SCALES = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}


def timed_row(what: str, seconds: tuple[float, float], bar: float, unit: str) -> Row:
    """A row from the two medians of `alternate`."""
    return Row(what, seconds[0] * SCALES[unit], seconds[1] * SCALES[unit], bar, unit)


def table(rows: list[Row]) -> str:
    """The rows as text: figure of hetero, of the peer, the compared figure, the bar, a verdict."""
    head = ("what", "hetero", "peer", "ratio", "bar", "")
    lines = [head]
    for row in rows:
        figure = row.figure
        if figure is None:
            lines.append((row.what, "-", "-", "-", f"{row.bar:g}", row.note or "not measured"))
            continue
        suffix = f" {row.unit}" if row.difference else ""
        lines.append(
            (
                row.what,
                f"{row.ours:,.1f} {row.unit}",
                f"{row.peer:,.1f} {row.unit}",
                f"{figure:+.0f}{suffix}" if row.difference else f"{figure:.2f}",
                f"<= {row.bar:g}{suffix}",
                ("reached" if figure <= row.bar else "MISSED") + (f"; {row.note}" * bool(row.note)),
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    texts = []
    for index, line in enumerate(lines):
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:5], widths[1:5], strict=True)]
        texts.append("  ".join([*cells, line[5]]).rstrip())
        if index == 0:
            texts.append("-" * (sum(widths) + 10))
    return "\n".join(texts)


def main(measure: Callable[[], list[Row]]) -> None:
    """What a benchmark's file does when it is run alone."""
    print(table(measure()))
