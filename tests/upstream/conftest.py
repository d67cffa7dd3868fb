"""Counts entries over all xdist workers, prints the summary, and fails a full run below the bar."""

from __future__ import annotations

import os
from collections import Counter

if os.environ.get("HETERO_TEST_DEVICE", "hetero") == "cpu":
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import pytest

MINIMUM_PERCENT = 97.0
FULL_RUN = 600

_counts: Counter[str] = Counter()
_seen: set[str] = set()


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        import torch

        torch.set_num_threads(1)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    properties = dict(report.user_properties)
    if "entry" not in properties or report.when != "call" or properties["entry"] in _seen:
        return
    _seen.add(properties["entry"])
    _counts[properties["status"]] += 1
    for key in ("samples", "random_samples", "stride_mismatches"):
        _counts[key] += properties.get(key, 0)


def _percent() -> float:
    ran = sum(_counts[key] for key in ("passed", "failed", "excluded", "unexpected pass"))
    return 100.0 * (_counts["passed"] + _counts["unexpected pass"]) / ran if ran else 100.0


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    full = len(_seen) >= FULL_RUN
    if not hasattr(session.config, "workerinput") and full and _percent() < MINIMUM_PERCENT:
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
    write(f"passed: {_percent():.1f} % of entries (a full run needs {MINIMUM_PERCENT:.0f} %)")
