"""Measures originals, strategies and copies at the sizes that a trace has seen, and verifies strategies on its samples.

All times are the least of some rounds, after rounds that are not counted: kernels are compiled in those.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from torch_hetero.migration.context import untracked
from torch_hetero.migration.evaluate import dense, evaluate
from torch_hetero.migration.optimize.loader import synchronize
from torch_hetero.migration.optimize.trace import Sample, Seen, known_spec
from torch_hetero.migration.recipe import Source, Value
from torch_hetero.migration.record import record, results
from torch_hetero.migration.strategy import Strategy, Unsupported
from torch_hetero.migration.trial import source_of, trial

__all__ = ["Candidate", "measure"]

ROUNDS = 7
WARM_ROUNDS = 3
MOST_SECONDS = 1.0  # for the rounds of one figure
MOST_BATCH_BYTES = 1 << 29


@dataclass
class Candidate:
    """A strategy at one context key. Seconds are those of one call.

    Attributes:
        strategy: The target.
        tolerance: How far results may be from the original's, as text.
        original_seconds: Of the original function.
        record_seconds: To record the call, on the CPU, where the sample is prepared, without its data.
        device_seconds: To compute it on the device, by the number of calls in the batch.
        upload_seconds: To copy its data where the sample is prepared, and to bring it to the device.
        download_seconds: To bring its results back.
        samples: Calls on which it was verified.
        largest: The largest difference of an element.
        reason: Why it cannot be used; empty if it can.
    """

    strategy: str
    tolerance: str = ""
    original_seconds: float = 0.0
    record_seconds: float = 0.0
    device_seconds: dict[int, float] = field(default_factory=dict)
    upload_seconds: float = 0.0
    download_seconds: float = 0.0
    samples: int = 0
    largest: float = 0.0
    reason: str = ""


def measure(seen: Seen, device: str, batch_size: int, allow_inexact: bool = False) -> Candidate:
    """Verifies and measures the strategy of a context key.

    Args:
        seen: What was traced there.
        device: Where the strategy would run.
        batch_size: Calls that would run together.
        allow_inexact: Whether strategies within a tolerance may compute bytes.
    """
    strategy = seen.strategy
    candidate = Candidate(strategy.target, str(strategy.tolerance))
    if not seen.samples:
        candidate.reason = "no call could be copied, so it was not tried"
        return candidate
    with untracked():
        try:
            candidate.reason = ("" if allow_inexact else inexact(seen)) or verify(seen, device, candidate)
            if not candidate.reason:
                common = seen.sizes.most_common(1)[0][0]
                samples = [sample for sample in seen.samples if sample.sizes == common] or seen.samples[:1]
                candidate.reason = measure_calls(candidate, seen, samples, torch.device(device), batch_size)
        except Exception as error:  # a strategy may be anyone's code, and so are the arguments
            candidate.reason = f"to try it raised {type(error).__name__}: {error}"
    return candidate


def inexact(seen: Seen) -> str:
    """Returns the reason if a sample that reads bytes would not have the original's bits: `migrate` would refuse it."""
    for sample in seen.samples:
        if all(spec.dtype != torch.uint8 for spec in sample.sizes):
            continue
        try:
            step, _ = record(seen.strategy, seen.original, sample.positional, sample.keywords, source_of)
        except Unsupported:
            continue  # `verify` says why, if no sample is supported
        tolerance = seen.strategy.tolerance_of(step.static, step.outputs)
        if not tolerance.exact:
            return f"it would not have the original's bits ({tolerance}); --allow-inexact allows that"
    return ""


def verify(seen: Seen, device: str, candidate: Candidate) -> str:
    """Compares the strategy with the original on the samples; returns the reason if it cannot be used."""
    calls = [(sample.positional, sample.keywords) for sample in seen.samples]
    outcomes = trial(seen.strategy, copy.deepcopy(calls), device, seen.original)
    tried = [outcome for outcome in outcomes if outcome.reason is None]
    candidate.samples = len(tried)
    candidate.largest = max((outcome.largest for outcome in tried), default=0.0)
    wrong = [outcome for outcome in tried if not outcome.accepted]
    if wrong:
        return (
            f"verification: {len(wrong)} of {len(tried)} samples differ by more than its tolerance "
            f"({seen.strategy.tolerance}), by up to {candidate.largest:g}"
        )
    return "" if tried else next(outcome.reason for outcome in outcomes)


def measure_calls(
    candidate: Candidate, seen: Seen, samples: Sequence[Sample], device: torch.device, batch_size: int
) -> str:
    """Measures calls of one size; returns the reason if the strategy fails."""
    strategy = seen.strategy
    candidate.original_seconds = least(
        lambda: [seen.original(*sample.positional, **sample.keywords) for sample in samples]
    ) / len(samples)
    steps = recorded(strategy, seen.original, samples, len(samples))
    whole = least(lambda: recorded(strategy, seen.original, samples, len(samples))) / len(samples)
    known = Captured(samples)
    candidate.record_seconds = least(lambda: recorded(strategy, seen.original, samples, len(samples), known)) / len(
        samples
    )
    capture_seconds = max(0.0, whole - candidate.record_seconds)
    size = sum(value.spec.nbytes for value in steps[0]) + sum(source.spec.nbytes for source in inputs_of(steps[0]))
    count = max(1, min(batch_size, MOST_BATCH_BYTES // max(1, size)))
    problems: list[str] = []
    for number in sorted({1, count}):
        seconds = least(
            lambda values: compute(values, device, problems),
            lambda number=number: placed(recorded(strategy, seen.original, samples, number), device),
        )
        if problems:
            return problems[0]
        candidate.device_seconds[number] = seconds / number
    calls = recorded(strategy, seen.original, samples, count)
    candidate.upload_seconds = capture_seconds + least(lambda: placed(calls, device)) / count
    values = [value for call in placed(calls, device) for value in call]
    evaluate(values, device)
    synchronize()
    candidate.download_seconds = least(lambda: [value.row[0][value.row[1]].cpu() for value in values]) / count
    return ""


class Captured:
    """Captures the data of samples as if other calls had made it: without a copy."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        found = [entry for sample in samples for entry in tree_leaves((sample.positional, sample.keywords))]
        self.sources = {id(entry): source_of(entry) for entry in found if known_spec(entry) is not None}

    def __call__(self, data: Any) -> Source | None:
        return self.sources[id(data)] if id(data) in self.sources else source_of(data)


def recorded(
    strategy: Strategy, original: Callable[..., Any], samples: Sequence[Sample], number: int,
    capture: Callable[[Any], Source | None] = source_of,
) -> list[tuple[Value, ...]]:  # fmt: skip
    """Returns the results of some recorded calls, computed by nobody yet."""
    calls = []
    for index in range(number):
        sample = samples[index % len(samples)]
        try:
            step, _ = record(strategy, original, sample.positional, sample.keywords, capture)
        except Unsupported as unsupported:
            raise RuntimeError(f"a call that was supported is not any more: {unsupported}") from None
        calls.append(results(step))
    return calls


def inputs_of(values: tuple[Value, ...]) -> list[Source]:
    """Returns the sources of one call."""
    return list(values[0].step.inputs)


def placed(calls: list[tuple[Value, ...]], device: torch.device) -> list[tuple[Value, ...]]:
    """Brings the sources of calls to a device, those of one size together, as `evaluate` does; returns the calls."""
    groups: dict[Any, list[Source]] = {}
    for values in calls:
        for place, source in enumerate(inputs_of(values)):
            source.row = (source.data.unsqueeze(0), 0)
            groups.setdefault((place, source.spec), []).append(source)
    for sources in groups.values():
        batch = dense(sources).to(device)
        for index, source in enumerate(sources):
            source.row = (batch, index)
    synchronize()
    return calls


def compute(calls: list[tuple[Value, ...]], device: torch.device, problems: list[str]) -> None:
    """Computes calls, and waits until they are done."""
    evaluate([value for values in calls for value in values], device, lambda step, reason: problems.append(reason))
    synchronize()


def least(function: Callable[..., Any], prepare: Callable[[], Any] | None = None) -> float:
    """Returns the seconds of a function: the least of some rounds. `prepare` makes its argument, and does not count."""
    best, spent = float("inf"), 0.0
    for number in range(WARM_ROUNDS + ROUNDS):
        arguments = () if prepare is None else (prepare(),)
        begin = time.perf_counter()
        function(*arguments)
        seconds = time.perf_counter() - begin
        spent += seconds
        if number >= WARM_ROUNDS or spent > MOST_SECONDS:
            best = min(best, seconds)
            if spent > MOST_SECONDS:
                break
    return best
