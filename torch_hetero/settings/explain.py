"""``torch.hetero.explain()``: what was recorded, why it was run, and what it took, as an object that prints well.

The figures are counted where things happen, in C++. Their names and texts are the rows of
``ops/settings/counters.def``; here they get a form.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field, make_dataclass
from typing import Any

from torch_hetero import _C

__all__ = ["Report", "explain", "reset_counters"]

# Why graphs of torch.compile could not be captured: torch_hetero/program/compiled_graph.py counts.
refused_captures: Counter[str] = Counter()

_ROWS: list[dict[str, str]] = _C.counter_rows()
_OF_GROUPS = [row for row in _ROWS if row["group"]]
_OF_REPORT = [row for row in _ROWS if not row["group"]]
_TITLES = {row["name"]: row["text"] for row in _OF_REPORT}
# Figures that state how things are now; a difference of two reports keeps the later one.
_LEVELS = {row["name"] for row in _ROWS if row["kind"] == "level"}
# Tables whose keys appear as they are counted.
_OPEN_TABLES = [row["name"] for row in _ROWS if row["kind"] == "table"]


def _field_of(row: dict[str, str]) -> tuple[str, type, Any]:
    if row["kind"] == "figure":
        return (row["name"], int, 0)
    return (row["name"], dict[str, Any], field(default_factory=dict))


_Figures = make_dataclass("_Figures", [_field_of(row) for row in _OF_REPORT], frozen=True)
_Figures.__module__ = __name__


@dataclass(frozen=True)
class Report(_Figures):
    """A snapshot of the counters, all since the start of the process or `reset_counters`.

    Two reports can be subtracted::

        before = torch.hetero.explain()
        model(inputs).cpu()
        print(torch.hetero.explain() - before)

    Attributes:
        plan: text of the last plan, when ``torch.hetero.config.keep_plans`` is set.
        program: what the last plan's program did, likewise: for each operator its device, the reason, the predicted and
            the measured time; for each copy its bytes; `torch_hetero.report.Program` names the fields.
    """

    plan: str = ""
    program: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Returns all figures as nested dicts of plain values."""
        return asdict(self)

    def __sub__(self, earlier: Report) -> Report:
        if not isinstance(earlier, Report):
            return NotImplemented
        figures = _difference(self.as_dict(), earlier.as_dict())
        for table in _OPEN_TABLES:
            figures[table] = {name: count for name, count in figures[table].items() if count}
        refused = figures["compiled"]["refused"]
        figures["compiled"]["refused"] = {reason: count for reason, count in refused.items() if count}
        return Report(**{**figures, "plan": self.plan, "program": self.program})

    def __str__(self) -> str:
        figures = self.as_dict()
        plan = figures.pop("plan")
        program = figures.pop("program")
        others = figures.pop("others")
        lines = ["hetero: what happened"]
        for name, value in {**figures, **others}.items():
            lines += _format(_TITLES.get(name, name.replace("_", " ")), value)
        if plan:
            lines += ["  last plan:", *(f"    {line}" for line in plan.splitlines())]
        if program:
            lines += _format_program(program)
        return "\n".join(lines)

    __repr__ = __str__


def _describe_fields() -> str:
    """Describes the fields of a report, and the figures of each that is a table, for its documentation."""
    lines = []
    for row in _OF_REPORT:
        lines.append(f"        {row['name']}: {row['text']}.")
        lines += [f"            {one['name']}: {one['text']}." for one in _OF_GROUPS if one["group"] == row["name"]]
    return "\n".join(lines)


Report.__doc__ = (Report.__doc__ or "").replace("Attributes:\n", f"Attributes:\n{_describe_fields()}\n")


def _difference(later: dict[str, Any], earlier: dict[str, Any]) -> dict[str, Any]:
    """Subtracts figure by figure; levels are those of the later report."""
    result: dict[str, Any] = {}
    for name, value in later.items():
        before = earlier.get(name)
        if isinstance(value, dict):
            result[name] = _difference(value, before if isinstance(before, dict) else {})
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and name not in _LEVELS:
            result[name] = value - (before or 0)
        else:
            result[name] = value
    return result


def _format(title: str, value: Any, indent: str = "  ") -> list[str]:
    """Formats one figure, or a table of them, largest first; a table of zeros is one line."""
    if not isinstance(value, dict):
        return [f"{indent}{title}: {value:,}" if isinstance(value, int) else f"{indent}{title}: {value}"]
    flat = {name: figure for name, figure in value.items() if not isinstance(figure, dict) }
    nested = {name: figure for name, figure in value.items() if isinstance(figure, dict)}
    if not any(flat.values()) and not nested:
        return [f"{indent}{title}: none"]
    # Names of operators stay as they are.
    flat = {name if "::" in name else name.replace("_", " "): figure for name, figure in flat.items()}
    width = max((len(name) for name in flat), default=0)
    lines = [f"{indent}{title}:"]
    for name, figure in sorted(flat.items(), key=lambda item: (-item[1], item[0])):
        text = f"{figure:,}" if isinstance(figure, int) else f"{figure:,.3f}"
        lines.append(f"{indent}  {name:<{width}}  {text:>14}")
    for name, figure in nested.items():
        lines += _format(name.replace("_", " "), figure, indent + "  ")
    return lines


# A longer program is told by what took longest.
_MOST_ROWS = 40


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{1e6 * value:,.1f} us"


def _format_program(program: dict[str, Any]) -> list[str]:
    """Formats the steps of a program: where each ran and why, what it was to take and took."""
    nodes = {node["id"]: node for node in program["nodes"]}
    steps = []
    for span in program["spans"]:
        node = nodes.get(span.get("node"), {})
        measured = None if span.get("measured_end") is None else span["measured_end"] - span["measured_begin"]
        moved = f"{span.get('bytes') or node.get('bytes') or 0:,.0f} bytes"
        steps.append((span["queue"], span["name"], node.get("reason", ""), span["end"] - span["begin"], measured, moved,
                      span.get("stall")))
    told = steps
    if len(steps) > _MOST_ROWS:
        least = sorted((step[3] for step in steps), reverse=True)[_MOST_ROWS - 1]
        told = [step for step in steps if step[3] >= least][:_MOST_ROWS]
    total = f"predicted {_seconds(program['predicted_seconds'])}, measured {_seconds(program.get('measured_seconds'))}"
    lines = [f"  last program ({program['name']}; {program['profile']}): {total}"]
    if len(told) < len(steps):
        lines.append(f"    the {len(told)} longest of {len(steps)} steps:")
    rows = [("queue", "step", "reason", "predicted", "measured", "moves", "stalls"),
            *((queue, name, reason, _seconds(predicted), _seconds(measured), moved, _seconds(stall))
              for queue, name, reason, predicted, measured, moved, stall in told)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        words = [cell.ljust(width) for cell, width in zip(row[:3], widths[:3], strict=True)]
        figures = [cell.rjust(width) for cell, width in zip(row[3:], widths[3:], strict=True)]
        lines.append("    " + "  ".join(words + figures).rstrip())
    decisions = program.get("decisions") or []
    if decisions:
        lines.append("    placements that were considered, where copies of weights that stay count a sixteenth:")
        lines += [f"      {'*' if d['chosen'] else ' '} {d['candidate']}: {_seconds(d['seconds'])}" for d in decisions]
    return lines


def explain() -> Report:
    """Returns what happened on the device so far. Counting is always on; asking flushes nothing."""
    figures = _C.counters()
    figures["compiled"]["refused"] = dict(refused_captures)
    last = _C.program_log()[-1:]
    return Report(**figures, plan=_C.plan_text(), program=json.loads(last[0]) if last else {})


def reset_counters() -> None:
    """Sets all counters back to 0; memory figures stay."""
    _C.reset_counters()
    refused_captures.clear()
