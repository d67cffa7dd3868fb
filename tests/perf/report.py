"""The table of a run: as text for the terminal, as JSON for build/bench.json, as markdown for docs/performance.md.

The JSON holds one entry for each benchmark with the rows of its last run, and under which circumstances that was: a
run of some benchmarks leaves the entries of the others.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from tests.perf.measure import DEVICE, ROOT, Row

JSON = ROOT / "build" / "bench.json"


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f} {unit}" if abs(value) >= 1000 else f"{value:,.3g} {unit}"


def _figure(row: Row, value: float) -> str:
    if row.compare == "ratio":
        close = row.bar < value < row.bar + 0.005  # two digits would look like the bar
        return f"{value:.5f}" if close else f"{value:.2f}"
    return f"{value:+,.0f} {row.unit}" if row.compare == "difference" else _value(value, row.unit)


def _bar(row: Row) -> str:
    return f"≤ {row.bar:g}" + ("" if row.compare == "ratio" else f" {row.unit}")


def cells(row: Row) -> tuple[str, ...]:
    """The row's texts: what, hetero, peer, figure, quartiles, best, bar, verdict and note."""
    figure = "-" if row.figure is None else _figure(row, row.figure)
    spread = "" if row.spread is None else "–".join(_figure(row, end) for end in row.spread)
    best = "" if row.best is None else _figure(row, row.best)
    peer = row.peer_name if row.peer is None else f"{row.peer_name} {_value(row.peer, row.unit)}"
    if row.compare == "absolute":
        peer = ""
    verdict = "; ".join(filter(None, (row.verdict, row.note)))
    return row.what, _value(row.ours, row.unit), peer, figure, spread, best, _bar(row), verdict


HEAD = ("what", "hetero", "peer", "figure", "quartiles", "best", "bar", "")


def table(rows: list[Row]) -> str:
    """The rows as text with aligned columns."""
    lines = [HEAD, *map(cells, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    texts = []
    for line in lines:
        middle = [cell.rjust(width) for cell, width in zip(line[1:-1], widths[1:-1], strict=True)]
        texts.append("  ".join([line[0].ljust(widths[0]), *middle, line[-1]]).rstrip())
    texts.insert(1, "-" * (sum(widths[:-1]) + 12))
    return "\n".join(texts)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str:
    """The commit that is checked out, with a + where files differ from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def circumstances() -> dict[str, Any]:
    """Under which circumstances a benchmark runs; `load` is how many threads wanted to run in the last minute."""
    import torch

    return {
        "when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": _commit(),
        "device": DEVICE,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "load": round(os.getloadavg()[0], 2),
    }


def load() -> dict[str, Any]:
    """What the file holds, by benchmark; empty where there is none yet."""
    try:
        return json.loads(JSON.read_text())
    except (OSError, ValueError):
        return {}


def save(name: str, facts: dict[str, Any], rows: list[Row], failure: str | None) -> None:
    """Replaces the entry of one benchmark."""
    entries = load()
    figures = [{**dataclasses.asdict(row), "figure": row.figure, "verdict": row.verdict} for row in rows]
    entries[name] = {**facts, "failure": failure, "rows": figures}
    JSON.parent.mkdir(exist_ok=True)
    JSON.write_text(json.dumps(entries, indent=1) + "\n")


def _row(stored: dict[str, Any]) -> Row:
    known = {field.name for field in dataclasses.fields(Row)}
    facts = {key: value for key, value in stored.items() if key in known}
    return Row(**{**facts, "spread": tuple(facts["spread"]) if facts["spread"] else None})


def markdown(order: tuple[str, ...]) -> str:
    """The table of build/bench.json in markdown; below it, where and when its figures were taken."""
    lines = ["| what | bar | figure | quartiles | best | hetero | peer | note |", "|---|---|---|---|---|---|---|---|"]
    entries = load()
    runs: dict[str, list[str]] = {}
    for name in order:
        entry = entries.get(name)
        if entry is None:
            lines.append(f"| `{name}` | | not run | | | | | |")
            continue
        run = (
            f"{entry['when'][:10]}, commit {entry['commit']}, {entry['threads']} threads of {entry['cores']} cores "
            f"({entry['processor']}), torch {entry['torch']}"
        )
        runs.setdefault(run, []).append(name)
        if entry["failure"]:
            lines.append(f"| `{name}` | | {entry['failure']} | | | | | |")
        for row in map(_row, entry["rows"]):
            what, ours, peer, figure, spread, best, bar, _ = cells(row)
            shown = {"MISSED": f"**{figure}**", "reached": figure}.get(row.verdict, row.note or row.verdict)
            note = "" if row.figure is None else row.note
            lines.append(f"| {what} | {bar} | {shown} | {spread} | {best} | {ours} | {peer} | {note} |")
    for run, names in runs.items():
        lines += ["", f"{run}: {', '.join(names)}."]
    return "\n".join(lines)


BEGIN, END = "<!-- bench table: begin -->", "<!-- bench table: end -->"


def replace_table(path: Path, text: str) -> None:
    """Puts `text` between the two marks in a markdown file."""
    before, begin, rest = path.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{path} has no lines {BEGIN} and {END}")
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")
