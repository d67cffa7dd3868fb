"""The checker of the sources' lines: this project is right, and what is not is noticed."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest
from helpers import ROOT, load_module


@pytest.fixture(scope="module")
def checker() -> ModuleType:
    return load_module("scripts/check_sources.py")


def test_the_sources_of_this_project_are_right() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts" / "check_sources.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " sources checked, 0 violations" in done.stdout


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("ops/table/op_table.def", 'BOXED("aten::copy", kOther)\n'),
        ("ops/run/a.cpp", '// such as "aten::copy"\n'),
        ("ops/run/a.cpp", 'find("aten::copy");  // a name: PyTorch has no other way\n'),
        ("ops/run/a.cpp", '// a name: PyTorch has no other way\nfind("aten::copy");\n'),
        ("backend/a.cpp", 'print("aten::copy");\n'),
        ("ops/run/a.cpp", "// " + "w" * 97 + "\n"),
        ("ops/run/a.cpp", 'print("http://' + "w" * 97 + '");\n'),
        ("ops/run/a.cpp", "int " + "w" * 97 + ";\n"),
    ],
)
def test_right_lines_have_no_violation(checker: ModuleType, file: str, text: str) -> None:
    assert list(checker.check_file(file, text)) == []


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("ops/run/a.cpp", 'int i;\nfind("aten::copy");\n', "ops/run/a.cpp:2: an operator's name outside ops/table/"),
        ("graph/a.h", 'find("aten::copy");  // of course\n', "graph/a.h:1: an operator's name outside ops/table/"),
        ("ops/run/a.cpp", '// a name: why\n\nfind("aten::copy");\n', "ops/run/a.cpp:3: an operator's name"),
        ("ops/run/a.cpp", "// " + "w" * 98 + "\n", "ops/run/a.cpp:1: a comment of 101 columns, at most 100"),
        ("ops/run/a.cpp", "int i;  // " + "w" * 98 + "\n", "ops/run/a.cpp:1: a comment of 109 columns"),
        ("ops/run/a.cpp", "char c = '\"';  // " + "w" * 98 + "\n", "ops/run/a.cpp:1: a comment of 116 columns"),
    ],
)
def test_a_violation_is_named_by_file_and_line(checker: ModuleType, file: str, text: str, expected: str) -> None:
    violations = list(checker.check_file(file, text))
    assert len(violations) == 1 and violations[0].startswith(expected)
