"""Functions and methods of torch on handles of tensors: recorded as they are, for a batch of samples."""

from __future__ import annotations

import pytest
from strategy_checks import CALLS, DEVICES, check_examples, strategies_of

from torch_hetero.migration.strategy import Strategy


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("strategy", strategies_of("strategies.tensor_functions"))
def test_random_calls_are_computed_as_torch_does(strategy: Strategy, device: str) -> None:
    check_examples(strategy, device, CALLS // 4 if device == "cpu" else CALLS // 10)
