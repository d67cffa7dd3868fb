"""Programs in the Trace Event Format, for Perfetto and ``chrome://tracing``."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch_hetero.report.program import Program, plain, queues_of

__all__ = ["write_trace"]

# Numbers of the trace: processes, and the thread that shows where programs begin and end.
_PREDICTED, _MEASURED = 1, 2
_PROCESS_NAMES = {_PREDICTED: "predicted", _MEASURED: "measured"}
_PROGRAMS_THREAD = 0

_NANOSECONDS = 1e9


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
    shown = plain(programs)
    queues = queues_of(programs)
    threads = {queue: number for number, queue in enumerate(queues, start=_PROGRAMS_THREAD + 1)}
    events: list[dict[str, Any]] = []
    arrow_numbers = itertools.count(1)
    begin = 0
    for index, program in enumerate(shown):
        end = begin + _length(program)
        events += _slices(program, index, begin, threads)
        events += _arrows(program, begin, threads, arrow_numbers)
        events += _counters(program, begin)
        begin = end
    events.sort(key=lambda event: event["ts"])  # stable: programs before their spans, spans before their arrows
    events = _metadata(threads, {event["pid"] for event in events}) + events
    text = json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}, allow_nan=False)
    Path(path).write_text(text, encoding="utf-8")


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
    for copy, user in _Uses(program).pairs():
        for process in _PROCESS_NAMES:
            source, target = _times(copy, process), _times(user, process)
            if source is None or target is None:
                continue
            # Each end belongs to the span around its time, which the middle makes clear where spans touch.
            flow = {"name": "copy", "cat": "copy", "pid": process, "id": next(numbers)}
            yield {**flow, "ph": "s", "tid": threads[str(copy.get("queue"))], "ts": (origin + sum(source) // 2) / 1e3}
            yield {**flow, "ph": "f", "bp": "e", "tid": threads[str(user.get("queue"))],
                   "ts": (origin + sum(target) // 2) / 1e3}


class _Uses:
    """Which span uses what a copy brings.

    1. A copy names a node that runs after it: that node uses it.
    2. A copy names a node that ran before it: the node's readers on the other device use it.
    3. A copy names only a buffer: the next span that runs and names the buffer uses it.
    A node of a fused group runs in the span of its group.
    """

    def __init__(self, program: dict[str, Any]) -> None:
        self._nodes = {node.get("id"): node for node in program.get("nodes") or ()}
        self._spans = [span for span in program.get("spans") or () if _times(span, _PREDICTED) is not None]
        work = [span for span in self._spans if span.get("kind") != "copy"]
        self._running = {span.get("node"): span for span in work}
        self._groups = {self._group_of(span.get("node")): span for span in work}
        self._readers: dict[Any, list[Any]] = {}
        for number, node in self._nodes.items():
            for source in node.get("inputs") or ():
                self._readers.setdefault(source, []).append(number)
        self._buffers: dict[Any, list[dict[str, Any]]] = {}
        for span in work:
            self._buffers.setdefault(span.get("buffer"), []).append(span)

    def pairs(self) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Yields pairs of a copy and a span that uses what it brings."""
        for copy in self._spans:
            if copy.get("kind") == "copy":
                for user in {id(user): user for user in self._users_of(copy)}.values():
                    yield copy, user

    def _users_of(self, copy: dict[str, Any]) -> list[dict[str, Any]]:
        number, buffer = copy.get("node"), copy.get("buffer")
        if number is None:
            users = [] if buffer is None else self._buffers.get(buffer, ())
            return [span for span in users if _follows(copy, span)][:1]
        if _follows(copy, self._span_of(number)):
            return [self._span_of(number)]
        there = "cpu" if str(copy.get("queue")).endswith("d2h") else "accelerator"
        readers = [each for each in self._readers.get(number, ()) if self._nodes[each].get("device") == there]
        return [span for span in map(self._span_of, readers) if _follows(copy, span)]

    def _group_of(self, number: Any) -> Any:
        return self._nodes.get(number, {}).get("group")

    def _span_of(self, number: Any) -> dict[str, Any] | None:
        group = self._group_of(number)
        return self._running.get(number) or (None if group is None else self._groups.get(group))


def _follows(copy: dict[str, Any], span: dict[str, Any] | None) -> bool:
    return span is not None and _ticks(span["begin"]) >= _ticks(copy["end"])


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
