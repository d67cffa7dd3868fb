"""Tensors made of arrays, and batches of tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from strategy_checks import DEVICES, reason_of, shared_tests, step_of, strategies_of

from torch_hetero.migration.evaluate import evaluate
from torch_hetero.migration.record import record, results
from torch_hetero.migration.strategy import find
from torch_hetero.migration.trial import trial

STRATEGIES = strategies_of("strategies.tensors")
ARRAY = np.arange(96, dtype=np.uint8).reshape(8, 4, 3)
TENSOR = torch.from_numpy(ARRAY)
FLOATS = TENSOR.float()


test_random_calls_are_computed_as_torch_does, test_calls_share_batches = shared_tests(STRATEGIES, on_hetero=2)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("target", "size"), [("torch.stack", (5, 8, 4, 3)), ("torch.cat", (40, 4, 3))])
def test_tensors_that_are_one_batch_are_joined_without_a_copy(target: str, size: tuple[int, ...], device: str) -> None:
    """The converted arrays are rows of one batch, and that is the joined tensor."""
    converted = [results(step_of(find("torch.tensor"), (ARRAY,), {"dtype": torch.float32}))[0] for _ in range(5)]
    by_id = {id(value): value for value in converted}
    step, _ = record(find(target), torch.stack, (converted,), {}, lambda entry: by_id.get(id(entry)))
    (joined,) = results(step)
    evaluate([joined], torch.device(device))
    batch, row = joined.row
    assert batch[row].shape == size
    assert batch.untyped_storage().data_ptr() == converted[0].row[0].untyped_storage().data_ptr()
    assert torch.equal(batch[row].cpu(), FLOATS.expand(5, 8, 4, 3).reshape(size))


def test_tensors_of_several_batches_are_joined_in_order() -> None:
    tensors = [TENSOR + index for index in range(3)]
    (outcome,) = trial(find("torch.stack"), [((tensors,), {})])
    assert outcome.reason is None
    assert outcome.accepted


@pytest.mark.parametrize(
    ("target", "positional", "keywords", "reason"),
    [
        ("torch.stack", ([TENSOR, FLOATS],), {}, "entries have several dtypes"),
        ("torch.stack", ([TENSOR, TENSOR],), {"out": torch.empty(0)}, "out= is given"),
        ("torch.stack", ([TENSOR, TENSOR], 9), {}, "the sizes do not fit"),
        ("torch.stack", (TENSOR,), {}, "tensors is no list of tensors"),
        ("torch.cat", ([TENSOR, TENSOR[:, :2]],), {}, "the sizes do not fit"),
        ("torch.cat", ([TENSOR, ARRAY],), {}, "not all entries are tensors"),
        ("torch.from_numpy", (TENSOR,), {}, "ndarray is a tensor"),
        ("torch.tensor", (TENSOR,), {}, "data is a tensor"),
        ("torch.tensor", ([ARRAY],), {}, "data is a list"),
        ("torch.tensor", (ARRAY,), {"device": "meta"}, "device='meta' is given"),
        ("torch.tensor", (ARRAY,), {"requires_grad": True}, "requires_grad= is given"),
        ("torch.tensor", (ARRAY,), {"pin_memory": True}, "pin_memory= is given"),
        ("torch.tensor", (ARRAY.astype(np.complex64),), {"dtype": torch.float32}, "complex data stays on the CPU"),
        ("torch.as_tensor", (ARRAY,), {"device": "meta"}, "device='meta' is given"),
        ("torch.as_tensor", ([1, 2],), {}, "no argument is an array, an image or a tensor"),
        ("torch.nn.functional.pad", (TENSOR, (1, -1)), {}, "pad has negative sizes"),
        ("torch.nn.functional.pad", (TENSOR, (1, 1, 1)), {}, "pad is no list of pairs"),
        ("torch.nn.functional.pad", (TENSOR, (1, 1), "reflect"), {}, "integers are padded with a value only"),
        ("torch.nn.functional.pad", (FLOATS, (3, 3), "reflect"), {}, "the padding is larger than the input"),
        ("torch.nn.functional.pad", (FLOATS[0, 0], (1, 1), "reflect"), {},
         "the input has more dimensions than are padded, batch and channels"),
        ("torch.nn.functional.pad", (FLOATS, (1, 1), "mirror"), {}, "mode 'mirror' stays on the CPU"),
        ("torch.zeros_like", (TENSOR,), {"device": "meta"}, "device= is given"),
        ("torch.ones_like", (ARRAY,), {}, "input is no tensor"),
        ("torch.full_like", (TENSOR, TENSOR), {}, "fill_value is no number"),
    ],
)  # fmt: skip
def test_calls_that_stay_on_the_cpu_say_why(
    target: str, positional: tuple[Any, ...], keywords: dict[str, Any], reason: str
) -> None:
    assert reason_of(target, *positional, **keywords) == reason
