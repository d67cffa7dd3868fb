"""What a change costs (docs/house.md): files that must name a new pointwise operator, counter or option.

The rows of the tables are the samples. Code that uses a row for a purpose of its own may name it too: a lowering of
another operator, a place that counts, code that an option switches. No list may have each row once more.
"""

from __future__ import annotations

import re
from functools import cache

import pytest
from helpers import ROOT, load_module

# What the build makes and git ignores.
IGNORED = {"__pycache__", "lib", "include", "share"}

OPERATIONS = "backend/fused/operations.def"
FORMULAS = "backend/cuda/fused/formulas.h"
# An operation that is not compiled to machine code is interpreted, with the same bits.
MACHINE_CODE = "backend/cpu/fused/codegen.cpp"
# How operators are computed by operations. An operation that several lowerings use belongs to none of them.
LOWERINGS = ("ops/fused/lower_pointwise.cpp", "ops/fused/lower_reduction.cpp")
# Computes its gates by operations that are there.
RECURRENT = "ops/recurrent/steps.cpp"

# Operations that cost more, and why.
COSTLY = {
    "kRsqrt": "rounds inside in half dtypes (formula.cpp, interpreter.cu), and by place only there (lower.cpp)",
    "kSigmoidBackward": "rounds inside in half dtypes (formula.cpp, interpreter.cu)",
    "kLess": "compares indices with their bounds, too (lower.cpp)",
    "kGreaterEqual": "the same",
    "kBitwiseAnd": "the same",
    "kRelu": "kernels limit what they store in its place (launch.cpp)",
    "kPow": "a power with a number is a function of its own (formula.cpp, interpreter.cu)",
}
# Names of counters and options that other things have as well.
OTHER_MEANINGS = {
    "pending_nodes": "both an option and a counter",
    "compute_queues": "an argument of servers",
    "dead_nodes": "a member of Plan",
    "bytes_to_cpu": "a figure of predictions and of reports",
    "bytes_to_accelerator": "a figure of predictions and of reports",
}


@cache
def sources() -> dict[str, str]:
    """The product's sources without comments, by path."""
    found = {}
    for tree in ("backend", "graph", "ops", "torch_hetero"):
        for path in sorted((ROOT / tree).rglob("*")):
            relative = path.relative_to(ROOT)
            if IGNORED & set(relative.parts) or path.suffix not in {".h", ".cpp", ".cu", ".cuh", ".def", ".in", ".py"}:
                continue
            comment = r'#[^\n]*|""".*?"""' if path.suffix == ".py" else r"//.*"
            found[str(relative)] = re.sub(comment, "", path.read_text(), flags=re.S if path.suffix == ".py" else 0)
    return found


@cache
def words() -> dict[str, set[str]]:
    """The sources that have a word, by word."""
    found: dict[str, set[str]] = {}
    for path, text in sources().items():
        for word in set(re.findall(r"\w+", text)):
            found.setdefault(word, set()).add(path)
    return found


def naming(word: str, pattern: str = "") -> set[str]:
    """The sources in which a word stands, and the pattern matches."""
    return {path for path in words().get(word, set()) if re.search(pattern, sources()[path])}


def rows_of(table: str, pattern: str) -> list[tuple[str, ...]]:
    """The groups of the lines of a table that match."""
    return [match.groups("") for match in re.finditer(pattern, (ROOT / table).read_text(), re.M)]


def operations_of_operators() -> list[tuple[str, str]]:
    """Operations with their formula, of those that one row of the op table lowers to, and no lowering else."""
    operators = load_module("scripts/operators.py")
    named = [
        operation for row in operators.read_table() if row.section == "pointwise"
        for operation in re.findall(r"\bF::(k\w+)", row.properties.get("LOWER", ""))
    ]
    formulas = dict(rows_of(OPERATIONS, r"^HETERO_OPERATION\((k\w+), (\w+),"))
    return [
        (operation, formulas[operation]) for operation in dict.fromkeys(named)
        if not naming(operation) & set(LOWERINGS)
    ]


@pytest.mark.parametrize(("operation", "formula"), operations_of_operators())
def test_a_pointwise_operator_with_an_operation_of_its_own_costs_four_files(operation: str, formula: str) -> None:
    named = naming(operation, rf"\b(F|Function|MapOperation)::{operation}\b|\({operation}, ") - {MACHINE_CODE, RECURRENT}
    named |= naming(formula) & {FORMULAS}
    assert {OPERATIONS, "ops/table/op_table.def", "ops/fused/functions_impl.h"} <= named
    if operation in COSTLY:
        assert len(named) > 4, "no exception any more"
    else:
        assert len(named) <= 4, sorted(named)


def test_most_operations_are_samples() -> None:
    assert len(operations_of_operators()) >= 25


COUNTED = [
    (table, field)
    for table in ("ops/settings/counters.def", "graph/run/run_counts.def")
    for kind, first, key, field in rows_of(table, r"^(COUNTER|SECONDS|FIGURE)\((\w+), (?:(\w+), (\w+),)?")
    for field in [first if kind == "FIGURE" else field]
    # A word of English stands in other code.
    if "_" in field and field not in OTHER_MEANINGS
]


@pytest.mark.parametrize(("table", "field"), COUNTED)
def test_a_counter_costs_its_row_and_the_code_that_counts(table: str, field: str) -> None:
    named = naming(field) - {table}
    counting = naming(field, rf"\bcount(_locked)?\([^;]*\b{field}\b|\+\+[\w.>()-]*\b{field}\b|\b{field} \+=")
    assert counting
    assert named == counting, f"listed once more in {sorted(named - counting)}"


OPTIONS = [
    name for (name,) in rows_of("ops/settings/options.def", r"^OPTION\(\w+, (\w+_\w+),") if name not in OTHER_MEANINGS
]


# Where options are declared, set, read by name, shown and restored.
ABOUT_OPTIONS = re.compile(r"(ops|torch_hetero)/settings/|ops/process/option_hooks\.|torch_hetero/csrc/")


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_costs_its_row_and_the_code_that_reads_it(option: str) -> None:
    # Setting one may do more than change the value, by a hook.
    reading = naming(option, rf"\bconfig(\(\))?\.{option}\b|\bhooks\.{option}\b|\b{option}\.load\(")
    assert reading
    listed = {path for path in naming(option) - reading if ABOUT_OPTIONS.match(path)}
    assert listed == {"ops/settings/options.def"}
    assert option not in (ROOT / "tests/python/helpers.py").read_text()


def test_there_are_samples_of_counters_and_options() -> None:
    assert len(COUNTED) >= 20 and len(OPTIONS) >= 8
