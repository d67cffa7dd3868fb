"""Operations of numpy arrays: numpy's values and dtypes, whatever the operands."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from strategy_checks import (
    DEVICES,
    check_one_batch,
    reason_of,
    shared_tests,
    step_of,
    strategies_of,
)

from torch_hetero.migration.arrays import BINARY, UNARY
from torch_hetero.migration.evaluate import evaluate
from torch_hetero.migration.recipe import Source, Value, host_result
from torch_hetero.migration.record import record, results
from torch_hetero.migration.spec import spec_of, to_tensor
from torch_hetero.migration.strategy import find
from torch_hetero.migration.trial import trial

STRATEGIES = strategies_of("arrays", "strategies.arrays")
IMAGE = np.arange(96, dtype=np.uint8).reshape(8, 4, 3)
FLOATS = IMAGE.astype(np.float32)
DTYPES = [np.uint8, np.int8, np.int16, np.int32, np.int64, np.float32, np.float64, np.bool_]


test_random_calls_are_computed_as_numpy_does, test_calls_share_batches = shared_tests(STRATEGIES, on_hetero=2)


@pytest.mark.parametrize("name", BINARY)
def test_all_pairs_of_dtypes_give_numpys_dtype_and_values_or_a_reason(name: str) -> None:
    """A call that numpy refuses, or whose result has no dtype of torch, has a reason."""
    ufunc, strategy, random = getattr(np, name), find(f"numpy.{name}"), np.random.default_rng(0)
    operands: list[Any] = [random.integers(0, 3, (9, 8)).astype(dtype) + dtype(1) for dtype in DTYPES]
    calls = [(pair, {}) for pair in itertools.product(operands, [*operands, 2, 1.5, True, np.float32(2), np.int16(2)])]
    for call in calls:
        try:
            ufunc(*call[0])
        except TypeError:
            assert reason_of(f"numpy.{name}", *call[0]).startswith("numpy raises")
            continue
        (outcome,) = trial(strategy, [call])
        assert outcome.accepted
        if outcome.reason is not None:
            assert any(word in outcome.reason for word in ("float16", "uint64", "uint16", "uint32", "integers"))


def test_ufuncs_have_the_parameters_of_numpys() -> None:
    """Positional operands bind as in the ufunc; its keywords do, too."""
    for name, operands in [*zip(UNARY, itertools.repeat(1)), *zip(BINARY, itertools.repeat(2))]:
        strategy = find(f"numpy.{name}")
        with pytest.raises(TypeError):
            strategy.bind(**{parameter: IMAGE for parameter in strategy.data})  # they are positional only
        assert len(strategy.data) == operands
        bound = strategy.bind(*[IMAGE] * operands, None, dtype=np.float32)
        assert bound["out"] is None
        assert bound["dtype"] is np.float32


def test_samples_with_factors_of_their_own_share_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    factors = np.random.default_rng(0).uniform(0, 2, 6)
    check_one_batch("numpy.multiply", [((FLOATS, float(factor)), {}) for factor in factors], monkeypatch)


def test_samples_with_means_of_their_own_share_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    means = np.random.default_rng(0).normal(0, 1, (6, 3))
    check_one_batch("numpy.subtract", [((FLOATS, mean), {}) for mean in means], monkeypatch)


def test_crops_that_begin_elsewhere_share_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    crops = [((IMAGE, (slice(top, top + 4), slice(left, left + 2))), {}) for top in range(4) for left in range(3)]
    check_one_batch("numpy.ndarray.__getitem__", crops, monkeypatch)


def test_a_bound_outside_of_the_dtype_is_none() -> None:
    outcomes = trial(find("numpy.clip"), [((IMAGE, -5, 300), {}), ((IMAGE, 3, 300), {}), ((IMAGE, -5, 40), {})])
    assert all(outcome.reason is None and outcome.accepted for outcome in outcomes)


def test_bounds_of_their_own_share_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    check_one_batch("numpy.clip", [((IMAGE, low, low + 40), {}) for low in range(6)], monkeypatch)


@pytest.mark.parametrize("device", DEVICES)
def test_normalization_keeps_numpys_bits(device: str) -> None:
    """(x / 255 - mean) / std is the same operations in the same precision, also where they are fused."""

    def known(argument: Any) -> Any:
        return argument if isinstance(argument, Value) else None

    random = np.random.default_rng(0)
    mean, std = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)
    values, expected = [], []
    for _ in range(4):
        image = random.integers(0, 256, (32, 32, 3), dtype=np.uint8)
        expected.append(((image.astype(np.float32) / 255 - mean) / std).transpose(2, 0, 1))
        value: Any = Source(spec_of(image), to_tensor(image))
        for target, *rest in [
            ("numpy.ndarray.astype", np.float32), ("numpy.true_divide", 255), ("numpy.subtract", mean),
            ("numpy.true_divide", std), ("numpy.ndarray.transpose", 2, 0, 1),
        ]:  # fmt: skip
            step, _ = record(find(target), None, (value, *rest), {}, known)
            (value,) = results(step)
        values.append(value)
    evaluate(values, torch.device(device))
    for value, wanted in zip(values, expected, strict=True):
        batch, row = value.row
        np.testing.assert_array_equal(batch[row].cpu().numpy(), wanted)


def test_constants_are_captured_as_they_are_when_the_call_is_made() -> None:
    mean = np.array([1, 2, 3], np.float32)
    step = step_of(find("numpy.subtract"), (FLOATS, mean), {})
    mean[:] = 100
    (value,) = results(step)
    np.testing.assert_array_equal(host_result(value), FLOATS - np.array([1, 2, 3], np.float32))
    evaluate([value], torch.device("cpu"))
    np.testing.assert_array_equal(value.row[0][0].numpy(), FLOATS - np.array([1, 2, 3], np.float32))


def test_equal_inputs_of_one_batch_are_joined_without_a_copy() -> None:
    """The flipped images are rows of one batch, and that is the stacked array."""
    flips = [results(step_of(find("numpy.flip"), (IMAGE, 0), {}))[0] for _ in range(5)]
    by_id = {id(flip): flip for flip in flips}
    step, _ = record(find("numpy.stack"), np.stack, (flips,), {}, lambda entry: by_id.get(id(entry)))
    (stacked,) = results(step)
    evaluate([stacked], torch.device("cpu"))
    assert stacked.row[0].data_ptr() == flips[0].row[0].data_ptr()
    np.testing.assert_array_equal(stacked.row[0][0].numpy(), np.stack([np.flip(IMAGE, 0)] * 5))


def test_joined_arrays_of_several_sizes_are_joined() -> None:
    (outcome,) = trial(find("numpy.concatenate"), [(([IMAGE, IMAGE[:2]],), {})])
    assert outcome.reason is None
    assert outcome.accepted


def test_numbers_that_are_not_finite_stay_what_they_are() -> None:
    special = np.array([[np.nan, np.inf, -np.inf, -0.0, 0.0] * 14], np.float32)
    for name in ("add", "maximum", "minimum", "less", "equal", "true_divide", "floor_divide"):
        with np.errstate(all="ignore"):
            outcomes = trial(find(f"numpy.{name}"), [((special, special[:, ::-1].copy()), {}), ((special, 0.0), {})])
        assert all(outcome.accepted and outcome.reason is None for outcome in outcomes), name


def test_sums_of_bytes_are_exact() -> None:
    """A plan that asks for the original's bits may use them."""
    for target, exact in [("numpy.mean", True), ("numpy.std", False), ("numpy.power", True), ("numpy.max", True)]:
        step = step_of(find(target), (IMAGE, 2), {})
        assert step.strategy.tolerance_of(step.static, step.outputs).exact == exact
    means = trial(find("numpy.mean"), [((IMAGE, axis), {}) for axis in (0, 1, 2, (0, 1))])
    assert all(outcome.largest == 0 for outcome in means)


@pytest.mark.parametrize(
    ("target", "positional", "keywords", "reason"),
    [
        ("numpy.add", (IMAGE, 1), {"out": IMAGE}, "out= is given"),
        ("numpy.add", (IMAGE, 1), {"where": IMAGE > 3}, "where= is given"),
        ("numpy.add", (IMAGE, 1), {"dtype": np.float32}, "dtype= is given"),
        ("numpy.add", (IMAGE, 1), {"casting": "unsafe"}, "casting= is given"),
        ("numpy.add", (IMAGE, torch.from_numpy(IMAGE)), {}, "x2 is a tensor"),
        ("numpy.add", (IMAGE, "a"), {}, "x2 is of type str"),
        ("numpy.add", (IMAGE, [1, "a"]), {}, "x2 is a list of more than numbers"),
        ("numpy.add", (IMAGE.astype(np.complex64), 1), {}, "complex arrays stay on the CPU"),
        ("numpy.add", (IMAGE[0, 0], 1), {},
         "no argument is an array, an image or a tensor, or it has at most 64 elements"),
        ("numpy.add", (IMAGE, 300), {}, "numpy raises OverflowError: Python integer 300 out of bounds for uint8"),
        ("numpy.add", (IMAGE, IMAGE[:3]), {},
         "numpy raises ValueError: shape mismatch: objects cannot be broadcast to a single shape.  Mismatch is between "
         "arg 0 with shape (8, 4, 3) and arg 1 with shape (3, 4, 3)."),
        ("numpy.floor_divide", (IMAGE, 0), {}, "integers are divided by 0 or -1"),
        ("numpy.floor_divide", (IMAGE, IMAGE), {}, "the divisor is an array of integers, which may have zeros"),
        ("numpy.power", (IMAGE.astype(int), -1), {}, "an integer has a negative exponent"),
        ("numpy.power", (IMAGE.astype(int), IMAGE.astype(int)), {},
         "the exponent is an array of integers, which may be negative"),
        ("numpy.ndarray.astype", (IMAGE, np.uint16), {}, "arrays of uint16 stay on the CPU"),
        ("numpy.ndarray.astype", (FLOATS, np.uint8), {"casting": "safe"}, "numpy casts to uint8 by no 'safe' rule"),
        ("numpy.ndarray.astype", (IMAGE, np.uint8), {"copy": False}, "the array itself is returned"),
        ("numpy.array", (IMAGE,), {"copy": None}, "copy= is given"),
        ("numpy.ndarray.transpose", (IMAGE, 0, 0, 1), {}, "numpy raises ValueError: repeated axis in transpose"),
        ("numpy.ndarray.swapaxes", (IMAGE, 0, 9), {},
         "numpy raises AxisError: axis2: axis 9 is out of bounds for array of dimension 3"),
        ("numpy.ndarray.reshape", (IMAGE, 7, -1), {},
         "numpy raises ValueError: cannot reshape array of size 96 into shape (7, 13)"),
        ("numpy.ndarray.reshape", (IMAGE, -1), {"order": "F"}, "order= is given"),
        ("numpy.ndarray.ravel", (IMAGE, "F"), {}, "order= is given"),
        ("numpy.ndarray.flatten", (IMAGE, "K"), {}, "order= is given"),
        ("numpy.ndarray.squeeze", (IMAGE, 0), {},
         "numpy raises ValueError: cannot select an axis to squeeze out which has size not equal to one"),
        ("numpy.ndarray.__getitem__", (IMAGE, IMAGE > 3), {}, "a mask or an array of indices selects elements"),
        ("numpy.ndarray.__getitem__", (IMAGE, [1, 2]), {}, "a mask or an array of indices selects elements"),
        ("numpy.ndarray.__getitem__", (IMAGE, (0, 0, 0)), {}, "its result is a number"),
        ("numpy.ndarray.__getitem__", (IMAGE, 8), {},
         "numpy raises IndexError: index 8 is out of bounds for axis 0 with size 8"),
        ("numpy.ndarray.clip", (IMAGE, IMAGE, 3), {}, "a bound is an array"),
        ("numpy.clip", (IMAGE, 0, 3), {"dtype": np.int64}, "dtype= is given"),
        ("numpy.clip", (IMAGE, 300, 400), {}, "numpy raises OverflowError: Python integer 300 out of bounds for uint8"),
        ("numpy.ndarray.mean", (IMAGE,), {}, "its result is a number"),
        ("numpy.mean", (IMAGE, 0), {"where": IMAGE > 3}, "where= is given"),
        ("numpy.std", (IMAGE.astype(np.float16), 0), {}, "float16 arrays stay on the CPU"),
        ("numpy.sum", (IMAGE, 0), {}, "arrays of uint64 stay on the CPU"),
        ("numpy.max", (IMAGE, 0), {"initial": 3}, "initial= is given"),
        ("numpy.min", (IMAGE, 0), {"out": IMAGE[0]}, "out= is given"),
        ("numpy.asarray", (IMAGE,), {"order": "F"}, "order='F' is given"),
        ("numpy.asarray", (IMAGE, np.float32), {"copy": False}, "copy=False is given, and numpy needs a copy"),
        ("numpy.array", (IMAGE,), {"ndmin": 4}, "ndmin= is given"),
        ("numpy.ascontiguousarray", (np.array(3),), {}, "it is an array of one element"),
        ("numpy.stack", ([IMAGE, FLOATS],), {}, "entries have several dtypes"),
        ("numpy.stack", ([IMAGE, 3],), {}, "arrays is no list of arrays"),
        ("numpy.stack", ([IMAGE, IMAGE[:2]],), {}, "the sizes do not fit"),
        ("numpy.stack", ([IMAGE, torch.from_numpy(IMAGE)],), {}, "not all entries are arrays"),
        ("numpy.concatenate", ([IMAGE, IMAGE], None), {}, "axis=None is given"),
        ("numpy.concatenate", ([IMAGE, IMAGE],), {"dtype": np.float32}, "dtype= is given"),
        ("numpy.flip", (IMAGE, 5), {}, "numpy raises AxisError: axis 5 is out of bounds for array of dimension 3"),
        ("numpy.fliplr", (IMAGE[0, 0],), {},
         "numpy raises AxisError: axis 1 is out of bounds for array of dimension 1"),
        ("numpy.rot90", (IMAGE, 1, (0, 0)), {}, "numpy raises ValueError: Axes must be different."),
        ("numpy.pad", (IMAGE, 1, "mean"), {}, "mode 'mean' stays on the CPU"),
        ("numpy.pad", (IMAGE, 1), {"constant_values": (1, 2)}, "constant_values is no number"),
        ("numpy.pad", (IMAGE, 1, "reflect"), {"reflect_type": "odd"}, "reflect_type= is given"),
        ("numpy.pad", (IMAGE, {0: 1}), {}, "pad_width is a dict"),
        ("numpy.pad", (IMAGE, -1), {}, "pad_width is no list of sizes"),
        ("numpy.transpose", (torch.from_numpy(IMAGE),), {}, "a is a tensor"),
    ],
)  # fmt: skip
def test_calls_that_stay_on_the_cpu_say_why(
    target: str, positional: tuple[Any, ...], keywords: dict[str, Any], reason: str
) -> None:
    assert reason_of(target, *positional, **keywords) == reason
