"""Random numbers in each dtype: their distribution, also at the ends, and the arguments that are refused."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import DEVICE

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64]
COUNT = 200_000


def check_uniformity(
    sample: torch.Tensor, cdf: Callable[[torch.Tensor], torch.Tensor], resolution: float = 0.0
) -> None:
    """The largest distance of the sample's distribution from `cdf` is what chance allows (Kolmogorov and Smirnov)."""
    ordered = sample.double().cpu().flatten().sort().values
    count = len(ordered)
    theory = cdf(ordered)
    ranks = torch.arange(count, dtype=torch.float64)
    distance = torch.maximum((theory - ranks / count).abs(), (theory - (ranks + 1) / count).abs()).max().item()
    # Exceeded once in ten million times. Numbers of few bits stand for an interval each.
    assert distance < 2.9 / math.sqrt(count) + resolution, distance


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-3.0, 5.0), (0.999, 1.0), (1000.0, 1001.0), (-1.0, 0.0)])
def test_uniform_numbers_stay_below_the_upper_bound(dtype: torch.dtype, bounds: tuple[float, float]) -> None:
    low, high = bounds
    sample = torch.empty(COUNT, dtype=dtype, device=DEVICE).uniform_(low, high).double()
    # A dtype of few bits may have no number in the interval.
    assert sample.min().item() >= low - torch.finfo(dtype).eps
    assert sample.max().item() < high
    if high - low >= 1 and abs(low) < 10:
        resolution = 2 * torch.finfo(dtype).eps * max(abs(low), abs(high)) / (high - low)
        check_uniformity(sample, lambda x: (x - low) / (high - low), resolution)


@pytest.mark.parametrize("dtype", FLOATS)
def test_rand_returns_0_and_never_1(dtype: torch.dtype) -> None:
    sample = torch.rand(3_000_000 if dtype in (torch.float16, torch.bfloat16) else COUNT, dtype=dtype, device=DEVICE)
    assert sample.max().item() < 1
    assert sample.min().item() >= 0
    if dtype in (torch.float16, torch.bfloat16):
        # All numbers that its precision has below 1, each as often.
        steps = round(2 / torch.finfo(dtype).eps)
        counts = torch.bincount((sample.float() * steps).long().cpu(), minlength=steps)
        expected = len(sample) / steps
        assert (counts - expected).abs().max().item() < 6 * math.sqrt(expected)


@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64, torch.complex128])
def test_complex_numbers_have_two_parts(dtype: torch.dtype) -> None:
    parts = torch.view_as_real(torch.empty(COUNT, dtype=dtype, device=DEVICE).uniform_(-1, 1)).double()
    assert -1 <= parts.min().item() < -0.99
    assert 0.99 < parts.max().item() < 1
    normal = torch.view_as_real(torch.empty(COUNT, dtype=dtype, device=DEVICE).normal_(0, 2)).double()
    assert normal.var().item() == pytest.approx(2, rel=0.02)  # of 4, half for each part
    assert abs((normal[:, 0] * normal[:, 1]).mean().item()) < 0.03


@pytest.mark.parametrize("rate", [0.01, 1.0, 1e4])
@pytest.mark.parametrize("dtype", FLOATS)
def test_exponential_numbers_are_never_0(dtype: torch.dtype, rate: float) -> None:
    sample = torch.empty(3_000_000, dtype=dtype, device=DEVICE).exponential_(rate)
    assert sample.min().item() > 0
    assert sample.isfinite().all()
    least = torch.finfo(dtype).tiny * rate
    check_uniformity(sample, lambda x: -torch.expm1(-x * rate), torch.finfo(dtype).eps + -math.expm1(-least))


def test_a_race_of_exponentials_picks_no_impossible_token() -> None:
    probabilities = torch.zeros(50, device=DEVICE)
    probabilities[7], probabilities[31] = 0.25, 0.75
    picked = [
        (probabilities / torch.empty(400, 50, device=DEVICE).exponential_()).argmax(dim=-1).cpu() for _ in range(100)
    ]
    picks = torch.cat(picked)
    assert set(picks.tolist()) == {7, 31}
    assert (picks == 31).double().mean().item() == pytest.approx(0.75, abs=0.02)


@pytest.mark.parametrize("dtype", FLOATS)
def test_normal_numbers_are_finite_and_have_their_tails(dtype: torch.dtype) -> None:
    sample = torch.empty(COUNT, dtype=dtype, device=DEVICE).normal_(1, 3)
    assert sample.isfinite().all()
    check_uniformity(sample, lambda x: torch.special.ndtr((x - 1) / 3), torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool])
@pytest.mark.parametrize("p", [0.0, 1e-4, 0.3, 1.0])
def test_bernoulli_numbers_are_1_as_often_as_they_should(dtype: torch.dtype, p: float) -> None:
    ones = torch.empty(COUNT, dtype=dtype, device=DEVICE).bernoulli_(p).double().mean().item()
    assert abs(ones - p) <= 6 * math.sqrt(p * (1 - p) / COUNT)


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.bool, *FLOATS])
def test_integers_fill_their_range_and_no_more(dtype: torch.dtype) -> None:
    low, high = (0, 2) if dtype == torch.bool else (3, 120)
    sample = torch.empty(COUNT, dtype=dtype, device=DEVICE).random_(low, high)
    counts = torch.bincount(sample.cpu().long(), minlength=high)
    assert len(counts) == high
    expected = COUNT / (high - low)
    assert counts[:low].sum() == 0
    assert (counts[low:] - expected).abs().max().item() < 6 * math.sqrt(expected)


@pytest.mark.parametrize("dtype", FLOATS)
def test_integers_that_a_float_cannot_hold_stay_in_their_range(dtype: torch.dtype) -> None:
    digits = round(1 - math.log2(torch.finfo(dtype).eps))
    low, high = 2**digits, 2 ** (digits + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sample = torch.empty(COUNT, dtype=dtype, device=DEVICE).random_(low, high).double()
    assert sample.min().item() >= low
    assert sample.max().item() < high


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool, *FLOATS])
def test_integers_without_bounds_reach_the_largest_one(dtype: torch.dtype) -> None:
    sample = torch.empty(COUNT, dtype=dtype, device=DEVICE).random_().double()
    if dtype == torch.bool:
        most = 1.0
    elif dtype.is_floating_point:
        most = 2.0 ** round(1 - math.log2(torch.finfo(dtype).eps))
    else:
        most = float(torch.iinfo(dtype).max)
    assert sample.min().item() >= 0
    assert 0.99 * most <= sample.max().item() <= most


DTYPES = [*FLOATS, *INTEGERS, torch.bool, torch.complex32, torch.complex64, torch.complex128, torch.float8_e4m3fn]
CALLS: list[tuple[str, tuple[object, ...]]] = [
    ("uniform_", ()),
    ("uniform_", (2, 1)),
    ("uniform_", (math.nan, 1)),
    ("uniform_", (0, 1e300)),
    ("normal_", ()),
    ("normal_", (0, -1)),
    ("normal_", (0, math.nan)),
    ("exponential_", (2,)),
    ("exponential_", (0,)),
    ("exponential_", (-1,)),
    ("bernoulli_", (0.5,)),
    ("bernoulli_", (1.5,)),
    ("bernoulli_", (math.nan,)),
    ("random_", ()),
    ("random_", (3, 3)),
    ("random_", (5,)),
    ("random_", (0,)),
    ("random_", (-1, 5)),
    ("random_", (0, 300)),
    ("random_", (0, 2**40)),
    ("random_", (2, None)),
    ("cauchy_", ()),
    ("cauchy_", (0, -1)),
    ("log_normal_", ()),
    ("log_normal_", (1, -1)),
    ("geometric_", (0.5,)),
    ("geometric_", (0,)),
    ("geometric_", (1.5,)),
]


def outcome(call: Callable[..., object], *arguments: object) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call(*arguments)
        except Exception as error:
            return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return "works"


@pytest.mark.parametrize("name, arguments", CALLS, ids=lambda value: str(value))
def test_calls_work_or_are_refused_when_called_as_on_the_cpu(name: str, arguments: tuple[object, ...]) -> None:
    for dtype in DTYPES:
        for shape in [(3,), (2, 1, 4)]:
            expected = outcome(getattr(torch.empty(shape, dtype=dtype), name), *arguments)
            ours = torch.empty(shape, dtype=dtype, device=DEVICE)
            # Twice: the second time the call is known.
            assert outcome(getattr(ours, name), *arguments) == expected, dtype
            assert outcome(getattr(ours, name), *arguments) == expected, dtype
            ours.cpu()


def factories(device: str) -> dict[str, Callable[[], Any]]:
    ones = torch.ones(4, device=device)
    return {
        "randint": lambda: torch.randint(3, 3, (2,), device=device),
        "randint of bytes": lambda: torch.randint(0, 300, (2,), dtype=torch.uint8, device=device),
        "randint_like": lambda: torch.randint_like(ones, 5, 2),
        "randint of unsigned": lambda: torch.randint(0, 60000, (2,), dtype=torch.uint16, device=device),
        "rand of integers": lambda: torch.rand(3, dtype=torch.int64, device=device),
        "randn of integers": lambda: torch.randn(3, dtype=torch.int32, device=device),
        "rand of complex": lambda: torch.rand(3, dtype=torch.complex64, device=device),
        "randperm": lambda: torch.randperm(-1, device=device),
        "randperm of bytes": lambda: torch.randperm(300, dtype=torch.uint8, device=device),
        "normal": lambda: torch.normal(0.0, -1.0, (3,), device=device),
        "normal of tensors": lambda: torch.normal(ones, -1.0),
        "normal of deviations": lambda: torch.normal(0.0, -ones),
        "bernoulli": lambda: torch.bernoulli(ones, 1.5),
        "bernoulli of tensors": lambda: torch.bernoulli(ones * 2),
        "dropout": lambda: torch.dropout(ones, 1.5, True),
        "native dropout": lambda: torch.native_dropout(ones, 2.0, True),
        "native dropout of integers": lambda: torch.native_dropout(ones.long(), 0.5, True),
        "alpha dropout": lambda: torch.alpha_dropout(ones, -0.5, True),
        "multinomial": lambda: torch.multinomial(ones, 5),
        "multinomial of none": lambda: torch.multinomial(ones, 0),
        "multinomial of negatives": lambda: torch.multinomial(-ones, 2),
        "multinomial of nothing": lambda: torch.multinomial(ones * 0, 2),
        "poisson": lambda: torch.poisson(-ones),
        "binomial": lambda: torch.binomial(ones, ones * 2),
        "rrelu": lambda: torch.nn.functional.rrelu(ones, 0.5, 0.1, training=True),
    }


# What depends on values is refused when they are there.
BY_VALUE = {
    "bernoulli of tensors",
    "multinomial of negatives",
    "multinomial of nothing",
    "poisson",
    "binomial",
    "normal of deviations",
}


@pytest.mark.parametrize("name", factories("cpu"))
def test_factories_and_functions_are_refused_as_on_the_cpu(name: str) -> None:
    def call(device: str) -> None:
        result = factories(device)[name]()
        if name in BY_VALUE:
            result.cpu()

    assert outcome(call, DEVICE) == outcome(call, "cpu")
    assert torch.ones(2, device=DEVICE).sum().item() == 2


def test_a_refused_call_draws_nothing() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4, device=DEVICE).cpu()
    torch.manual_seed(3)
    x = torch.zeros(4, device=DEVICE)
    with pytest.raises(RuntimeError, match="from=2 > to=1"):
        x.uniform_(2, 1)
    assert x.uniform_().cpu().equal(expected)
