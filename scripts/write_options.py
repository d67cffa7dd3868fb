#!/usr/bin/env python3
"""Writes the table of options into docs/configuration.md, from ops/settings/options.def.

--check writes nothing, and fails where the table is not what would be written.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROWS = ROOT / "ops" / "settings" / "options.def"
DOCUMENT = ROOT / "docs" / "configuration.md"
# The type that each kind of option has in Python.
TYPES = {
    "Bool": "bool",
    "Int": "int",
    "Queues": "int",
    "Bytes": "bytes",
    "Share": "float",
    "Policy": "str",
    "Text": "str",
}
ROW = re.compile(r'^OPTION\((\w+), (\w+), (.+?),\s*((?:"[^"\n]*"\s*)+)\)$', re.MULTILINE)
TABLE = re.compile(r"^\| option \| variable \|.*?\n\n", re.MULTILINE | re.DOTALL)


def text_of(kind: str, default: str) -> str:
    """Returns a default as the environment would give it."""
    if kind == "Bool":
        return {"false": "0", "true": "1"}[default]
    if kind == "Policy":
        return default.rpartition("::k")[2].lower()
    if kind == "Text":
        return default.strip('"')
    number, _, shift = default.partition(" << ")
    return str(int(number) << int(shift)) if shift else number


def write_table() -> str:
    """Returns the table of all options, in the order of their rows."""
    source = ROWS.read_text()
    rows = ROW.findall(source)
    if len(rows) != len(re.findall(r"^OPTION\(", source, re.MULTILINE)):
        raise SystemExit(f"{ROWS.relative_to(ROOT)}: a row is not OPTION(kind, name, default, text)")
    lines = ["| option | variable | type | default | meaning |", "|---|---|---|---|---|"]
    for kind, name, default, text in rows:
        meaning = "".join(re.findall(r'"([^"]*)"', text))
        lines.append(f"| `{name}` | `HETERO_{name.upper()}` | {TYPES[kind]} | `{text_of(kind, default)}` | {meaning} |")
    return "\n".join(lines) + "\n\n"


def main() -> int:
    """Writes or checks the document."""
    before = DOCUMENT.read_text()
    after = TABLE.sub(lambda _: write_table(), before, count=1)
    if after == before:
        return 0
    if "--check" in sys.argv[1:]:
        print(f"{DOCUMENT.relative_to(ROOT)} is not what {ROWS.relative_to(ROOT)} says; run scripts/write_options.py")
        return 1
    DOCUMENT.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
