"""What tests of libraries ask of hetero: models live there, work was recorded, values are the CPU's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch


class Seen:
    """What the device counted in a block; complete when the block has ended."""

    recorded = 0
    straight = 0
    fallbacks: dict[str, int]


@contextmanager
def recording(at_least: int = 1) -> Iterator[Seen]:
    """Fails unless the block records this many operators on hetero."""
    torch.hetero.flush()
    before = torch.hetero.explain()
    seen = Seen()
    yield seen
    torch.hetero.flush()
    report = torch.hetero.explain() - before
    seen.recorded = report.nodes["typed"] + report.nodes["boxed"]
    seen.straight = report.nodes["straight"]
    seen.fallbacks = dict(report.fallbacks)
    assert seen.recorded >= at_least, f"{seen.recorded} operators were recorded\n{report}"


def devices_of(module: torch.nn.Module) -> set[str]:
    """The types of the devices that parameters and buffers are on."""
    return {tensor.device.type for tensor in chain(module.parameters(), module.buffers())}


def assert_same(actual: Any, expected: torch.Tensor, **tolerances: float) -> None:
    """Fails unless a tensor on hetero has the values of one on the CPU."""
    assert actual.device.type == "hetero", actual.device
    assert expected.device.type == "cpu", expected.device
    torch.testing.assert_close(actual.cpu(), expected, **tolerances)
