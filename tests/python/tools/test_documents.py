"""The documents: links and anchors resolve, files that they name exist, and the checker notices when they do not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from helpers import ROOT, load_module


@pytest.fixture(scope="module")
def checker() -> ModuleType:
    return load_module("scripts/check_docs.py")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small project whose documents are right."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "graph").mkdir()
    (tmp_path / "README.md").write_text("# A\n\n![picture](docs/a.svg)\n\n## B\n\n[c](docs/design.md#two-words)\n")
    (tmp_path / "docs" / "a.svg").write_text("<svg/>")
    (tmp_path / "docs" / "design.md").write_text("# Design\n\n## Two words\n\n`graph/a.h`\n")
    (tmp_path / "docs" / "developer.md").write_text("## Glossary\n\n| term | meaning |\n|---|---|\n| a | b |\n\n## C\n")
    (tmp_path / "graph" / "a.h").write_text("// docs/design.md\n")
    return tmp_path


def files_of(project: Path) -> list[Path]:
    return sorted(path for path in project.rglob("*") if path.is_file())


def test_the_documents_of_this_project_are_right() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts" / "check_docs.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " documents checked, 0 violations" in done.stdout


def test_right_documents_have_no_violation(checker: ModuleType, project: Path) -> None:
    assert checker.check(project, files_of(project)) == []


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("README.md", "[a](docs/none.md)", "README.md:9: docs/none.md does not exist"),
        ("README.md", "[a](docs/design.md#none)", "README.md:9: docs/design.md has no anchor none"),
        ("README.md", "[two\nlines](docs/none.md)", "README.md:10: docs/none.md does not exist"),
        ("README.md", "[a](#none)", "README.md:9: README.md has no anchor none"),
        ("README.md", "word " * 21, "README.md:9: 105 characters, at most 100"),
        ("README.md", "`graph/none.h`", "README.md:9: graph/none.h does not exist"),
        ("docs/design.md", "\n" * 250, "docs/design.md: 257 lines, at most 250"),
        ("graph/a.h", "// docs/design.md#none", "graph/a.h:3: docs/design.md has no anchor none"),
    ],
)
def test_each_damage_is_noticed(checker: ModuleType, project: Path, file: str, text: str, expected: str) -> None:
    path = project / file
    path.write_text(f"{path.read_text()}\n{text}\n")
    assert checker.check(project, files_of(project)) == [expected]


def test_tables_code_and_addresses_may_be_wide(checker: ModuleType, project: Path) -> None:
    wide = "a" * 120
    path = project / "README.md"
    path.write_text(f"{path.read_text()}\n| {wide} |\n\n```\n{wide}\n```\n\nhttps://{wide}\n")
    assert checker.check(project, files_of(project)) == []


def test_a_long_glossary_and_a_missing_picture_are_noticed(checker: ModuleType, project: Path) -> None:
    terms = "".join(f"| term {number} | meaning |\n" for number in range(31))
    (project / "docs" / "developer.md").write_text(f"## Glossary\n\n| term | meaning |\n|---|---|\n{terms}\n## C\n")
    (project / "docs" / "a.svg").unlink()
    violations = checker.check(project, files_of(project))
    assert "docs/developer.md: 31 terms in the glossary, 1 to 30 wanted" in violations
    assert "README.md: no picture before the first section" in violations
