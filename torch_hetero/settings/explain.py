"""``torch.hetero.explain()``: what was recorded, why it was run, and what it took, as an object that prints well.

The figures are counted where things happen, in C++; here they get names and a form.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from torch_hetero import _C

__all__ = ["Report", "explain", "reset_counters"]

# Why graphs of torch.compile could not be captured: torch_hetero/program/compiled_graph.py counts.
refused_captures: Counter[str] = Counter()

# Figures that state how things are now; a difference of two reports keeps the later one.
_LEVELS = {"entries", "allocated_bytes", "peak_bytes", "reserved_bytes", "limit_bytes", "pending_nodes", "trace_bytes"}

_TITLES = {
    "nodes": "operators recorded",
    "meta_cache": "cache of output shapes",
    "plans": "plans",
    "mispredictions": "latest calls that were not as predicted",
    "fusion": "what fusion made of the operators of the plans that were made",
    "unfused": "which of them joined no others, and why",
    "flushes": "flushes by reason",
    "compiled": "compiled programs",
    "dead_nodes": "dead nodes, never run as nobody read them",
    "kernels": "kernels run",
    "own_kernels": "kernels of hetero's own that ran in place of PyTorch's",
    "segments": "segments: launches of the accelerator that were several kernels",
    "copies": "copies between memories",
    "events": "events recorded",
    "waits": "waits for events",
    "fallbacks": "fallbacks: operators that could not be recorded",
    "rescues": "rescues: operators that the accelerator refused and the CPU computed, on copies",
    "memory": "memory",
}


@dataclass(frozen=True)
class Report:
    """A snapshot of the counters, all since the start of the process or `reset_counters`.

    Two reports can be subtracted::

        before = torch.hetero.explain()
        model(inputs).cpu()
        print(torch.hetero.explain() - before)

    Attributes:
        nodes: operators recorded, by kind: typed recorder, boxed, view (no work at all), straight (run at once).
        meta_cache: calls whose output shapes were predicted from the calls before (and calls that were other than
            predicted), hits and misses of the cache of output shapes, and its entries now.
        plans: plans made, made again for other sizes, and replayed; nodes planned, seconds spent on it, bytes of
            remembered traces.
        mispredictions: the latest calls that differed from what earlier runs let expect, with the difference.
        fusion: operators of all plans that were made: joined with others, alone in a kernel, or why they did not join.
        unfused: of these, the ones that did not join, by ``operator: reason``.
        flushes: how often recorded work was run, by the reason for it.
        compiled: calls of compiled programs (``torch.compile(backend="hetero")``), captures, and graphs that could not
            be captured and ran lazily, by reason.
        dead_nodes: recorded operators that were never run because nobody read their results.
        kernels: kernels run, by device.
        own_kernels: of these, the ones that ran in place of PyTorch's (products, convolutions, attention), by kind.
        segments: launches of the accelerator that were several of these kernels (a CUDA graph).
        copies: copies and bytes between host and accelerator memory.
        events: events recorded on queues.
        waits: waits of one queue for another.
        fallbacks: operators that could not be recorded, by name.
        rescues: calls that the accelerator's kernel refused and the CPU's computed on copies, by ``operator: reason``.
        memory: bytes allocated, reserved and reused.
        others: figures without a field of their own.
        storages_evicted: tensors that left the accelerator to make room for others.
        storages_spilled: tensors that left the host's memory likewise (``config.spill``).
        bytes_spilled: of these, what was written to files.
        plan: text of the last plan, when ``torch.hetero.config.keep_plans`` is set.
        program: what the last plan's program did, likewise: for each operator its device, the reason, the predicted and
            the measured time; for each copy its bytes; `torch_hetero.report.Program` names the fields.
    """

    nodes: dict[str, int] = field(default_factory=dict)
    meta_cache: dict[str, int] = field(default_factory=dict)
    plans: dict[str, float] = field(default_factory=dict)
    mispredictions: dict[str, int] = field(default_factory=dict)
    fusion: dict[str, int] = field(default_factory=dict)
    unfused: dict[str, int] = field(default_factory=dict)
    flushes: dict[str, int] = field(default_factory=dict)
    compiled: dict[str, Any] = field(default_factory=dict)
    dead_nodes: int = 0
    kernels: dict[str, int] = field(default_factory=dict)
    own_kernels: dict[str, int] = field(default_factory=dict)
    segments: int = 0
    copies: dict[str, int] = field(default_factory=dict)
    events: int = 0
    waits: int = 0
    storages_evicted: int = 0
    storages_spilled: int = 0
    bytes_spilled: int = 0
    fallbacks: dict[str, int] = field(default_factory=dict)
    rescues: dict[str, int] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)
    plan: str = ""
    program: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Returns all figures as nested dicts of plain values."""
        return asdict(self)

    def __sub__(self, earlier: Report) -> Report:
        if not isinstance(earlier, Report):
            return NotImplemented
        figures = _difference(self.as_dict(), earlier.as_dict())
        for table in ("flushes", "fallbacks", "rescues", "mispredictions", "own_kernels", "unfused"):
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
    counters = dict(_C.counters())
    fields = {name: counters.pop(name) for name in list(counters) if name in Report.__dataclass_fields__}
    fields.setdefault("memory", dict(_C.memory_stats()))
    fields["compiled"]["refused"] = dict(refused_captures)
    last = _C.program_log()[-1:]
    return Report(**fields, others=counters, plan=_C.plan_text(), program=json.loads(last[0]) if last else {})


def reset_counters() -> None:
    """Sets all counters back to 0; memory figures stay."""
    _C.reset_counters()
    refused_captures.clear()
