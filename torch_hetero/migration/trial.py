"""Tries a strategy: makes calls by the original and by the strategy, as one batch, and compares.

It is the self-test when a plan is activated, and what tests and `optimize` compare with.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from torch_hetero.migration.evaluate import evaluate
from torch_hetero.migration.names import original_of
from torch_hetero.migration.recipe import Source, Step, Value
from torch_hetero.migration.record import record, results
from torch_hetero.migration.spec import from_tensor, spec_of, to_tensor
from torch_hetero.migration.strategy import Strategy, Unsupported

__all__ = ["Outcome", "source_of", "trial"]


@dataclass(frozen=True)
class Outcome:
    """One call of a trial.

    Attributes:
        reason: Why the strategy did not compute it; None if it did.
        wrong: The share of elements outside of the strategy's tolerance.
        largest: The largest difference of an element.
        accepted: Whether the result is within the tolerance.
    """

    reason: str | None
    wrong: float = 0.0
    largest: float = 0.0
    accepted: bool = True


def source_of(data: Any) -> Source | None:
    """Returns a snapshot of data, None for what is no data."""
    try:
        spec = spec_of(data)
    except TypeError as error:
        raise Unsupported(str(error)) from None
    return None if spec is None else Source(spec, to_tensor(data).clone())


def trial(
    strategy: Strategy,
    calls: Iterable[tuple[tuple[Any, ...], dict[str, Any]]],
    device: str = "cpu",
    original: Callable[..., Any] | None = None,
) -> list[Outcome]:
    """Makes calls both ways; returns an outcome for each.

    Args:
        strategy: What is tried.
        calls: Positional and keyword arguments of each call.
        device: Where the strategy runs.
        original: The function that it stands for; found by the target's name if it is not given.

    Raises:
        Exception: What the original raises.
    """
    original = original or original_of(strategy.target)
    outcomes: list[Outcome | None] = []
    recorded: list[tuple[int, Value, Any]] = []
    steps: list[Step] = []  # of `recorded`; a value that was computed has let go of its own
    failures: dict[int, str] = {}
    for positional, keywords in calls:
        random_state = torch.get_rng_state()
        try:
            step, build = record(strategy, original, *copy.deepcopy((positional, keywords)), source_of)
        except Unsupported as unsupported:
            outcomes.append(Outcome(str(unsupported)))
            continue
        torch.set_rng_state(random_state)  # the original draws the numbers that `map` drew
        expected = strategy.data_results(original(*positional, **keywords))
        recorded.extend((len(outcomes), value, data) for value, data in zip(results(step), expected, strict=True))
        steps.extend([step] * len(expected))
        outcomes.append(None)

    def failed(step: Step, reason: str) -> None:
        failures[id(step)] = reason

    evaluate([value for _, value, _ in recorded], torch.device(device), failed)
    for step, (index, value, data) in zip(steps, recorded, strict=True):
        failure = failures.get(id(step))
        outcome = compare(strategy, value, data) if failure is None else Outcome(failure)
        before = outcomes[index]
        outcomes[index] = outcome if before is None or outcome.wrong > before.wrong else before
    return outcomes


def compare(strategy: Strategy, value: Value, expected: Any) -> Outcome:
    """Compares a value that was computed on a device with the original's result."""
    batch, row = value.row
    got = from_tensor(batch[row].cpu(), value.spec)
    if type(got) is not type(expected) and value.spec.kind != "image":
        return Outcome(None, 1.0, np.inf, False)
    left, right = np.asarray(got), np.asarray(expected)
    if value.spec.kind == "image" and got.mode != expected.mode:
        return Outcome(None, 1.0, np.inf, False)
    largest = np.inf
    if left.shape == right.shape:
        wide = left.astype(np.complex128 if left.dtype.kind == "c" else np.float64)
        largest = float(np.nanmax(np.abs(wide - right), initial=0.0)) if left.size else 0.0
    tolerance = strategy.tolerance_of(value.step.static, value.step.outputs)
    return Outcome(None, tolerance.wrong(left, right), largest, tolerance.accepts(left, right))
