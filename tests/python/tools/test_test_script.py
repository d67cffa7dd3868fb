"""scripts/test.py counts the cases of every tool that it runs, and of a stage that breaks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
from helpers import load_module


@pytest.fixture
def script() -> ModuleType:
    return load_module("scripts/test.py")


@pytest.mark.parametrize(
    ("text", "cases"),
    [
        ("All tests passed (12 assertions in 3 test cases)", {"passed": 3}),
        ("test cases: 5 | 4 passed | 1 failed", {"passed": 4, "failed": 1}),
        ("[  PASSED  ] 10 tests.\n[  SKIPPED ] 2 tests, listed below:", {"passed": 10, "skipped": 2}),
        ("[  FAILED  ] 1 test, listed below:", {"failed": 1}),
        ("2 tests skipped: there is no GPU\nAll tests passed (1 assertion in 3 test cases)", {"passed": 1, "skipped": 2}),
        ("sim-fuzz: 200 seeds as they should be in 3.0 s", {"passed": 200}),
        ("== 1 failed, 20 passed, 3 skipped, 2 xfailed, 4 warnings in 12.34s (0:00:12) ==", {"failed": 1, "passed": 20, "skipped": 5}),
        ("7 passed, 2 errors in 3.00s", {"passed": 7, "failed": 2}),
        ("nothing of this kind: 3 passed", {}),
    ],
)
def test_cases_of_each_tool_are_counted(script: ModuleType, text: str, cases: dict[str, int]) -> None:
    assert +script.count_cases(text) == Counter(cases)


def test_a_stage_that_breaks_without_a_failed_case_is_one(script: ModuleType) -> None:
    assert script.Stage("breaks", ["sh", "-c", "echo 3 passed in 1s; exit 7"]).run() == Counter(passed=3, failed=1)


def test_a_check_without_cases_is_one(script: ModuleType) -> None:
    assert +script.Stage("check", ["true"]).run() == Counter(passed=1)


def test_a_warning_of_the_compiler_fails_the_build(script: ModuleType) -> None:
    stage = script.Stage("build", ["echo", "file.cpp:3:1: warning: unused variable"], is_build=True)
    assert stage.run()["failed"] == 1


def test_stages_of_one_core_run_together_and_the_others_in_order(script: ModuleType, tmp_path: Path) -> None:
    # Each of the two ends when the other one has begun.
    wait = "touch {0}; for i in $(seq 300); do [ -e {1} ] && exit 0; sleep 0.1; done; exit 1"
    here, there = tmp_path / "here", tmp_path / "there"
    stages = [
        script.Stage("first", ["true"]),
        script.Stage("here", ["sh", "-c", wait.format(here, there)], one_core=True),
        script.Stage("there", ["sh", "-c", wait.format(there, here)], one_core=True),
        script.Stage("build", ["false"], is_build=True),
        script.Stage("never", ["true"]),
    ]
    script.JOBS = "2"
    ran = [(stage.name, counts["failed"]) for stage, counts in script.run_stages(stages)]
    assert ran == [("first", 0), ("here", 0), ("there", 0), ("build", 1)]


def test_the_run_closes_with_one_line(script: ModuleType) -> None:
    assert script.summary(Counter(passed=12, skipped=1)) == "12 passed, 0 failed, 1 skipped"
