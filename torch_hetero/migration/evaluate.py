"""Computes many values at once on a device.

1. Order the steps that the values need, and find each step's height: the longest way from it to one of the values.
2. From the greatest height down, group the steps that have the same strategy, settings and input sizes. Samples with an
   additional step at their beginning, such as a random flip, still share all steps after it.
3. Run each group as one batch: its inputs are stacked, its results are rows of the batch.

A group whose strategy fails, or whose results are not what was predicted, is computed by the original functions, one
sample at a time; their errors are the caller's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from torch_hetero.migration.recipe import Source, Step, Value, host_result
from torch_hetero.migration.spec import Spec, to_tensor

__all__ = ["dense", "evaluate"]

Failed = Callable[[Step, str], None]
Ran = Callable[[list[Step], tuple[torch.Tensor, ...], float], None]
Uploaded = Callable[[Step, int], None]


@dataclass(slots=True)
class Need:
    """A step that must run: its height, and the values that are wanted of it."""

    step: Step
    height: int = 0
    values: list[Value] = field(default_factory=list)

    def key(self, device: torch.device) -> Hashable:
        """Equal for what can run as one batch, on a device if the step names none."""
        step, lists = self.step, takes_lists(self.step, device)
        inputs = tuple(
            (entry.spec.dtype, len(entry.spec.shape) if lists else entry.spec.shape) for entry in step.inputs
        )
        settings = step.strategy.batch_key(step.static, lists)
        return settings, step.device, inputs, step.outputs, tuple(map(np.shape, step.sample))


def device_of(step: Step, device: torch.device) -> torch.device:
    """Returns the device of a step: the given one if it names none."""
    return torch.device(step.device) if step.device else device


def takes_lists(step: Step, device: torch.device) -> bool:
    """Returns whether a step's inputs are lists there."""
    return step.strategy.takes_lists(step.static, device_of(step, device))


def evaluate(
    values: Sequence[Value],
    device: torch.device,
    failed: Failed = lambda step, reason: None,
    ran: Ran = lambda steps, outputs, seconds: None,
    uploaded: Uploaded = lambda step, size: None,
) -> None:
    """Computes values on a device: afterwards each has a `row`.

    Args:
        values: The results wanted. Rows that are there already are used.
        device: The device of steps that name none.
        failed: Told of each step that the originals computed instead, and why.
        ran: Told of the steps of each batch, its outputs, and the seconds that it took to submit.
        uploaded: Told of the bytes that a step took from the host.

    Raises:
        Exception: Errors of the original functions.
    """
    for group in groups_of(values, device):
        run_group(group, device, failed, ran, uploaded)


def needs_of(values: Sequence[Value]) -> list[Need]:
    """Returns the steps that must run, each after those that it reads, with their heights. Sources get their rows."""
    needs: dict[int, Need] = {}
    order: list[Need] = []  # what is read, before what reads it
    pending: list[tuple[Value | Need, bool]] = [(value, False) for value in reversed(values)]
    while pending:
        entry, done = pending.pop()
        if done:
            order.append(entry)
            continue
        if entry.row is not None:
            continue
        if isinstance(entry, Source):
            entry.row = (entry.data.unsqueeze(0), 0)
            continue
        need = needs.get(id(entry.step))
        if need is None:
            need = needs[id(entry.step)] = Need(entry.step)
            pending.append((need, True))
            pending.extend((value, False) for value in reversed(entry.step.inputs))  # rows in the order of inputs
        if all(value is not entry for value in need.values):
            need.values.append(entry)
    for need in reversed(order):
        for value in need.step.inputs:
            if value.row is None:
                read = needs[id(value.step)]
                read.height = max(read.height, need.height + 1)
    return order


def groups_of(values: Sequence[Value], device: torch.device) -> Iterator[list[Need]]:
    """Yields what must be computed in groups that run as one batch, in order."""
    groups: dict[Hashable, list[Need]] = {}
    for need in needs_of(values):
        groups.setdefault((need.height, need.key(device)), []).append(need)
    yield from (groups[key] for key in sorted(groups, key=lambda key: -key[0]))


def dense(values: Sequence[Value]) -> torch.Tensor:
    """Returns values with rows as one tensor [len(values), ...]; without a copy if they are a whole batch in order."""
    batch = values[0].row[0]
    if all(value.row[0] is batch for value in values):
        indices = [value.row[1] for value in values]
        first, count = indices[0], len(indices)
        if indices == list(range(first, first + count)):
            return batch if count == len(batch) else batch[first : first + count]
        return batch.index_select(0, torch.tensor(indices).to(batch.device))
    return torch.stack([value.row[0][value.row[1]] for value in values])


def run_group(group: list[Need], device: torch.device, failed: Failed, ran: Ran, uploaded: Uploaded) -> None:
    """Runs steps as one batch and gives their values rows; by the originals if the strategy cannot."""
    steps = [need.step for need in group]
    device = device_of(steps[0], device)
    begin = time.perf_counter()
    try:
        outputs = run_batch(steps, device, uploaded)
    except Exception as error:  # a strategy may be anyone's code
        reason = f"its strategy raised {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    else:
        reason = difference(steps[0].outputs, outputs, len(group))
    if reason is None:
        ran(steps, outputs, time.perf_counter() - begin)
        for index, need in enumerate(group):
            for value in need.values:
                value.row = (outputs[value.index], index)
                value.step = value.step.released()
        return
    for need in group:
        failed(need.step, reason)
        for value in need.values:
            value.row = (to_tensor(host_result(value)).unsqueeze(0).to(device), 0)
            value.step = value.step.released()


def run_batch(steps: list[Step], device: torch.device, uploaded: Uploaded) -> tuple[torch.Tensor, ...]:
    """Runs steps with equal settings as one batch; returns [batch, ...] for each output."""
    first = steps[0]
    if first.strategy.stacks and all(value.spec == first.inputs[0].spec for value in first.inputs):
        flat = bring(first, [value for step in steps for value in step.inputs], device, uploaded)
        inputs = [flat.unflatten(0, (len(steps), len(first.inputs)))]
    elif takes_lists(first, device):
        for step in steps:
            for value in step.inputs:
                bring(first, [value], device, uploaded)
        columns = zip(*[step.inputs for step in steps], strict=True)
        inputs = [[value.row[0][value.row[1]] for value in column] for column in columns]
    else:
        columns = zip(*[step.inputs for step in steps], strict=True)
        inputs = [bring(first, column, device, uploaded) for column in columns]
    settings = zip(*[map(np.asarray, step.sample) for step in steps], strict=True)
    sample = [torch.from_numpy(np.stack(entries)).to(device) for entries in settings]
    outputs = first.strategy.run(inputs, first.static, sample)
    return outputs if isinstance(outputs, tuple) else (outputs,)


def bring(step: Step, values: Sequence[Value], device: torch.device, uploaded: Uploaded) -> torch.Tensor:
    """Returns values with rows as one tensor on a device. Those from elsewhere have their rows there afterwards."""
    elsewhere = [value for value in values if value.row[0].device.type != device.type]
    if elsewhere:
        batch = dense(elsewhere)
        if batch.device.type == "cpu":
            uploaded(step, batch.nbytes)
        batch = batch.to(device)
        for index, value in enumerate(elsewhere):
            value.row = (batch, index)
    return dense(values)


def difference(expected: tuple[Spec, ...], outputs: tuple[torch.Tensor, ...], count: int) -> str | None:
    """Returns a reason not to trust results: their number, sizes or dtype; None if all is well."""
    if len(outputs) != len(expected):
        return f"its strategy returned {len(outputs)} results, not {len(expected)}"
    for spec, output in zip(expected, outputs, strict=True):
        if tuple(output.shape) != (count, *spec.shape) or output.dtype != spec.dtype:
            return (
                f"its strategy returned {str(output.dtype).removeprefix('torch.')} {list(output.shape)}, "
                f"not {str(spec.dtype).removeprefix('torch.')} {[count, *spec.shape]}"
            )
    return None
