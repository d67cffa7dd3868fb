"""Counts entries over all xdist workers, prints the summary, and fails a full run below the bar."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from helpers import ACCELERATOR

MINIMUM_PERCENT = 97.0
FULL_RUN = 600
# So many of the entries that ran have run a kernel on the accelerator, where all or half of the operators are to run
# there.
MINIMUM_PERCENT_THERE = 50.0
SENT_THERE = ACCELERATOR != "none" and os.environ.get("HETERO_PLACEMENT") in ("mixed", "accelerator")

_counts: Counter[str] = Counter()
_seen: set[str] = set()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    properties = dict(report.user_properties)
    if "entry" not in properties or report.when != "call" or properties["entry"] in _seen:
        return
    _seen.add(properties["entry"])
    _counts[properties["status"]] += 1
    for key in ("samples", "random_samples", "stride_mismatches", "accelerator_kernels"):
        _counts[key] += properties.get(key, 0)
    _counts["entries there"] += properties.get("accelerator_kernels", 0) > 0


def _percent(count: int) -> float:
    """Of the entries that ran."""
    ran = sum(_counts[key] for key in ("passed", "failed", "excluded", "unexpected pass"))
    return 100.0 * count / ran if ran else 100.0


def _percent_passed() -> float:
    return _percent(_counts["passed"] + _counts["unexpected pass"])


def _is_below_a_bar() -> bool:
    if _percent_passed() < MINIMUM_PERCENT:
        return True
    return SENT_THERE and _percent(_counts["entries there"]) < MINIMUM_PERCENT_THERE


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    full = len(_seen) >= FULL_RUN
    if not hasattr(session.config, "workerinput") and full and _is_below_a_bar():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _seen:
        return
    executed = len(_seen) - _counts["skipped"] - _counts["not run"]
    write = terminalreporter.write_line
    terminalreporter.section("op_db")
    write(
        f"entries: {executed} executed, {_counts['passed']} passed, "
        f"{_counts['excluded'] + _counts['not run']} excluded, {_counts['skipped']} skipped, "
        f"{_counts['failed']} failed, {_counts['unexpected pass']} passed unexpectedly"
    )
    write(
        f"samples: {_counts['samples']} equal, of these {_counts['random_samples']} random "
        f"(compared by shape and reproducibility); "
        f"{_counts['stride_mismatches']} results with other strides than CPU's"
    )
    if ACCELERATOR != "none":
        bar = f", a full run needs {MINIMUM_PERCENT_THERE:.0f} %" if SENT_THERE else ""
        write(
            f"kernels on the accelerator ({ACCELERATOR}): {_counts['accelerator_kernels']}, in "
            f"{_counts['entries there']} entries ({_percent(_counts['entries there']):.1f} %{bar})"
        )
    write(f"passed: {_percent_passed():.1f} % of entries (a full run needs {MINIMUM_PERCENT:.0f} %)")
