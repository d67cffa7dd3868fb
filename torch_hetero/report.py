"""Reports of planned programs as files: a page for people, and a trace for Perfetto.

What was planned and run arrives here as plain Python, one dict for each program; the classes below are the schema. This
file turns it into a self-contained html page (`write_report`, which fills the template ``report.html``) or into the
Trace Event Format (`write_trace`). It knows nothing of torch and nothing of how the figures were made.

Invariants: a file is written whole or not at all as far as the data is concerned, since the text is complete before the
file is opened; the input is not changed. Thread safety: the functions share no state; the caller must not change the
dicts meanwhile.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypedDict

__all__ = ["Decision", "Memory", "Node", "Program", "Span", "write_report", "write_trace"]


class Node(TypedDict, total=False):
    """One recorded operator.

    Attributes:
        id: its number, unique in the program.
        op: the operator's name, such as ``aten::mm``.
        device: ``cpu`` or ``accelerator``.
        reason: why it is placed there.
        predicted: seconds it was predicted to take where it is.
        measured: seconds it took, or None.
        other_device: seconds it was predicted to take on the other device, or None.
        bytes: bytes that it reads and writes.
        inputs: ids of the nodes whose values it reads.
        group: number of the fused kernel it is a part of, or None.
        shape: dtype and sizes of its result, such as ``f32[8,8]``, or None.
        live: whether somebody needs the value; a dead node never runs.
    """

    id: int
    op: str
    device: str
    reason: str
    predicted: float
    measured: float | None
    other_device: float | None
    bytes: int
    inputs: list[int]
    group: int | None
    shape: str | None
    live: bool


class Span(TypedDict, total=False):
    """One instruction on a queue. Times are seconds since the beginning of the program.

    Attributes:
        queue: the queue's name, such as ``accelerator compute`` or ``accelerator h2d``.
        kind: ``run``, ``fused`` or ``copy``.
        name: the operator or what is copied.
        node: the node that runs; for a copy, the node that it is made for or whose value it carries; or None.
        buffer: the buffer that is copied, or None.
        bytes: bytes that are moved, or None.
        begin: when it was predicted to begin.
        end: when it was predicted to end.
        measured_begin: when it began, or None.
        measured_end: when it ended, or None.
        stall: seconds that the queue was predicted to wait, before ``begin``, for something on another queue, or None.
    """

    queue: str
    kind: str
    name: str
    node: int | None
    buffer: int | None
    bytes: int | None
    begin: float
    end: float
    measured_begin: float | None
    measured_end: float | None
    stall: float | None


class Memory(TypedDict, total=False):
    """Bytes in use on one device.

    Attributes:
        device: ``cpu`` or ``accelerator``.
        budget: the most bytes the plan may use there, or None.
        points: pairs of predicted seconds since the beginning of the program and the bytes in use from then on.
    """

    device: str
    budget: int | None
    points: list[list[float]]


class Decision(TypedDict, total=False):
    """One way of running the program that was considered.

    Attributes:
        candidate: what it is.
        seconds: how long the program was predicted to take that way.
        chosen: whether the plan follows it.
        detail: what speaks for or against it.
    """

    candidate: str
    seconds: float
    chosen: bool
    detail: str


class Program(TypedDict, total=False):
    """One program. A field that is None or missing is shown as unknown.

    Attributes:
        name: which flush it was and what it was for.
        profile: the devices that the prediction is for.
        budget_bytes: bytes of accelerator memory that it may use, or None.
        predicted_seconds: how long it was predicted to take.
        measured_seconds: how long it took, or None.
        counts: further figures by name; those with ``bytes`` or ``seconds`` in their name are shown with a unit.
        nodes: the recorded operators, in program order.
        spans: what the queues do.
        memory: bytes in use, by device.
        decisions: the candidates among which the plan was chosen.
    """

    name: str
    profile: str
    budget_bytes: int | None
    predicted_seconds: float
    measured_seconds: float | None
    counts: dict[str, Any]
    nodes: list[Node]
    spans: list[Span]
    memory: list[Memory]
    decisions: list[Decision]


_TEMPLATE = Path(__file__).with_name("report.html")
_PLACEHOLDER = "{{data}}"

# The order of lanes, in the page and in the trace; other queues follow in the order of their first use.
_QUEUES = (
    "accelerator compute",
    "accelerator compute 2",
    "accelerator compute 3",
    "accelerator compute 4",
    "accelerator urgent h2d",
    "accelerator h2d",
    "accelerator urgent d2h",
    "accelerator d2h",
    "cpu compute",
)

# Numbers of the trace: processes, and the thread that shows where programs begin and end.
_PREDICTED, _MEASURED = 1, 2
_PROCESS_NAMES = {_PREDICTED: "predicted", _MEASURED: "measured"}
_PROGRAMS_THREAD = 0

_NANOSECONDS = 1e9


def write_report(path: str | os.PathLike[str], programs: Sequence[Program]) -> None:
    """Writes one html page that shows programs: graph, queues over time, memory, decisions and nodes.

    The page needs no network and no other file. It holds all the data, some 300 bytes for a node and 200 for a span.

    Args:
        path: where to write it; a file that is there is replaced.
        programs: what to show, times in seconds and sizes in bytes; may be empty.

    Raises:
        OSError: when the file cannot be written.
        TypeError: when a value is not plain Python (dict, list, str, int, float, bool, None); nothing is written then.
    """
    data = {"queues": _queues(programs), "programs": _plain(programs)}
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    # In a script tag the html parser looks for "<" only; JSON has it in strings only, where this is the same letter.
    text = text.replace("<", "\\u003c")
    page = _TEMPLATE.read_text(encoding="utf-8").replace(_PLACEHOLDER, text)
    Path(path).write_text(page, encoding="utf-8")


def write_trace(path: str | os.PathLike[str], programs: Sequence[Program]) -> None:
    """Writes a trace that https://ui.perfetto.dev and chrome://tracing open.

    The format is the JSON object form of the Trace Event Format (of the Chromium project,
    https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU). Times in the file are
    microseconds with three decimals. There are two processes, "predicted" and "measured", each with a thread for every
    queue and one that shows the programs. A program begins at the same time in both, when the one before has ended in
    both. Memory is a counter of the predicted process. Arrows lead from a copy to what uses it, where that is known.

    Args:
        path: where to write it; a file that is there is replaced.
        programs: what to show, times in seconds and sizes in bytes; may be empty.

    Raises:
        OSError: when the file cannot be written.
        TypeError: when a value is not plain Python (dict, list, str, int, float, bool, None); nothing is written then.
    """
    plain = _plain(programs)
    queues = _queues(programs)
    threads = {queue: number for number, queue in enumerate(queues, start=_PROGRAMS_THREAD + 1)}
    events: list[dict[str, Any]] = []
    arrow_numbers = itertools.count(1)
    begin = 0
    for index, program in enumerate(plain):
        end = begin + _length(program)
        events += _slices(program, index, begin, threads)
        events += _arrows(program, begin, threads, arrow_numbers)
        events += _counters(program, begin)
        begin = end
    events.sort(key=lambda event: event["ts"])  # stable: programs before their spans, spans before their arrows
    events = _metadata(threads, {event["pid"] for event in events}) + events
    text = json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}, allow_nan=False)
    Path(path).write_text(text, encoding="utf-8")


def _plain(value: Any) -> Any:
    """Copies the data; numbers that JSON cannot hold become None, which is shown as unknown."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (str, int)):
        return value
    raise TypeError(f"a report holds plain values, not {type(value).__name__}")


def _queues(programs: Sequence[Program]) -> list[str]:
    """Returns the queues that occur, in the order in which they are shown."""
    found = dict.fromkeys(str(span.get("queue")) for program in programs for span in program.get("spans") or ())
    return [queue for queue in _QUEUES if queue in found] + [queue for queue in found if queue not in _QUEUES]


def _ticks(seconds: float | None) -> int | None:
    """Seconds as whole nanoseconds, so that spans that touch do not overlap by rounding."""
    return None if seconds is None else round(seconds * _NANOSECONDS)


def _times(span: dict[str, Any], process: int) -> tuple[int, int] | None:
    """Returns when a span begins and ends there, in nanoseconds of its program, or None where that is unknown."""
    prefix = "measured_" if process == _MEASURED else ""
    begin, end = _ticks(span.get(f"{prefix}begin")), _ticks(span.get(f"{prefix}end"))
    return None if begin is None or end is None else (begin, max(begin, end))


def _length(program: dict[str, Any]) -> int:
    """Returns the nanoseconds that the program takes in the trace: as long as predicted or measured, the longer."""
    ends = [_ticks(program.get("predicted_seconds")), _ticks(program.get("measured_seconds"))]
    for span in program.get("spans") or ():
        ends += [times[1] for process in _PROCESS_NAMES if (times := _times(span, process))]
    for memory in program.get("memory") or ():
        ends += [_ticks(point[0]) for point in memory.get("points") or ()]
    return max((end for end in ends if end is not None), default=0)


def _slice(name: str, process: int, thread: int, begin: int, end: int, values: dict[str, Any]) -> dict[str, Any]:
    """Returns a complete event; times in nanoseconds, values that are None left out."""
    known = {key: value for key, value in values.items() if value is not None}
    return {"ph": "X", "name": name, "cat": str(known.get("kind", "program")), "pid": process, "tid": thread,
            "ts": begin / 1e3, "dur": (end - begin) / 1e3, "args": known}


def _slices(program: dict[str, Any], index: int, origin: int, threads: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Yields the program itself and its spans, in both processes."""
    nodes = {node.get("id"): node for node in program.get("nodes") or ()}
    for process, seconds in ((_PREDICTED, "predicted_seconds"), (_MEASURED, "measured_seconds")):
        length = _ticks(program.get(seconds))
        if length is not None:
            values = {"profile": program.get("profile"), **(program.get("counts") or {})}
            yield _slice(program.get("name") or f"program {index + 1}", process, _PROGRAMS_THREAD, origin,
                         origin + length, values)
        for span in program.get("spans") or ():
            times = _times(span, process)
            if times:
                node = nodes.get(span.get("node"), {})
                values = {key: span.get(key) for key in ("kind", "node", "buffer", "bytes")}
                values |= {"stall_seconds": span.get("stall"), "reason": node.get("reason"), "shape": node.get("shape")}
                yield _slice(str(span.get("name")), process, threads[str(span.get("queue"))], origin + times[0],
                             origin + times[1], values)


def _arrows(
    program: dict[str, Any], origin: int, threads: dict[str, int], numbers: Iterator[int]
) -> Iterator[dict[str, Any]]:
    """Yields the two ends of each arrow from a copy to what uses it, in both processes."""
    for copy, user in _uses(program):
        for process in _PROCESS_NAMES:
            source, target = _times(copy, process), _times(user, process)
            if source is None or target is None:
                continue
            # Each end belongs to the span around its time, which the middle makes clear where spans touch.
            flow = {"name": "copy", "cat": "copy", "pid": process, "id": next(numbers)}
            yield {**flow, "ph": "s", "tid": threads[str(copy.get("queue"))], "ts": (origin + sum(source) // 2) / 1e3}
            yield {**flow, "ph": "f", "bp": "e", "tid": threads[str(user.get("queue"))],
                   "ts": (origin + sum(target) // 2) / 1e3}


def _uses(program: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yields pairs of a copy and a span that uses what it brings.

    1. A copy names a node that runs after it: that node uses it.
    2. A copy names a node that ran before it: the node's readers on the other device use it.
    3. A copy names only a buffer: the next span that runs and names the buffer uses it.
    A node of a fused group runs in the span of its group.
    """
    nodes = {node.get("id"): node for node in program.get("nodes") or ()}
    spans = [span for span in program.get("spans") or () if _times(span, _PREDICTED) is not None]
    work = [span for span in spans if span.get("kind") != "copy"]
    running = {span.get("node"): span for span in work}
    groups = {nodes.get(span.get("node"), {}).get("group"): span for span in work}
    readers: dict[Any, list[Any]] = {}
    buffers: dict[Any, list[dict[str, Any]]] = {}
    for number, node in nodes.items():
        for source in node.get("inputs") or ():
            readers.setdefault(source, []).append(number)
    for span in work:
        buffers.setdefault(span.get("buffer"), []).append(span)

    def follows(copy: dict[str, Any], span: dict[str, Any] | None) -> bool:
        return span is not None and _ticks(span["begin"]) >= _ticks(copy["end"])

    def where(number: Any) -> dict[str, Any] | None:
        group = nodes.get(number, {}).get("group")
        return running.get(number) or (None if group is None else groups.get(group))

    for copy in spans:
        number, buffer = copy.get("node"), copy.get("buffer")
        users: list[dict[str, Any] | None] = []
        if copy.get("kind") != "copy" or (number is None and buffer is None):
            continue
        if number is None:
            users = [span for span in buffers.get(buffer, ()) if follows(copy, span)][:1]
        elif follows(copy, where(number)):
            users = [where(number)]
        else:
            there = "cpu" if str(copy.get("queue")).endswith("d2h") else "accelerator"
            users = [where(each) for each in readers.get(number, ()) if nodes[each].get("device") == there]
        for user in {id(user): user for user in users}.values():
            if follows(copy, user):
                yield copy, user


def _counters(program: dict[str, Any], origin: int) -> Iterator[dict[str, Any]]:
    """Yields the bytes in use on each device over time, and the budget as a line of its own."""
    for memory in program.get("memory") or ():
        device = memory.get("device") or "memory"
        if memory.get("budget") is not None:
            yield {"ph": "C", "name": f"budget: {device}", "cat": "memory", "pid": _PREDICTED, "ts": origin / 1e3,
                   "args": {"bytes": memory["budget"]}}
        for seconds, size in memory.get("points") or ():
            if seconds is not None and size is not None:
                yield {"ph": "C", "name": f"memory: {device}", "cat": "memory", "pid": _PREDICTED,
                       "ts": (origin + _ticks(seconds)) / 1e3, "args": {"bytes": size}}


def _metadata(threads: dict[str, int], processes: set[int]) -> list[dict[str, Any]]:
    """Returns the events that name the processes and threads and put them in order."""
    events = []
    for process in sorted(processes):
        name = {"ph": "M", "pid": process, "tid": _PROGRAMS_THREAD}
        events.append({**name, "name": "process_name", "args": {"name": _PROCESS_NAMES[process]}})
        events.append({**name, "name": "process_sort_index", "args": {"sort_index": process}})
        for thread, number in {"programs": _PROGRAMS_THREAD, **threads}.items():
            name = {"ph": "M", "pid": process, "tid": number}
            events.append({**name, "name": "thread_name", "args": {"name": thread}})
            events.append({**name, "name": "thread_sort_index", "args": {"sort_index": number}})
    return events
