#!/usr/bin/env python3
"""Reads the op table, ops/table/op_table.def.

    scripts/operators.py            prints it: each operator, what its row says, and what is missing
    scripts/operators.py --write    writes docs/operators.md
    scripts/operators.py --check    fails where docs/operators.md says something else
    scripts/operators.py --headers FOLDER ATEN
                                    writes the headers that include ATen/ops/*_ops.h for the rows; the build does
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "ops" / "table" / "op_table.def"
DOCUMENT = ROOT / "docs" / "operators.md"
SECTION = re.compile(r"^#if.*?HETERO_(\w+?)_ROWS")
ROW = re.compile(r"^([A-Z]+)\((.*)\)$")
PROPERTY = re.compile(r"([A-Z_]+)(?:\(((?:[^()]|\([^()]*\))*)\))?(?:\s+|$)")
TYPED = {"OUT": "typed, `out`", "NEW": "typed", "INPLACE": "typed, in place", "CODE": "typed, own code"}
HOW = {**TYPED, "RANDOM": "boxed, own numbers", "BOXED": "boxed", "FAMILY": "family"}
# Properties with a column of their own; the others share one.
COLUMNS = {"LOWER", "LOWER_ROWS", "OWN", "SHAPE"}
# Classes of operators that fused kernels can compute.
FUSED = {"pointwise", "reduction", "normalization"}


@dataclass
class Row:
    """A row of the op table: its kind, its arguments, its properties, and the section it stands in."""

    kind: str
    arguments: list[str]
    section: str
    properties: dict[str, str] = field(default_factory=dict)

    @property
    def symbol(self) -> str:
        """The operator's name in at::_ops: add__Tensor."""
        return self.arguments[0].strip('"').removeprefix("aten::").replace(".", "_")

    @property
    def op_class(self) -> str:
        """The OpClass, without its k."""
        place = {"OUT": 2, "NEW": 1, "INPLACE": 1, "CODE": 1, "BOXED": 1}.get(self.kind)
        return self.arguments[place][1:].lower() if place else "random" if self.kind == "RANDOM" else ""

    @property
    def symbols(self) -> list[str]:
        """The names in at::_ops that the row uses."""
        return self.arguments[:2] if self.kind == "OUT" else self.arguments[:1] if self.kind in TYPED else []

    @property
    def is_fused(self) -> bool:
        """Whether the row names a lowering."""
        return not {"LOWER", "LOWER_ROWS"}.isdisjoint(self.properties)

    @property
    def functional(self) -> str:
        """The symbol of the form that makes a new tensor: add_Tensor for add__Tensor."""
        return self.symbol[:-1] if self.symbol.endswith("_") else self.symbol.replace("__", "_")

    def missing(self, fused: set[str]) -> list[str]:
        """What other operators of its kind have, given the symbols of those with a lowering."""
        if self.kind not in TYPED:
            return []
        found = []
        if self.kind == "NEW" and "TAKES_MEMORY" not in self.properties:
            found.append("`out`")
        if self.op_class in FUSED and fused.isdisjoint((self.symbol, self.functional)):
            found.append("lowering")
        if self.kind != "INPLACE" and self.op_class not in ("pointwise", "copy") and "SHAPE" not in self.properties:
            found.append("shape rule")
        return found


def split_arguments(text: str) -> list[str]:
    """Splits at the commas that are in no bracket."""
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "(<") - (letter in ")>")
        if letter == "," and depth == 0:
            parts.append(text[start:place].strip())
            start = place + 1
    return [*parts, text[start:].strip()]


def read_table() -> list[Row]:
    """Returns the rows in their order."""
    rows, section = [], ""
    for line in TABLE.read_text().splitlines():
        if match := SECTION.match(line):
            section = match[1].lower()
        elif match := ROW.match(line):
            kind, arguments = match[1], split_arguments(match[2])
            fixed = 3 if kind == "OUT" else 1 if kind == "FAMILY" else 2
            properties = {name: value for name, value in PROPERTY.findall(" ".join(arguments[fixed:]))}
            rows.append(Row(kind, arguments[:fixed], section, properties))
    return rows


def write_headers(folder: Path, aten: Path) -> None:
    """Writes one header per section, and all.h, that include what the rows' names are declared in."""
    declared = {
        symbol: header.name
        for header in sorted((aten / "ATen" / "ops").glob("*_ops.h"))
        for symbol in re.findall(r"^struct TORCH_API (\w+) \{", header.read_text(), re.MULTILINE)
    }
    rows = read_table()
    folder.mkdir(parents=True, exist_ok=True)
    for section in sorted({"all"} | {row.section for row in rows}):
        symbols = {symbol for row in rows if section in ("all", row.section) for symbol in row.symbols}
        if unknown := symbols - declared.keys():
            raise SystemExit(f"{TABLE}: at::_ops has no {', '.join(sorted(unknown))}")
        includes = "".join(f"#include <ATen/ops/{header}>\n" for header in sorted({declared[s] for s in symbols}))
        path = folder / f"{section}.h"
        text = f"// Made from ops/table/op_table.def by scripts/operators.py.\n\n#pragma once\n\n{includes}"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def cells_of(row: Row, fused: set[str]) -> list[str]:
    """Returns what the document shows of a row."""
    lowering = "rows" if "LOWER_ROWS" in row.properties else "yes" if "LOWER" in row.properties else ""
    own = row.properties.get("OWN", row.arguments[1] if row.kind == "RANDOM" else "")
    rest = [f"{name}({value})" if value else name for name, value in row.properties.items() if name not in COLUMNS]
    name = row.arguments[0].strip('"')
    return [
        f"`{name}`", HOW[row.kind], row.op_class, f"`{own}`" if own else "", lowering,
        row.properties.get("SHAPE", "")[1:], " ".join(f"`{word}`" for word in rest), ", ".join(row.missing(fused)),
    ]


def make_document() -> str:
    """Returns the text of docs/operators.md."""
    rows = read_table()
    typed = [row for row in rows if row.kind in TYPED]
    fused = {row.symbol for row in rows if row.is_fused}
    missing = Counter(what for row in rows for what in row.missing(fused))
    lines = [
        "# Operators",
        "",
        "Made by `scripts/operators.py --write` from [the op table](../ops/table/op_table.def), whose",
        "first lines say what the words mean. Every other operator is recorded without a row: by its",
        "schema and its Meta kernel, and by the CPU's kernel when it runs.",
        "",
        f"{len(typed)} operators have a typed recorder and kernel, and {len(rows) - len(typed)} rows are about others.",
        "Of the typed ones, "
        + ", ".join(f"{count} have no {what}" for what, count in sorted(missing.items()))
        + ".",
        "",
        "| operator | recorded | class | own kernel | fused | shape rule | also | missing |",
        "|---|---|---|---|---|---|---|---|",
        *(f"| {' | '.join(cells_of(row, fused))} |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--headers", nargs=2, type=Path, metavar=("FOLDER", "ATEN"))
    arguments = parser.parse_args()
    if arguments.headers:
        write_headers(*arguments.headers)
    elif arguments.write:
        DOCUMENT.write_text(make_document())
    elif not arguments.check:
        print(make_document(), end="")
    elif not DOCUMENT.exists() or DOCUMENT.read_text() != make_document():
        raise SystemExit("docs/operators.md is not what the op table says: run scripts/operators.py --write")


if __name__ == "__main__":
    main()
