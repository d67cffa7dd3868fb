"""The plan that is active in this process: its report, and who computes values here."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from torch_hetero.migration.context import current_key, outside
from torch_hetero.migration.evaluate import evaluate
from torch_hetero.migration.recipe import Result, Source, Step, Value, call_original, host_result
from torch_hetero.migration.report import Report
from torch_hetero.migration.spec import from_tensor

__all__ = ["Session", "active", "begin", "end", "materialize", "on_device_here"]

# Failures of a strategy until its calls stay on the CPU.
MOST_FAILURES = 3


class Session:
    """An active plan.

    Attributes:
        report: Its counters.
        pid: The process that may use devices; others compute values by the original functions.
        refresh: Patches what was defined or imported since.
        failures: Failed batches by target.
        debug: Whether each value is computed both ways and compared.
        differences: What comparing found, one sentence each.
    """

    def __init__(self, report: Report, pid: int, debug: bool = False) -> None:
        self.report, self.pid, self.debug = report, pid, debug
        self.refresh: Callable[[], None] = lambda: None
        self.failures: dict[str, list[str]] = {}
        self.differences: list[str] = []

    def failed(self, step: Step, reason: str) -> None:
        """Counts a step that the originals had to compute."""
        self.failures.setdefault(step.strategy.target, []).append(reason)
        self.report.count(step.key, cpu_calls=1, reason=reason)

    def compare(self, steps: list[Step], outputs: tuple[torch.Tensor, ...]) -> None:
        """Calls the original of each step on what the device computed for its inputs, and notes where results differ."""
        for index, step in enumerate(steps):
            expected = call_original(step, host_copy)
            for spec, output, original in zip(step.outputs, outputs, expected, strict=True):
                result = np.asarray(from_tensor(output[index].cpu(), spec))
                tolerance = step.strategy.tolerance_of(step.static, step.outputs)
                wrong = tolerance.wrong(result, np.asarray(original))
                if wrong > tolerance.outliers:
                    self.report.count(step.key, differences=1)
                    self.differences.append(
                        f"{step.key}: {wrong:.2%} of the elements are not {tolerance} to the original's"
                    )

    def given_up(self, target: str) -> str | None:
        """Returns a reason not to use a strategy any more."""
        reasons = self.failures.get(target, ())
        return f"{reasons[-1]} ({MOST_FAILURES} times; not tried again)" if len(reasons) >= MOST_FAILURES else None


_active: Session | None = None


def active() -> Session | None:
    """Returns the session of this process."""
    return _active


def begin(session: Session) -> None:
    """Makes a session the active one."""
    global _active
    _active = session


def end() -> None:
    """Ends the active session. Values that were recorded can still be computed."""
    global _active
    _active = None


def after_fork() -> None:
    """In a child: counts from zero; devices are the parent's."""
    if _active is not None:
        _active.report.after_fork()


os.register_at_fork(after_in_child=after_fork)


def count_mutation() -> None:
    """Counts an array that was changed since the device got it."""
    if _active is not None:
        _active.report.mutations += 1


def count_avoided(value: Value) -> None:
    """Counts the bytes of a value that a device has already."""
    if _active is not None and value.row is not None and isinstance(value, Result):
        _active.report.count(value.step.key, avoided=value.spec.nbytes)


def count_host_call(step: Step) -> None:
    """Counts a recorded call that its original computed."""
    if _active is not None:
        _active.report.count(step.key, host_calls=1)


def count_fallback(target: str, reason: str) -> None:
    """Counts a call on a handle that the original made."""
    if _active is not None:
        _active.report.count("/".join(filter(None, (current_key(), target))), cpu_calls=1, reason=reason)


def on_device_here() -> bool:
    """Whether this process computes values on a device."""
    return _active is not None and _active.pid == os.getpid()


def device_of(value: Value) -> str:
    """Returns the device that computes a value; of a source, none."""
    return value.step.device if isinstance(value, Result) else ""


def host_copy(value: Value) -> Any:
    """Returns a copy of what a device has of a value. REQUIRES: it has a row."""
    batch, index = value.row
    return from_tensor(batch[index].cpu().clone(), value.spec)


def place(values: list[Value]) -> None:
    """Computes values on their devices."""
    session = _active
    if session is None:
        evaluate(values, torch.device(device_of(values[0]) or "cpu"))
        return

    def ran(steps: list[Step], outputs: tuple[torch.Tensor, ...], seconds: float) -> None:
        if session.debug:
            session.compare(steps, outputs)
        by_key: dict[str, int] = {}
        for step in steps:
            by_key[step.key] = by_key.get(step.key, 0) + 1
        for key, number in by_key.items():
            session.report.count(key, device_calls=number, batches=1, device_seconds=seconds * number / len(steps))

    def uploaded(step: Step, size: int) -> None:
        session.report.count(step.key, uploaded=size)

    evaluate(values, torch.device(device_of(values[0]) or "cpu"), session.failed, ran, uploaded)


@outside
def materialize(value: Value) -> Any:
    """Returns a value as a new array, image or CPU tensor, which the caller owns.

    The device computes it in the process that may use one; elsewhere the original functions do.

    Raises:
        Exception: What the original functions raise.
    """
    if isinstance(value, Source) or not on_device_here():
        return host_result(value, count_host_call)
    if value.row is None:
        place([value])
    batch, index = value.row
    if _active is not None:
        _active.report.count(value.step.key, downloaded=value.spec.nbytes)
    tensor = batch[index].cpu()
    return from_tensor(tensor.clone() if batch.device.type == "cpu" else tensor, value.spec)


@outside
def on_device(value: Value) -> torch.Tensor:
    """Returns a value as a tensor on the device that computes it; a view of the batch that it was computed in."""
    if value.row is None:
        place([value])
    batch, index = value.row
    return batch[index]
