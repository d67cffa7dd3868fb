"""Computes many values at once on a device.

1. Order the steps that the values need, and find each step's height: the longest way from it to one of the values.
2. From the greatest height down, group the steps that have the same strategy, settings and input sizes. Samples with an
   additional step at their beginning, such as a random flip, still share all steps after it.
3. Run each group as one batch: its inputs are stacked, its results are rows of the batch.

A group whose strategy fails, or whose results are not what was predicted, is computed by the original functions, one
sample at a time; their errors are the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from torch_hetero.migration.recipe import Result, Source, Step, Value, host_result
from torch_hetero.migration.spec import Spec, to_tensor

__all__ = ["dense", "evaluate"]

Failed = Callable[[Step, str], None]


@dataclass(slots=True)
class Need:
    """A source or a step that must be computed: its height, and the values that come from it."""

    maker: Source | Step
    height: int = 0
    values: list[Value] = field(default_factory=list)

    def key(self) -> Hashable:
        """Equal for what can run as one batch."""
        if isinstance(self.maker, Source):
            return self.maker.spec.shape, self.maker.spec.dtype
        step = self.maker
        inputs = tuple((entry.spec.dtype, len(entry.spec.shape)) if step.strategy.ragged else
                       (entry.spec.dtype, entry.spec.shape) for entry in step.inputs)  # fmt: skip
        return step.strategy.target, step.static, inputs, step.outputs, tuple(map(np.shape, step.sample))


def evaluate(values: Sequence[Value], device: torch.device, failed: Failed = lambda step, reason: None) -> None:
    """Computes values on a device: afterwards each has a `row`.

    Args:
        values: The results wanted. Rows that are there already are used.
        device: The device of the rows.
        failed: Told of each step that the originals computed instead, and why.

    Raises:
        Exception: Errors of the original functions.
    """
    for group in groups_of(values):
        if isinstance(group[0].maker, Source):
            upload(group, device)
        else:
            run_group(group, device, failed)


def needs_of(values: Sequence[Value]) -> list[Need]:
    """Returns what must be computed, each before what it reads, with its height."""
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
        maker = entry.step if isinstance(entry, Result) else entry
        need = needs.get(id(maker))
        if need is None:
            need = needs[id(maker)] = Need(maker)
            pending.append((need, True))
            if isinstance(maker, Step):
                pending.extend((value, False) for value in maker.inputs)
        if all(value is not entry for value in need.values):
            need.values.append(entry)
    for need in reversed(order):
        if isinstance(need.maker, Step):
            for value in need.maker.inputs:
                if value.row is None:
                    read = needs[id(value.step if isinstance(value, Result) else value)]
                    read.height = max(read.height, need.height + 1)
    return order


def groups_of(values: Sequence[Value]) -> Iterator[list[Need]]:
    """Yields what must be computed in groups that run as one batch, in order."""
    groups: dict[Hashable, list[Need]] = {}
    for need in needs_of(values):
        groups.setdefault((need.height, need.key()), []).append(need)
    yield from (groups[key] for key in sorted(groups, key=lambda key: -key[0]))


def upload(group: list[Need], device: torch.device) -> None:
    """Copies sources of one size to the device, as one batch."""
    batch = torch.stack([need.maker.data for need in group]) if len(group) > 1 else group[0].maker.data.unsqueeze(0)
    batch = batch.to(device)
    for index, need in enumerate(group):
        for value in need.values:
            value.row = (batch, index)


def dense(values: Sequence[Value]) -> torch.Tensor:
    """Returns values with rows as one tensor [len(values), ...]; without a copy if they are a whole batch in order."""
    batch = values[0].row[0]
    if all(value.row[0] is batch for value in values):
        indices = [value.row[1] for value in values]
        first, count = indices[0], len(indices)
        if indices == list(range(first, first + count)):
            return batch if count == len(batch) else batch[first : first + count]
        return batch[torch.tensor(indices).to(batch.device)]
    return torch.stack([value.row[0][value.row[1]] for value in values])


def run_group(group: list[Need], device: torch.device, failed: Failed) -> None:
    """Runs steps as one batch and gives their values rows; by the originals if the strategy cannot."""
    step = group[0].maker
    try:
        outputs = run_batch([need.maker for need in group], device)
    except Exception as error:  # a strategy may be anyone's code
        reason = f"its strategy raised {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        outputs = None
    else:
        reason = difference(step.outputs, outputs, len(group))
    for index, need in enumerate(group):
        if reason is not None:
            failed(need.maker, reason)
        for value in need.values:
            if reason is None:
                value.row = (outputs[value.index], index)
            else:
                value.row = (to_tensor(host_result(value)).unsqueeze(0).to(device), 0)


def run_batch(steps: list[Step], device: torch.device) -> tuple[torch.Tensor, ...]:
    """Runs steps with equal settings as one batch; returns [batch, ...] for each output."""
    strategy = steps[0].strategy
    columns = list(zip(*[step.inputs for step in steps], strict=True))
    if strategy.stacks and all(value.spec == steps[0].inputs[0].spec for value in steps[0].inputs):
        flat = dense([value for step in steps for value in step.inputs])
        inputs = [flat.unflatten(0, (len(steps), len(columns)))]
    elif strategy.ragged:
        inputs = [[value.row[0][value.row[1]] for value in column] for column in columns]
    else:
        inputs = [dense(column) for column in columns]
    settings = zip(*[map(np.asarray, step.sample) for step in steps], strict=True)
    sample = [torch.from_numpy(np.stack(entries)).to(device) for entries in settings]
    outputs = strategy.run(inputs, steps[0].static, sample)
    return outputs if isinstance(outputs, tuple) else (outputs,)


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
