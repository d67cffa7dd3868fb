#!/usr/bin/env python3
"""Checks what keeps the layers apart; prints each violation as FILE:LINE and fails if there is one.

1. Includes go ops -> graph -> backend, never back, and backend/ and graph/ include nothing of torch.
2. Every header says what it is: it starts with a comment and has #pragma once.
3. No TODO, FIXME or #if 0 in the sources.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ["backend", "graph", "ops"]  # a layer may include itself and those before it
TORCH = re.compile(r"^(torch|ATen|c10|caffe2|pybind11)/|^Python\.h$")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
LEFTOVER = re.compile(r"\b(TODO|FIXME|XXX)\b|^\s*#\s*if\s+0\b")


def check(path: Path) -> list[str]:
    """Returns the violations of one C++ file."""
    lines = path.read_text().splitlines()
    relative = path.relative_to(ROOT)
    parts = relative.parts
    # Tests belong to the layer that they test.
    layer = parts[1] if parts[0] == "tests" else parts[0]
    found = []
    for number, line in enumerate(lines, 1):
        if match := INCLUDE.match(line):
            target = match[1]
            if layer in LAYERS:
                above = LAYERS[LAYERS.index(layer) + 1 :]
                if target.split("/")[0] in above:
                    found.append(f"{relative}:{number}: {layer}/ must not include {target}")
                if layer != "ops" and TORCH.search(target):
                    found.append(f"{relative}:{number}: {layer}/ is free of torch, but includes {target}")
        if LEFTOVER.search(line):
            found.append(f"{relative}:{number}: leftover: {line.strip()}")
    if path.suffix == ".h":
        if not lines or not lines[0].startswith(("//", "/*")):
            found.append(f"{relative}:1: a header starts with a comment that says what it is")
        if "#pragma once" not in lines:
            found.append(f"{relative}:1: #pragma once is missing")
    return found


def main() -> int:
    """Checks all C++ files of the project."""
    folders = [*LAYERS, "torch_hetero", "tests"]
    files = sorted(
        path for folder in folders for path in (ROOT / folder).rglob("*")
        if path.suffix in {".h", ".cpp", ".cu", ".cuh", ".def"}
    )
    violations = [violation for path in files for violation in check(path)]
    print("\n".join(violations + [f"{len(files)} C++ files checked, {len(violations)} violations"]))
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
