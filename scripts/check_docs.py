#!/usr/bin/env python3
"""Checks the documents: prints each violation as FILE:LINE and fails if there is one.

1. No line is wider than 100, except in tables, code blocks, generated blocks and lines with a URL.
2. Every relative link and its anchor resolve. So does every page of docs/ that a source file names.
3. Every file or folder of the sources that a document names in backticks by its path exists.
4. docs/design.md has at most 250 lines, the glossary of docs/developer.md at most 30 terms, and the README shows a
   picture before its first section.

The CHANGELOG tells the past: only its links are checked.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

WIDTH = 100
DESIGN_LINES = 250
TERMS = 30
FENCE = re.compile(r"^\s*(```|~~~)")
GENERATED = re.compile(r"<!-- .*: (begin|end)")
LINK = re.compile(r"\]\(([^)\s]+)\)")  # the text of a link may begin on the line before
NAMED = re.compile(r"\bdocs/\w+\.md(?:#[\w-]+)?")
FILE = re.compile(r"`((?:backend|graph|ops|torch_hetero|tests|scripts|examples|cmake)/[\w/.-]*)`")
PICTURE = re.compile(r"!\[[^\]]+\]\(([^)]+)\)")
SOURCES = {".h", ".cpp", ".cu", ".def", ".py", ".sh", ".txt", ".in"}


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Yields the numbered lines of a document that are neither code nor generated."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if FENCE.match(line):
            inside = not inside
        elif match := GENERATED.search(line):
            inside = match[1] == "begin"
        elif not inside:
            yield number, line


def anchors_of(text: str) -> set[str]:
    """Returns the anchors of a document: those of its headings, as GitHub makes them, and those it names."""
    found = set(re.findall(r'<a (?:name|id)="([^"]+)"', text))
    for _, line in prose(text):
        if match := re.match(r"#+ +(.*)", line):
            found.add(re.sub(r"[^\w\- ]", "", match[1].lower()).strip().replace(" ", "-"))
    return found


def check_target(root: Path, folder: Path, target: str) -> str | None:
    """Returns what is wrong with a relative link, or None."""
    name, _, anchor = target.partition("#")
    path = folder / name if name else None
    if path is not None and not path.exists():
        return f"{target} does not exist"
    if anchor and path is not None and path.suffix == ".md" and anchor not in anchors_of(path.read_text()):
        return f"{path.resolve().relative_to(root)} has no anchor {anchor}"
    return None


def check_document(root: Path, path: Path) -> list[str]:
    """Returns the violations of one document."""
    relative = path.relative_to(root)
    text = path.read_text()
    found = []
    for number, line in prose(text):
        for match in LINK.finditer(line):
            if "://" in match[1] or match[1].startswith("mailto:"):
                continue
            target = match[1] if not match[1].startswith("#") else path.name + match[1]
            if error := check_target(root, path.parent, target):
                found.append(f"{relative}:{number}: {error}")
        if path.name == "CHANGELOG.md":
            continue
        for match in FILE.finditer(line):
            if not (root / match[1]).exists():
                found.append(f"{relative}:{number}: {match[1]} does not exist")
        if len(line) > WIDTH and not line.lstrip().startswith("|") and "://" not in line:
            found.append(f"{relative}:{number}: {len(line)} characters, at most {WIDTH}")
    return found


def check_pages(root: Path) -> list[str]:
    """Returns what is wrong with the length of the design, the glossary, and the README's picture."""
    found = []
    lines = len((root / "docs" / "design.md").read_text().splitlines())
    if lines > DESIGN_LINES:
        found.append(f"docs/design.md: {lines} lines, at most {DESIGN_LINES}")
    glossary = re.search(r"^## Glossary$(.*?)(?=^## )", (root / "docs" / "developer.md").read_text(), re.M | re.S)
    terms = len(re.findall(r"^\| [^-]", glossary[1], re.M)) - 1 if glossary else 0
    if not 0 < terms <= TERMS:
        found.append(f"docs/developer.md: {terms} terms in the glossary, 1 to {TERMS} wanted")
    picture = PICTURE.search((root / "README.md").read_text().split("\n## ")[0])
    if picture is None or not (root / picture[1]).is_file():
        found.append("README.md: no picture before the first section")
    return found


def check_sources(root: Path, files: list[Path]) -> list[str]:
    """Returns the pages that source files name and that do not exist. The checker's own test names such on purpose."""
    found = []
    for path in files:
        if path.suffix not in SOURCES or path.name == "test_documents.py" or not path.is_file():
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for match in NAMED.finditer(line):
                if error := check_target(root, root, match[0]):
                    found.append(f"{path.relative_to(root)}:{number}: {error}")
    return found


def check(root: Path, files: list[Path]) -> list[str]:
    """Returns all violations of a project with these files."""
    documents = [path for path in files if path.suffix == ".md" and path.is_file()]
    violations = [violation for path in documents for violation in check_document(root, path)]
    return violations + check_pages(root) + check_sources(root, files)


def main() -> int:
    """Checks the project's tracked files."""
    root = Path(__file__).resolve().parent.parent
    listing = ["git", "ls-files", "-co", "--exclude-standard"]
    names = subprocess.run(listing, cwd=root, check=True, capture_output=True, text=True).stdout
    files = [root / name for name in names.splitlines()]
    violations = check(root, files)
    documents = sum(path.suffix == ".md" for path in files)
    print("\n".join([*violations, f"{documents} documents checked, {len(violations)} violations"]))
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
