"""Tensors made of arrays, and batches of tensors."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from strategy_checks import (
    CALLS,
    DEVICES,
    check_batches,
    check_examples,
    check_one_batch,
    reason_of,
    step_of,
    strategies_of,
)

from torch_hetero.migration.evaluate import evaluate
from torch_hetero.migration.record import record, results
from torch_hetero.migration.strategy import Strategy, find
from torch_hetero.migration.trial import trial

STRATEGIES = strategies_of("strategies.tensors", "strategies.tensor_methods")
ARRAY = np.arange(96, dtype=np.uint8).reshape(8, 4, 3)
TENSOR = torch.from_numpy(ARRAY)
FLOATS = TENSOR.float()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_random_calls_are_computed_as_torch_does(strategy: Strategy, device: str) -> None:
    check_examples(strategy, device, CALLS if device == "cpu" else CALLS // 2)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_calls_share_batches(strategy: Strategy, monkeypatch: pytest.MonkeyPatch) -> None:
    check_batches(strategy, monkeypatch)


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


def test_factors_and_means_of_their_own_share_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    check_one_batch("torch.Tensor.mul", [((FLOATS, 0.1 * index), {}) for index in range(5)], monkeypatch)
    check_one_batch("torch.Tensor.sub", [((FLOATS, torch.rand(3)), {}) for _ in range(5)], monkeypatch)
    check_one_batch("torch.Tensor.clamp", [((FLOATS, index, 50.5), {}) for index in range(5)], monkeypatch)


def test_crops_that_begin_elsewhere_share_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    crops = [((FLOATS, (slice(top, top + 4), slice(left, left + 2))), {}) for top in range(4) for left in range(3)]
    check_one_batch("torch.Tensor.__getitem__", crops, monkeypatch)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "maximum", "eq", "lt"])
def test_all_pairs_of_dtypes_give_torchs_dtype_and_values_or_a_reason(name: str) -> None:
    dtypes = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64]
    large = [(torch.arange(96).reshape(8, 12) % 3 + 1).to(dtype) for dtype in dtypes]
    others: list[Any] = [*large, *[tensor[0, 0] for tensor in large], *[tensor[0] for tensor in large]]
    others += [2, 1.5, True] if name != "maximum" else []
    for first, other in itertools.product(large, others):
        try:
            getattr(torch, name)(first, other)
        except RuntimeError:
            assert reason_of(f"torch.{name}", first, other).startswith(("torch raises RuntimeError", "torch subtracts"))
            continue
        (outcome,) = trial(find(f"torch.{name}"), [((first, other), {})])
        assert outcome.reason is None
        assert outcome.accepted


@pytest.mark.parametrize(
    ("target", "positional", "keywords", "reason"),
    [
        ("torch.Tensor.add", (TENSOR, 1), {"alpha": 2}, "alpha= is given"),
        ("torch.Tensor.add", (TENSOR, "a"), {}, "other is of type str"),
        ("torch.Tensor.add", (TENSOR, torch.rand(3, requires_grad=True)), {},
         "other requires a gradient, or is on another device"),
        ("torch.Tensor.add", (FLOATS.half(), 1), {}, "tensors of float16 stay on the CPU"),
        ("torch.Tensor.div", (FLOATS, 2), {"rounding_mode": "floor"}, "rounding_mode= is given"),
        ("torch.Tensor.maximum", (FLOATS, 2), {}, "other is a number"),
        ("torch.Tensor.__rdiv__", (FLOATS, FLOATS), {}, "other is no number"),
        ("torch.sub", (TENSOR.bool(), TENSOR.bool()), {}, "torch subtracts no booleans"),
        ("torch.log", (FLOATS,), {"out": torch.empty(0)}, "out= is given"),
        ("torch.clamp", (FLOATS, FLOATS), {}, "min is a tensor"),
        ("torch.Tensor.to", (FLOATS, "cpu"), {}, "more than a dtype is given"),
        ("torch.Tensor.to", (FLOATS, torch.bfloat16), {}, "tensors of bfloat16 stay on the CPU"),
        ("torch.Tensor.contiguous", (FLOATS,), {"memory_format": torch.channels_last}, "memory_format= is given"),
        ("torch.Tensor.view", (FLOATS, torch.uint8), {}, "an argument is no number"),
        ("torch.Tensor.reshape", (FLOATS, 7, -1), {},
         "torch raises RuntimeError: shape '[7, -1]' is invalid for input of size 96"),
        ("torch.Tensor.__getitem__", (FLOATS, FLOATS > 1), {}, "a mask or an array of indices selects elements"),
        ("torch.Tensor.__getitem__", (FLOATS, slice(None, None, -1)), {},
         "torch raises ValueError: step must be greater than zero"),
        ("torch.mean", (FLOATS, 0), {"dtype": torch.float64}, "dtype= is given"),
        ("torch.mean", (TENSOR, 0), {},
         "torch raises RuntimeError: mean(): could not infer output dtype. Input dtype must be either a floating point "
         "or complex dtype. Got: torch.uint8"),
        ("torch.amax", (FLOATS[:0], 0), {}, "the tensor is empty or a number"),
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
