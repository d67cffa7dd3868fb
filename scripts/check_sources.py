#!/usr/bin/env python3
"""Checks the lines of C++ sources: prints each violation as FILE:LINE and fails if there is one.

1. No operator is named in quotes ("aten::cat") in ops/ or graph/, except in the op table (ops/table/). What is true
   of one operator is a word of its row. Where a name must stand elsewhere, the line or the one above says why:
   `// a name: reason`.
2. No line with a comment is wider than 100.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

WIDTH = 100
FOLDERS = ["backend", "graph", "ops", "models", "torch_hetero/csrc"]
# Folders with operators' names, and the one where they belong.
NAMED_IN = ("ops/", "graph/")
TABLE = "ops/table/"
CPP = {".h", ".cpp", ".cu", ".cuh", ".def", ".in"}
NAME = re.compile(r'"aten::')
REASON = re.compile(r"// a name: \S")
# Code up to a comment: what is in quotes is no comment.
BEFORE_COMMENT = re.compile(r"""(?:[^"'/]|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|'|/(?!/))*""")


def comment_of(line: str) -> int | None:
    """Returns where the comment of a line begins, or None."""
    end = BEFORE_COMMENT.match(line).end()
    return end if line.startswith("//", end) else None


def check_file(name: str, text: str) -> Iterator[str]:
    """Yields the violations of one file, whose path in the project is `name`."""
    above = ""
    for number, line in enumerate(text.splitlines(), 1):
        comment = comment_of(line)
        code = line if comment is None else line[:comment]
        excused = REASON.search(line) or REASON.search(above)
        if NAME.search(code) and name.startswith(NAMED_IN) and not name.startswith(TABLE) and not excused:
            wanted = "make it a word of its row, or say why (`// a name: ...`)"
            yield f"{name}:{number}: an operator's name outside {TABLE}: {wanted}"
        if comment is not None and len(line) > WIDTH:
            yield f"{name}:{number}: a comment of {len(line)} columns, at most {WIDTH}"
        above = line


def main() -> int:
    """Checks the project."""
    root = Path(__file__).resolve().parent.parent
    files = sorted(path for folder in FOLDERS for path in (root / folder).rglob("*") if path.suffix in CPP)
    violations = [found for path in files for found in check_file(str(path.relative_to(root)), path.read_text())]
    print("\n".join([*violations, f"{len(files)} sources checked, {len(violations)} violations"]))
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
