"""Functions and methods of torch on handles of tensors: recorded as they are, for a batch of samples."""

from __future__ import annotations

import pytest
import torch
from strategy_checks import CALLS, DEVICES, check_examples, strategies_of

from torch_hetero.migration.evaluate import evaluate
from torch_hetero.migration.record import record, results
from torch_hetero.migration.strategy import Strategy, find
from torch_hetero.migration.trial import source_of


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("strategy", strategies_of("strategies.tensor_functions"))
def test_random_calls_are_computed_as_torch_does(strategy: Strategy, device: str) -> None:
    check_examples(strategy, device, CALLS // 4 if device == "cpu" else CALLS // 10)


def test_numbers_of_samples_share_a_batch() -> None:
    """A random factor is a setting of its sample; the results are those of the numbers themselves."""
    images = [torch.rand(3, 8, 8) for _ in range(6)]
    strategy = find("torch.Tensor.mul")
    ran: list[int] = []
    calls = [
        record(strategy, torch.Tensor.mul, (image, 0.5 + k / 3), {}, source_of)[0] for k, image in enumerate(images)
    ]
    values = [results(step)[0] for step in calls]
    evaluate(values, torch.device("cpu"), ran=lambda steps, outputs, seconds: ran.append(len(steps)))
    assert ran == [6]
    for k, (image, value) in enumerate(zip(images, values, strict=True)):
        assert torch.equal(value.row[0][value.row[1]], image * (0.5 + k / 3))
