"""A plan's evidence as one html page: the data flow and the time of a batch, before and with the plan.

The drawings are SVG, made here. The page needs no network, no other file and no script. Text reaches it escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from torch_hetero.migration.optimize.table import difference_text, seconds_text
from torch_hetero.migration.optimize.trace import BATCH, OTHER, PROGRAM
from torch_hetero.migration.plan import Plan
from torch_hetero.migration.report import size_text
from torch_hetero.report.page import stylesheet

__all__ = ["write_page"]

WIDTH, HEIGHT, ROW, SPACE, MARGIN = 230, 46, 100, 30, 16  # of nodes, in pixels
TIME_WIDTH, GUTTER, LANE = 1100, 120, 26
DEVICE_STATES = ("device", "follows")

STYLE = """
svg { display: block; max-width: 100%; background: var(--panel); border: 1px solid var(--line); border-radius: 8px; }
svg text { font: 12px system-ui, "DejaVu Sans", sans-serif; fill: var(--ink); }
svg .cpu { fill: var(--cpu); } svg .device { fill: var(--accelerator); } svg .end { fill: var(--other); }
svg .upload { fill: var(--h2d); } svg .download { fill: var(--d2h); } svg .wait { fill: var(--line); }
svg .step { fill: var(--other); }
svg .on-cpu { fill: var(--cpu-ink); } svg .on-device { fill: var(--accelerator-ink); } svg .on-end { fill: #000; }
svg .on-upload { fill: var(--h2d-ink); } svg .on-download { fill: var(--d2h-ink); } svg .on-wait { fill: var(--ink); }
svg .on-step { fill: #000; } svg .soft { fill: var(--soft); }
svg path { fill: none; stroke: var(--edge); stroke-width: 1.5; }
svg path.upload { fill: none; stroke: var(--h2d); stroke-width: 2.5; }
svg path.download { fill: none; stroke: var(--d2h); stroke-width: 2.5; }
svg path.stays { stroke: var(--accelerator); stroke-width: 2.5; stroke-dasharray: 6 4; }
.pair { display: flex; flex-wrap: wrap; gap: 16px; } .pair > div { flex: 1 1 480px; }
h3 { font-size: 14px; margin: 12px 0 4px; }
"""


@dataclass(frozen=True)
class Block:
    """A stretch of time in a lane: a label, seconds, and a kind that is a class of the style."""

    label: str
    seconds: float
    kind: str


def write_page(path: str | Path, plan: Plan, name: str) -> None:
    """Writes the page.

    Args:
        path: Where to write it; a file that is there is replaced.
        plan: It has evidence.
        name: The plan's, for the title.

    Raises:
        OSError: The file cannot be written.
    """
    evidence = plan.evidence
    empty = not plan.rules
    parts = [
        f"<header><h1>{escape(evidence['script'])}: its input pipeline</h1>",
        f"<p>{escape(name)}: {escape(plan.why)}</p></header><main>", figures(evidence),
        "<h2>Data flow of a batch</h2>",
        "<p>Who hands bytes to whom. Dashed: results stay on the device, and nothing is copied.</p>", legend(),
        '<div class="pair">', f"<div><h3>Without a plan</h3>{draw_flow(evidence, False)}</div>",
        "" if empty else f"<div><h3>With the plan</h3>{draw_flow(evidence, True)}</div>", "</div>",
        "" if empty else copies(evidence),
        "<h2>Time of a batch</h2>",
        "<p>Single calls were measured by themselves; the program's time is that of whole runs.</p>",
        draw_time(evidence, empty), "<h2>Calls</h2>", calls_table(evidence), "</main>",
    ]  # fmt: skip
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    Path(path).write_text(
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>hetero: {escape(name)}</title>\n<style>\n{stylesheet()}{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(filter(None, parts)) + "\n</body>\n</html>\n",
        encoding="utf-8",
    )  # fmt: skip


def figures(evidence: Mapping[str, Any]) -> str:
    """Returns the most important numbers."""
    loader, headroom = evidence["loader"], evidence.get("headroom")
    pairs = [("device", evidence["device"])]
    if loader is not None:
        pairs += [
            ("dataset", loader["dataset"]),
            ("batch", str(loader["batch_size"])),
            ("workers", str(loader["workers"])),
        ]
    if headroom is not None:
        pairs.append(("a batch without a plan", seconds_text(before_seconds(evidence))))
        pairs.append(("waiting for data", seconds_text(headroom["wait_seconds"])))
    after = after_seconds(evidence)
    if after is not None:
        pairs += [("a batch with the plan", seconds_text(after)), ("gain", f"{evidence['gain']:.2f} x")]
    return '<dl class="figures">' + "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in pairs
    ) + "</dl>"  # fmt: skip


def legend() -> str:
    """Returns the meaning of colours."""
    colours = (("CPU", "cpu"), ("device", "accelerator"), ("upload", "h2d"), ("download", "d2h"))
    return '<div class="bar">' + "".join(
        f'<span class="key"><i style="background: var(--{colour})"></i>{name}</span>' for name, colour in colours
    ) + "</div>"  # fmt: skip


def states_of(evidence: Mapping[str, Any], moved: bool) -> dict[str, str]:
    """Returns the kind of each node of the flow: where it runs, "end" for ends."""
    states = {PROGRAM: "end", BATCH: "end", OTHER: "end"}
    for call in evidence["calls"]:
        if not call["caller"] or (moved and call["state"] == "device"):
            states[call["key"]] = "device" if moved and call["state"] in DEVICE_STATES else "cpu"
    return states


def layers_of(flow: Sequence[Mapping[str, Any]], states: Mapping[str, str]) -> list[list[str]]:
    """Returns nodes in rows: each is below all that it reads; the program first, batches and other code last."""
    level = dict.fromkeys(states, 0)
    inner = [edge for edge in flow if edge["from"] in states and edge["to"] in states and edge["from"] != edge["to"]]
    for _ in range(len(states)):  # ends at the latest where there is a circle
        for edge in inner:
            if edge["to"] not in (BATCH, OTHER):
                level[edge["to"]] = max(level[edge["to"]], min(level[edge["from"]] + 1, len(states)))
    used = {edge["from"] for edge in inner} | {edge["to"] for edge in inner}
    nodes = [node for node in states if node in used or node not in (PROGRAM, BATCH, OTHER)]
    last = max((level[node] for node in nodes), default=0) + 1
    rows: dict[int, list[str]] = {}
    for node in nodes:
        rows.setdefault(last if node in (BATCH, OTHER) else level[node], []).append(node)
    return [rows[place] for place in sorted(rows)]


def draw_flow(evidence: Mapping[str, Any], moved: bool) -> str:
    """Draws who hands bytes to whom."""
    states = states_of(evidence, moved)
    layers = layers_of(evidence["flow"], states)
    if not layers:
        return '<div class="empty">No call was seen.</div>'
    most = max(map(len, layers))
    width = 2 * MARGIN + most * (WIDTH + SPACE) + 80
    height = 2 * MARGIN + (len(layers) - 1) * ROW + HEIGHT
    places: dict[str, tuple[float, float, int]] = {}
    for row, nodes in enumerate(layers):
        left = MARGIN + (most - len(nodes)) * (WIDTH + SPACE) / 2
        for column, node in enumerate(nodes):
            places[node] = (left + column * (WIDTH + SPACE), MARGIN + row * ROW, row)
    calls = {call["key"]: call for call in evidence["calls"]}
    edges = [draw_edge(edge, places, states, evidence["batches"]) for edge in evidence["flow"]
             if edge["from"] in places and edge["to"] in places]  # fmt: skip
    boxes = [draw_node(node, places[node], states[node], calls.get(node)) for node in places]
    label = "with the plan" if moved else "without a plan"
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" role="img" aria-label="Data flow {label}">'
        + "".join([*edges, *boxes]) + "</svg>"
    )  # fmt: skip


def draw_node(node: str, place: tuple[float, float, int], state: str, call: Mapping[str, Any] | None) -> str:
    """Draws a call, or an end of the flow."""
    x, y, _ = place
    detail = "" if call is None else f"{call['calls']:g} calls, {seconds_text(node_seconds(call, state))}"
    title = node if call is None else f"{node}: {call['why']}"
    lines = text(x + WIDTH / 2, y + (28 if not detail else 20), shortened(node, 32), f"on-{state}", "middle")
    if detail:
        lines += text(x + WIDTH / 2, y + 36, detail, f"on-{state}", "middle")
    radius = HEIGHT / 2 if state == "device" else 4
    return (
        f'<g><title>{escape(title)}</title><rect class="{state}" x="{x:.1f}" y="{y:.1f}" width="{WIDTH}" '
        f'height="{HEIGHT}" rx="{radius:g}"/>{lines}</g>'
    )


def draw_edge(
    edge: Mapping[str, Any], places: Mapping[str, tuple[float, float, int]], states: Mapping[str, str], batches: int
) -> str:
    """Draws bytes on their way, and says where they are copied."""
    (x1, y1, row1), (x2, y2, row2) = places[edge["from"]], places[edge["to"]]
    kind, verb = copy_of(edge, states)
    size = size_text(edge["bytes"] / batches)
    label = f"{verb} {size}".strip() if kind != "stays" else f"stays, {size}"
    if row2 == row1 + 1:
        left, top, right, bottom = x1 + WIDTH / 2, y1 + HEIGHT, x2 + WIDTH / 2, y2
        path = curve((left, top), (left, top + 30), (right, bottom - 30), (right, bottom))
        middle = ((left + right) / 2 + 8, (top + bottom) / 2 + 4)
    else:  # around the right side
        right1, right2, side = x1 + WIDTH, x2 + WIDTH, max(x1, x2) + WIDTH + 44
        top, bottom = y1 + HEIGHT / 2, y2 + HEIGHT / 2
        path = curve((right1, top), (side, top), (side, bottom), (right2, bottom))
        middle = (max(right1, right2) - 20, (top + bottom) / 2 + 4)
    each = size_text(edge["bytes"] / max(1, edge["number"]))
    title = f"{edge['from']} to {edge['to']}: {edge['number'] / batches:g} times {each}"
    return f'<g><title>{escape(title)}</title><path class="{kind}" d="{path}"/>{text(*middle, label, "soft")}</g>'


def curve(*points: tuple[float, float]) -> str:
    """Returns the path of a curve, from four points."""
    first, *others = [f"{x:.1f} {y:.1f}" for x, y in points]
    return f"M{first} C{' '.join(others)}"


def copy_of(edge: Mapping[str, Any], states: Mapping[str, str]) -> tuple[str, str]:
    """Returns the kind of an edge, and its verb."""
    there, here = states[edge["from"]] == "device", states[edge["to"]] == "device"
    if there and (here or edge["to"] == BATCH):
        return "stays", ""
    return ("upload", "upload") if here else ("download", "download") if there else ("host", "")


def copies(evidence: Mapping[str, Any]) -> str:
    """Returns which copies are made with the plan, and which went away."""
    states = states_of(evidence, True)
    lines = []
    for edge in evidence["flow"]:
        if edge["from"] in states and edge["to"] in states:
            kind, verb = copy_of(edge, states)
            size, way = size_text(edge["bytes"] / evidence["batches"]), f"{edge['from']} to {edge['to']}"
            if kind == "stays":
                what = "the batch is made of them on the device" if edge["to"] == BATCH else "not copied"
                lines.append(f"{way}: {size} stay on the device; {what}")
            elif kind != "host":
                lines.append(f"{way}: {verb} of {size}")
    counters = chosen_run(evidence).get("counters", {})
    for key, counts in counters.items():
        lines.append(
            f"counted for {key} in a run: {counts['device_calls']} calls in {counts['batches']} batches, "
            f"{size_text(counts['uploaded'])} up, {size_text(counts['downloaded'])} down, "
            f"{size_text(counts['avoided'])} not uploaded again"
        )
        lines += [f"{key} stayed on the CPU {number} times: {reason}" for reason, number in counts["fallbacks"].items()]
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def draw_time(evidence: Mapping[str, Any], empty: bool) -> str:
    """Draws the time of a batch, without and with the plan, on one scale."""
    before = lanes_of(evidence, False)
    drawn = [("without a plan", before)] + ([] if empty else [("with the plan", lanes_of(evidence, True))])
    longest = max((sum(block.seconds for block in blocks) for _, lanes in drawn for _, blocks in lanes), default=0.0)
    if not longest:
        return '<div class="empty">Nothing was measured.</div>'
    parts, y = [], MARGIN
    for title, lanes in drawn:
        total = max(sum(block.seconds for block in blocks) for _, blocks in lanes)
        parts.append(text(8, y + 10, f"{title}: {seconds_text(total)}", ""))
        y += 20
        for name, blocks in lanes:
            parts.append(text(8, y + 17, name, "soft"))
            parts += draw_lane(blocks, y, longest)
            y += LANE + 4
        y += 14
    return (
        f'<svg viewBox="0 0 {GUTTER + TIME_WIDTH + MARGIN} {y}" width="{GUTTER + TIME_WIDTH + MARGIN}" role="img" '
        'aria-label="Time of a batch">' + "".join(parts) + "</svg>"
    )


def draw_lane(blocks: Iterable[Block], y: float, longest: float) -> Iterable[str]:
    """Draws what one lane does, one block after the other."""
    x = float(GUTTER)
    for block in blocks:
        width = block.seconds / longest * TIME_WIDTH
        name = shortened(block.label, int(width / 8.5)) if width > 28 else ""
        yield (
            f"<g><title>{escape(block.label)}: {seconds_text(block.seconds)}</title>"
            f'<rect class="{block.kind}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{LANE}" rx="2"/>'
            f"{text(x + 5, y + 17, name, f'on-{block.kind}')}</g>"
        )
        x += width


def lanes_of(evidence: Mapping[str, Any], moved: bool) -> list[tuple[str, list[Block]]]:
    """Returns what loading, the device and the program do during a batch."""
    states = states_of(evidence, moved)
    headroom = evidence.get("headroom") or {"seconds": 0.0, "wait_seconds": None}
    calls = [call for call in evidence["calls"] if call["key"] in states]
    host = [Block(call["key"], host_seconds(call), "cpu") for call in calls if states[call["key"]] == "cpu"]
    device: list[Block] = []
    for call in calls:
        if states[call["key"]] == "device":
            candidate = call["candidates"][0]
            host.append(Block(f"{call['key']}, recorded", call["calls"] * candidate["record_seconds"], "wait"))
            if any(edge["to"] == call["key"] and states.get(edge["from"]) != "device" for edge in evidence["flow"]):
                device.append(Block(f"upload for {call['key']}", call["calls"] * candidate["upload_seconds"], "upload"))
            device.append(Block(call["key"], node_seconds(call, "device"), "device"))
            if any(copy_of(edge, states)[0] == "download" for edge in evidence["flow"]
                   if edge["from"] == call["key"] and edge["to"] in states):  # fmt: skip
                seconds = call["calls"] * candidate["download_seconds"]
                device.append(Block(f"download of {call['key']}", seconds, "download"))
    known = sum(host_seconds(call) for call in calls if not call["caller"])
    wait = headroom["wait_seconds"]
    loader = evidence["loader"]
    other = max(0.0, wait - known) if wait is not None and loader and not loader["workers"] else 0.0
    host.append(Block("other loading", other, "step"))
    workers = f" ({loader['workers']} workers)" if loader and loader["workers"] else ""
    lanes = [(f"loading{workers}", [block for block in host if block.seconds > 0])]
    if moved:
        lanes.append(("device", [block for block in device if block.seconds > 0]))
    step = headroom["seconds"] - wait if wait is not None else headroom["seconds"]
    total = after_seconds(evidence) if moved else before_seconds(evidence)
    if total:
        program = [
            Block("loading and waiting", max(0.0, total - step), "wait"),
            Block("the step", min(step, total), "step"),
        ]
        lanes.append(("the program", [block for block in program if block.seconds > 0]))
    return lanes


def host_seconds(call: Mapping[str, Any]) -> float:
    """Returns the seconds of a key's calls in a batch by the original: as measured warm, else as traced."""
    measured = call["candidates"][0]["original_seconds"] if call["candidates"] else 0.0
    return call["calls"] * (measured or call["seconds"])


def node_seconds(call: Mapping[str, Any], state: str) -> float:
    """Returns the seconds of a key's calls in a batch."""
    times = call["candidates"][0]["device_seconds"] if call["candidates"] else {}
    if state != "device" or not times:
        return host_seconds(call)
    return call["calls"] * times[max(times, key=int)]


def chosen_run(evidence: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the runs with the plan that was kept; nothing if none was."""
    keys = sorted(call["key"] for call in evidence["calls"] if call["state"] == "device")
    runs = evidence.get("end_to_end", {}).get("plans", ())
    return next((run for run in runs if run["keys"] == keys and "gain" in run), {}) if "gain" in evidence else {}


def before_seconds(evidence: Mapping[str, Any]) -> float:
    """Returns the seconds of a batch without a plan: the best of the runs that took turns, else of the first run."""
    measured = evidence.get("end_to_end", {}).get("without")
    return min(measured) if measured else (evidence.get("headroom") or {"seconds": 0.0})["seconds"]


def after_seconds(evidence: Mapping[str, Any]) -> float | None:
    """Returns the seconds of a batch with the plan; None if none was kept."""
    return min(chosen_run(evidence).get("seconds", ()), default=None)


def calls_table(evidence: Mapping[str, Any]) -> str:
    """Returns the calls as a table."""
    head = ("context key", "calls", "time", "in", "out", "candidate", "one", "batch", "difference", "runs on", "why")
    rows = []
    for call in evidence["calls"]:
        tried = call["candidates"][0] if call["candidates"] else None
        times = tried["device_seconds"] if tried else {}
        cells = [
            call["key"], f"{call['calls']:g}", seconds_text(call["seconds"]), size_text(call["bytes_in"]),
            size_text(call["bytes_out"]), f"{tried['strategy']} ({tried['tolerance']})" if tried else "not tried",
            seconds_text(times.get("1")), seconds_text(times[max(times, key=int)] if times else None),
            difference_text(tried) if tried else "-", call["state"], call["why"],
        ]  # fmt: skip
        kinds = ["", *["number"] * 4, "", *["number"] * 3, "", "wide"]
        rows.append("".join(f'<td class="{kind}">{escape(cell)}</td>' for kind, cell in zip(kinds, cells, strict=True)))
    header = "".join(f"<th>{name}</th>" for name in head)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table></div>'


def text(x: float, y: float, content: str, kind: str, anchor: str = "start") -> str:
    """Returns text at a place."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(content)}</text>'


def shortened(name: str, most: int) -> str:
    """Returns the end of a name, which tells more than its beginning."""
    return name if len(name) <= most else f"…{name[len(name) - most + 1 :]}" if most > 1 else ""
