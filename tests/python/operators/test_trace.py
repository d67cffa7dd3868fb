"""torch.jit.trace of modules on the device records what it records on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers import DEVICE
from torch import nn

MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "conv1d": (lambda: nn.Conv1d(3, 4, 3), (2, 3, 9)),
    "conv2d": (lambda: nn.Conv2d(3, 4, 3, padding=1), (2, 3, 8, 8)),
    "conv_transpose2d": (lambda: nn.ConvTranspose2d(3, 4, 3), (2, 3, 8, 8)),
    "lstm": (lambda: nn.LSTM(3, 4), (5, 2, 3)),
    "batch norm": (lambda: nn.BatchNorm2d(3), (2, 3, 8, 8)),
    "network": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2), nn.Softmax(-1)),
        (2, 3, 8, 8),
    ),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", MODULES)
def test_traces_have_the_operators_of_the_cpu_and_run(name: str) -> None:
    make, shape = MODULES[name]
    module, x = make().eval(), torch.randn(shape)
    expected = torch.jit.trace(module, x)
    found = torch.jit.trace(module.to(DEVICE), x.to(DEVICE))
    kinds = [sorted(node.kind() for node in trace.inlined_graph.nodes()) for trace in (found, expected)]
    assert kinds[0] == kinds[1]
    torch.testing.assert_close(found(x.to(DEVICE)), module(x.to(DEVICE)))
