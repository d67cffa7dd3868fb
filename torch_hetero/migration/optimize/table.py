"""A plan and its evidence as text: what was called, how long it took, what was tried, what was chosen and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch_hetero.migration.plan import Plan
from torch_hetero.migration.report import size_text

__all__ = ["columns", "difference_text", "explain", "seconds_text"]

HEADER = (
    "context key", "calls", "time", "in", "out", "candidate", "original", "one", "batch", "samples", "difference",
    "runs on",
)  # fmt: skip


def seconds_text(seconds: float | None) -> str:
    """Returns "1.5 ms"; "-" for None."""
    if seconds is None:
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def difference_text(candidate: Mapping[str, Any]) -> str:
    """Returns the largest difference of a candidate's elements."""
    if not candidate["samples"]:
        return "-"
    return "none" if candidate["largest"] == 0 else f"{candidate['largest']:.3g}"


def columns(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> list[str]:
    """Returns rows as lines in which columns are aligned; those in `left` to the left, others to the right."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return [
        "  ".join(
            entry.ljust(width) if place in left else entry.rjust(width)
            for place, (entry, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def explain(plan: Plan, name: str = "the plan") -> str:
    """Returns everything about a plan for people."""
    evidence = plan.evidence
    lines = [f"{name}: {plan.why or 'written by hand'}"]
    if not evidence:
        return "\n".join([*lines, *(rule_line(rule) for rule in plan.rules), *changes_of(plan)])
    lines += [*about_run(evidence), ""]
    rows = [HEADER]
    reasons: list[list[str]] = [[]]
    for call in evidence["calls"]:
        rows.append(call_row(call))
        reasons.append(
            [f"sizes: {'; '.join(f'{text} x {number}' for text, number in call['sizes'])}"] * bool(call["sizes"])
            + [f"why: {call['why']}"] * bool(call["why"])
        )
    for line, texts in zip(columns(rows, (0, 5, 11)), reasons, strict=True):
        lines += [line, *(f"    {text}" for text in texts)]
    lines += ["", "data in a batch:"]
    lines += (
        [f"  {line}" for line in columns([flow_row(flow, evidence) for flow in evidence["flow"]], (0, 1, 2))]
        if (evidence["flow"])
        else ["  none was seen"]
    )
    return "\n".join([*lines, *end_to_end(evidence), *changes_of(plan)])


def rule_line(rule: Any) -> str:
    """Returns one rule."""
    return f"  {rule.key}: {rule.device}, {rule.mode}"


def changes_of(plan: Plan) -> list[str]:
    """Returns what differs from where the plan was measured."""
    return [f"differs here: {change}" for change in plan.changes()]


def about_run(evidence: Mapping[str, Any]) -> list[str]:
    """Returns what was traced, and how long the program waits."""
    loader, headroom = evidence["loader"], evidence.get("headroom")
    if loader is None:
        lines = [f"  {evidence['script']}, the whole run, since it used no DataLoader; device {evidence['device']}"]
    else:
        lines = [
            f"  {evidence['script']}: {evidence['batches']} batches of {loader['batch_size']} samples of "
            f"{loader['dataset']}, {loader['workers']} workers; device {evidence['device']}"
        ]
    if headroom is not None:
        unit = "the run takes" if loader is None else "a batch takes"
        wait = headroom["wait_seconds"]
        waits = "" if wait is None else f", of which the program waits {seconds_text(wait)} for data"
        lines.append(
            f"  {unit} {seconds_text(headroom['seconds'])}{waits}; the calls below take "
            f"{seconds_text(headroom['calls_seconds'])} on one core"
        )
    return lines


def call_row(call: Mapping[str, Any]) -> list[str]:
    """Returns the table's row of a context key; seconds and bytes are those of one call."""
    row = [
        call["key"], f"{call['calls']:g}", seconds_text(call["seconds"]), size_text(call["bytes_in"]),
        size_text(call["bytes_out"]),
    ]  # fmt: skip
    if not call["candidates"]:
        return [*row, "not tried", "-", "-", "-", "-", "-", call["state"]]
    candidate = call["candidates"][0]
    batches = {int(number): seconds for number, seconds in candidate["device_seconds"].items()}
    most = max(batches, default=None)
    return [
        *row, f"{candidate['strategy']} ({candidate['tolerance'].split(':')[0]})",
        seconds_text(candidate["original_seconds"] or None), seconds_text(batches.get(1)),
        "-" if most is None else f"{seconds_text(batches[most])} of {most}", str(candidate["samples"]),
        difference_text(candidate), call["state"],
    ]  # fmt: skip


def flow_row(flow: Mapping[str, Any], evidence: Mapping[str, Any]) -> list[str]:
    """Returns who hands how many bytes to whom."""
    batches = evidence["batches"]
    return [flow["from"], "->", flow["to"], f"{flow['number'] / batches:g} x", size_text(flow["bytes"] / batches)]


def end_to_end(evidence: Mapping[str, Any]) -> list[str]:
    """Returns what the program took with and without plans."""
    measured = evidence.get("end_to_end")
    if measured is None:
        return []
    texts = ", ".join(map(seconds_text, measured["without"]))
    lines = ["", f"a batch without a plan: {texts}"]
    for plan in measured["plans"]:
        keys = ", ".join(plan["keys"])
        if "failed" in plan:
            lines.append(f"with {keys} on {evidence['device']}: {plan['failed']}")
        else:
            texts = ", ".join(map(seconds_text, plan["seconds"]))
            lines.append(f"with {keys} on {evidence['device']}: {texts}; {plan['gain']:.2f} times as fast")
    return lines
