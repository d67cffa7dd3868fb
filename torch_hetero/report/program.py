"""Planned programs as plain data, one dict for each; the classes are the schema."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypedDict

__all__ = ["Decision", "Memory", "Node", "Program", "Span", "Transfer", "plain", "queues_of"]

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


class Transfer(TypedDict, total=False):
    """One transfer of blocks between two tiers of a store of keys and values. Times are seconds of one clock.

    Attributes:
        store: which store, if there are several, or None.
        type: the tiers, such as ``H2D`` or ``DISK2H``: the lane on which it ran.
        graph: number of the request.
        op: number in the request.
        position: of its first block in the request.
        blocks: how many blocks.
        first_layer: of the layers that it moves.
        layers: how many layers; 0 for all.
        bytes: bytes that are moved.
        started: when it began.
        ended: when it ended.
    """

    store: str | None
    type: str
    graph: int
    op: int
    position: int
    blocks: int
    first_layer: int
    layers: int
    bytes: int
    started: float
    ended: float


def plain(value: Any) -> Any:
    """Copies the data; numbers that JSON cannot hold become None, which is shown as unknown."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, (str, int)):
        return value
    raise TypeError(f"a report holds plain values, not {type(value).__name__}")


def queues_of(programs: Sequence[Program]) -> list[str]:
    """Returns the queues that occur, in the order in which they are shown."""
    found = dict.fromkeys(str(span.get("queue")) for program in programs for span in program.get("spans") or ())
    return [queue for queue in _QUEUES if queue in found] + [queue for queue in found if queue not in _QUEUES]
