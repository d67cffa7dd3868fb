#!/usr/bin/env python3
"""Checks the architecture: prints each violation as FILE:LINE and fails if there is one.

1. A file includes (or imports) only from its own room and from rooms above it in the table of docs/developer.md. A room is a
   folder; the table lists the rooms in the order in which they may build on each other.
2. There is no cycle of units. A unit is a header with its source, or a Python module. Imports inside functions count.
3. backend/ and graph/ include nothing of torch. models/ includes of the project only headers that
   cmake/install_headers.cmake installs, as programs of users do, and no header of torch.
4. No folder holds more than 30 files of its own.
5. Every header says what it is: it starts with a comment and has #pragma once.
6. No TODO, FIXME or #if 0 in the sources.
7. Only what runs instructions, and the verifier, names kinds of instructions. Other files ask graph/ir/instruction.h.

--report prints each room with its files and units, the arrows between rooms, and the cycles.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs" / "developer.md"
TREES = ["backend", "graph", "ops", "models", "torch_hetero"]
INSTALLED = ROOT / "cmake" / "install_headers.cmake"
CPP = {".h", ".cpp", ".cu", ".cuh", ".def", ".in"}
MOST_FILES = 30
ROW = re.compile(r"^\| `((?:%s)[\w/]*)/` \|" % "|".join(TREES))
TORCH = re.compile(r"^(torch|ATen|c10|caffe2|pybind11)/|^Python\.h$")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
LEFTOVER = re.compile(r"\b(TODO|FIXME|XXX)\b|^\s*#\s*if\s+0\b")
KINDS = re.compile(r"\bInstruction::Kind\b")
KIND_FILES = {
    "graph/ir/instruction.h",  # the table
    "graph/run/queue_run.cpp", "graph/verify/verify.cpp",
}
# What the build or a person makes and git ignores.
IGNORED = {"__pycache__", "lib", "include", "share"}


def read_rooms() -> list[str]:
    """Returns the rooms of the table in docs/developer.md, those that build on nothing first."""
    return [match[1] for line in TABLE.read_text().splitlines() if (match := ROW.match(line))]


def files_of(folder: str) -> list[Path]:
    """Returns the C++ and Python files below a folder of the project."""
    return sorted(
        path for path in (ROOT / folder).rglob("*")
        if path.suffix in CPP | {".py"} and not IGNORED & set(path.relative_to(ROOT).parts)
    )


def unit_of(path: Path) -> str:
    """Returns what a header and its source have in common: the path without its endings."""
    return str(path.relative_to(ROOT)).split(".")[0]


def room_of(unit: str, rooms: list[str]) -> str | None:
    """Returns the room that a unit lies in."""
    folder = unit.rsplit("/", 1)[0]
    return folder if folder in rooms else None


def find_module(name: str) -> Path | None:
    """Returns the file of a Python module of this project, or None."""
    if name == "torch_hetero._C":
        return ROOT / "torch_hetero" / "csrc" / "bindings.cpp"
    base = ROOT / Path(*name.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


def python_targets(path: Path) -> list[tuple[int, Path]]:
    """Returns the modules of this project that a Python file imports, with their lines."""
    found = []
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = list(package[: len(package) - node.level + 1]) if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" if find_module(f"{base}.{alias.name}") else base for alias in node.names]
        found += [(node.lineno, module) for name in dict.fromkeys(names) if (module := find_module(name)) not in (None, path)]
    return found


def find_header(name: str) -> Path | None:
    """Returns the file of an include, or None if it is not of this project. Includes of models/ start below it."""
    return next((path for path in (ROOT / name, ROOT / "models" / name) if path.is_file()), None)


def cpp_targets(path: Path) -> list[tuple[int, Path]]:
    """Returns the files of this project that a C++ file includes, with their lines."""
    lines = path.read_text().splitlines()
    found = [(number, find_header(match[1])) for number, line in enumerate(lines, 1) if (match := INCLUDE.match(line))]
    return [(number, target) for number, target in found if target]


def installed_headers() -> set[Path]:
    """Returns the headers that find_package(hetero) gives: the public ones, and what these include."""
    public = re.search(r"set\(_public\n(.*?)\)", INSTALLED.read_text(), re.S)
    waiting = [ROOT / name for name in public[1].split()] if public else []
    found: set[Path] = set()
    while waiting:
        header = waiting.pop()
        if header not in found:
            found.add(header)
            waiting += [target for _, target in cpp_targets(header)]
    return found


def find_cycles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Returns the strongly connected components of more than one unit (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    cycles = []

    def visit(unit: str) -> None:
        index[unit] = low[unit] = len(index)
        stack.append(unit)
        for target in arrows.get(unit, ()):
            if target not in index:
                visit(target)
                low[unit] = min(low[unit], low[target])
            elif target in stack:
                low[unit] = min(low[unit], index[target])
        if low[unit] == index[unit]:
            cycle = stack[stack.index(unit):]
            del stack[stack.index(unit):]
            if len(cycle) > 1:
                cycles.append(sorted(cycle))

    sys.setrecursionlimit(10_000)
    for unit in list(arrows):
        if unit not in index:
            visit(unit)
    return cycles


class House:
    """The rooms, the units in them, and the arrows between them."""

    def __init__(self) -> None:
        self.rooms = read_rooms()
        self.violations: list[str] = []
        self.arrows: dict[str, set[str]] = {}
        self.crossings: Counter[tuple[str, str]] = Counter()
        self.files: Counter[str] = Counter()
        order = {room: number for number, room in enumerate(self.rooms)}
        for path in (path for tree in TREES for path in files_of(tree)):
            unit = unit_of(path)
            room = room_of(unit, self.rooms)
            relative = path.relative_to(ROOT)
            self.arrows.setdefault(unit, set())
            self.files[str(relative.parent)] += 1
            if room is None:
                self.violations.append(f"{relative}:1: its folder is no room of the table in {TABLE.relative_to(ROOT)}")
                continue
            for number, target in python_targets(path) if path.suffix == ".py" else cpp_targets(path):
                other = unit_of(target)
                if other == unit or other.split("/")[0] not in TREES:
                    continue
                self.arrows[unit].add(other)
                there = room_of(other, self.rooms)
                if there is None or there == room:
                    continue
                self.crossings[room, there] += 1
                if order[there] > order[room]:
                    self.violations.append(f"{relative}:{number}: {room}/ must not use {other}: {there}/ comes after it")
        self.cycles = find_cycles(self.arrows)
        self.violations += [f"a cycle of {len(cycle)} units: {' '.join(cycle)}" for cycle in self.cycles]
        self.violations += [
            f"{folder}: {count} files in one folder; at most {MOST_FILES}"
            for folder, count in self.files.items() if count > MOST_FILES
        ]

    def report(self) -> str:
        """Describes the rooms, from the bottom up, and what each builds on."""
        lines = []
        for room in self.rooms:
            units = [unit for unit in self.arrows if room_of(unit, self.rooms) == room]
            uses = [f"{there} {count}" for (here, there), count in sorted(self.crossings.items()) if here == room]
            lines.append(f"{room}: {self.files[room]} files, {len(units)} units; uses {', '.join(uses) or 'nothing'}")
        upward = sum(self.rooms.index(there) > self.rooms.index(here) for here, there in self.crossings)
        lines.append(f"{len(self.rooms)} rooms, {len(self.arrows)} units, {len(self.crossings)} pairs of rooms with arrows, "
                     f"{upward} against the order, {len(self.cycles)} cycles of units")
        return "\n".join(lines)


def check_lines(path: Path, installed: set[Path]) -> list[str]:
    """Returns the violations that a C++ file shows by itself."""
    lines = path.read_text().splitlines()
    relative = path.relative_to(ROOT)
    layer = relative.parts[1] if relative.parts[0] == "tests" else relative.parts[0]  # tests belong to what they test
    found = []
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if match and layer in {"backend", "graph"}:
            if TORCH.search(match[1]):
                found.append(f"{relative}:{number}: {layer}/ is free of torch, but includes {match[1]}")
            if match[1].split("/")[0] in TREES[TREES.index(layer) + 1:]:
                found.append(f"{relative}:{number}: {layer}/ must not include {match[1]}")
        if match and relative.parts[0] == "models":
            target = find_header(match[1])
            if TORCH.search(match[1]):
                found.append(f"{relative}:{number}: models/ uses hetero's interface, but includes {match[1]}")
            if target and target.relative_to(ROOT).parts[0] != "models" and target not in installed:
                found.append(f"{relative}:{number}: models/ must not include {match[1]}, which is not installed")
        if relative.parts[0] != "tests" and str(relative) not in KIND_FILES and KINDS.search(line):
            found.append(f"{relative}:{number}: a kind of instruction; ask graph/ir/instruction.h instead")
        if LEFTOVER.search(line):
            found.append(f"{relative}:{number}: leftover: {line.strip()}")
    if path.suffix == ".h":
        if not lines or not lines[0].startswith(("//", "/*")):
            found.append(f"{relative}:1: a header starts with a comment that says what it is")
        if "#pragma once" not in lines:
            found.append(f"{relative}:1: #pragma once is missing")
    return found


def main() -> int:
    """Checks the project, or reports on its rooms."""
    house = House()
    if "--report" in sys.argv[1:]:
        print(house.report())
    files = [path for folder in [*TREES, "tests"] for path in files_of(folder) if path.suffix in CPP]
    installed = installed_headers()
    violations = house.violations + [violation for path in files for violation in check_lines(path, installed)]
    print("\n".join(violations + [f"{len(house.arrows)} units in {len(house.rooms)} rooms and {len(files)} C++ files checked, "
                                  f"{len(violations)} violations"]))
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
