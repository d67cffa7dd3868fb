"""Runs a program with and without plans, in turns, each time in a process of its own."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch_hetero.migration.plan import Plan

__all__ = ["Failed", "Measured", "Runner", "compare"]


class Failed(Exception):
    """A run that did not end well; its text is one sentence."""


@dataclass
class Measured:
    """Runs of a program with one plan, or without.

    Attributes:
        seconds: Seconds of a batch, for each run.
        reports: The counters of each run with a plan, by key.
    """

    seconds: list[float] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)

    @property
    def best(self) -> float:
        """The least seconds of a batch."""
        return min(self.seconds)

    def gain_over(self, other: Measured) -> float:
        """Returns how many times faster this is than `other`, whose runs took turns with these.

        It is the ratio of the best runs or the median of the ratios of neighbours, whichever is less.
        """
        ratios = [before / after for before, after in zip(other.seconds, self.seconds, strict=True)]
        return min(other.best / self.best, statistics.median(ratios))


class Runner:
    """Runs a program.

    Args:
        command: The script and its arguments, as on the command line.
        batches: The number of batches after which it ends.
    """

    def __init__(self, command: Sequence[str], batches: int) -> None:
        self.command, self.batches = list(command), batches

    def run(self, plan: Plan | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Runs the program; returns its times and, with a plan, its counters by key.

        Raises:
            Failed: The program failed. With a plan, what it wrote to stderr last is in the text.
        """
        with tempfile.TemporaryDirectory(prefix="hetero-optimize-") as folder:
            times, report, file = Path(folder, "times.json"), Path(folder, "report.json"), Path(folder, "plan.json")
            options = ["--batches", str(self.batches), "--times", str(times), "--report", str(report)]
            if plan is not None:
                plan.save(file)
                options += ["--plan", str(file)]
            process = subprocess.run(
                [sys.executable, "-W", "ignore", "-m", "torch_hetero.migration", "run", *options, *self.command],
                stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False,
            )  # fmt: skip
            if process.returncode != 0 or not times.exists():
                last = (process.stderr.strip().splitlines() or [f"exit status {process.returncode}"])[-1]
                raise Failed(f"the program failed {'with' if plan else 'without'} the plan: {last}")
            counters = json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}
            return json.loads(times.read_text(encoding="utf-8")), counters


def compare(
    runner: Runner, plans: Sequence[Plan], rounds: int, done: Callable[[int, str], None] = lambda number, text: None
) -> tuple[Measured, list[Measured | str]]:
    """Runs a program without a plan and with each of some plans, in turns.

    Args:
        runner: What runs it.
        plans: The plans.
        rounds: How often.
        done: Called after each round with its number and what came out.

    Returns:
        What was measured without a plan, and for each plan what was measured, or why the program failed with it.

    Raises:
        Failed: The program failed without a plan.
    """
    plain = Measured()
    found: list[Measured | str] = [Measured() for _ in plans]
    for number in range(rounds):
        plain.seconds.append(runner.run()[0]["seconds"])
        for index, plan in enumerate(plans):
            measured = found[index]
            if isinstance(measured, str):
                continue
            try:
                times, report = runner.run(plan)
            except Failed as failed:
                found[index] = str(failed)
                continue
            measured.seconds.append(times["seconds"])
            measured.reports.append(report)
        texts = [
            entry if isinstance(entry, str) else f"{entry.seconds[-1] * 1e3:.2f} ms with plan {index + 1}"
            for index, entry in enumerate(found)
        ]
        done(number + 1, f"{plain.seconds[-1] * 1e3:.2f} ms a batch without a plan, {', '.join(texts)}")
        if all(isinstance(entry, str) for entry in found):
            break
    return plain, found
