"""Counts entries over all xdist workers and on each machine, prints the summary, and fails a full run below the bar."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field

import pytest
from machines import MACHINES

MINIMUM_PERCENT = 97.0
FULL_RUN = 600
# So many of the entries that ran have run a kernel on the accelerator, where all or half of the operators are to run
# there.
MINIMUM_PERCENT_THERE = 50.0


@dataclass
class Tally:
    """What came of the entries on one machine."""

    machine: str
    seen: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def variables(self) -> dict[str, str]:
        return os.environ | MACHINES.get(self.machine, {})

    @property
    def accelerator(self) -> str:
        return self.variables.get("HETERO_ACCELERATOR") or "none"

    @property
    def sent_there(self) -> bool:
        return self.accelerator != "none" and self.variables.get("HETERO_PLACEMENT") in ("mixed", "accelerator")

    def add(self, properties: dict[str, object]) -> None:
        entry = str(properties["entry"])
        if entry in self.seen:
            return
        self.seen.add(entry)
        self.counts[str(properties["status"])] += 1
        for key in ("samples", "random_samples", "stride_mismatches", "accelerator_kernels"):
            self.counts[key] += properties.get(key, 0)
        self.counts["entries there"] += properties.get("accelerator_kernels", 0) > 0

    def percent(self, count: int) -> float:
        """Of the entries that ran."""
        ran = sum(self.counts[key] for key in ("passed", "failed", "excluded", "unexpected pass"))
        return 100.0 * count / ran if ran else 100.0

    def percent_passed(self) -> float:
        return self.percent(self.counts["passed"] + self.counts["unexpected pass"])

    def is_below_a_bar(self) -> bool:
        """Whether too few entries passed, or ran on the accelerator, in a full run."""
        if len(self.seen) < FULL_RUN:
            return False
        too_few_there = self.sent_there and self.percent(self.counts["entries there"]) < MINIMUM_PERCENT_THERE
        return self.percent_passed() < MINIMUM_PERCENT or too_few_there

    def lines(self) -> list[str]:
        counts = self.counts
        executed = len(self.seen) - counts["skipped"] - counts["not run"]
        lines = [
            f"machine: {self.machine}" if self.machine else "",
            f"entries: {executed} executed, {counts['passed']} passed, "
            f"{counts['excluded'] + counts['not run']} excluded, {counts['skipped']} skipped, "
            f"{counts['failed']} failed, {counts['unexpected pass']} passed unexpectedly",
            f"samples: {counts['samples']} equal, of these {counts['random_samples']} random "
            f"(compared by shape and reproducibility); "
            f"{counts['stride_mismatches']} results with other strides than CPU's",
        ]
        if self.accelerator != "none":
            bar = f", a full run needs {MINIMUM_PERCENT_THERE:.0f} %" if self.sent_there else ""
            lines.append(
                f"kernels on the accelerator ({self.accelerator}): {counts['accelerator_kernels']}, in "
                f"{counts['entries there']} entries ({self.percent(counts['entries there']):.1f} %{bar})"
            )
        lines.append(f"passed: {self.percent_passed():.1f} % of entries (a full run needs {MINIMUM_PERCENT:.0f} %)")
        return [line for line in lines if line]


_tallies: dict[str, Tally] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    properties = dict(report.user_properties)
    if "entry" in properties and report.when == "call":
        _tallies.setdefault(properties["machine"], Tally(properties["machine"])).add(properties)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput") and any(tally.is_below_a_bar() for tally in _tallies.values()):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _tallies:
        terminalreporter.section("op_db")
    for tally in _tallies.values():
        for line in tally.lines():
            terminalreporter.write_line(line)
