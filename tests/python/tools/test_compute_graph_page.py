"""Each line of the examples of docs/compute_graph.md stands in the test that it names."""

from __future__ import annotations

import re

from helpers import ROOT

PAGE = ROOT / "docs" / "compute_graph.md"
TEST = ROOT / "tests" / "ops" / "compute_graph_vocabulary_test.cpp"


def words(text: str) -> str:
    return re.sub(r"\s+", "", text)


def test_each_line_is_tested() -> None:
    tested = words(TEST.read_text())
    examples = re.findall(r"^```cpp\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    lines = [line for example in examples for line in example.splitlines() if line.strip()]
    assert len(lines) > 30
    assert [line for line in lines if words(line) not in tested] == []


def test_each_name_has_a_test() -> None:
    tests = set(re.findall(r"TEST_F\(ComputeGraphVocabulary, (\w+)\)", TEST.read_text()))
    names = re.findall(r"^\| \[(\w+)\]", PAGE.read_text(), re.M)
    assert len(names) >= 9
    assert [name for name in names if not any(test.startswith(name) for test in tests)] == []
