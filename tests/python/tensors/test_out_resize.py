"""`out=` arguments, resizing, and storage surgery follow CPU, pending work included."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from helpers import DEVICE, assert_same, check, fresh_tree, outcome

X = torch.arange(6.0).reshape(2, 3)

OUT_CALLS: dict[str, Callable[..., object]] = {
    "add": lambda x, out: torch.add(x, 1, out=out),
    "mul": lambda x, out: torch.mul(x, x, out=out),
    "exp": lambda x, out: torch.exp(x, out=out),
    "mm": lambda x, out: torch.mm(x, x.t(), out=out),
    "addmm": lambda x, out: torch.addmm(x[:, :2], x, x.t(), out=out),
    "sum": lambda x, out: torch.sum(x, 1, out=out),
    "mean": lambda x, out: torch.mean(x, 0, out=out),
    "cat": lambda x, out: torch.cat([x, x], out=out),
    "stack": lambda x, out: torch.stack([x, x], out=out),
    "index_select": lambda x, out: torch.index_select(x, 1, torch.tensor([2, 0], device=x.device), out=out),
    "arange": lambda x, out: torch.arange(5, out=out),
    "zeros": lambda x, out: torch.zeros(3, 2, out=out),
    "cumsum": lambda x, out: torch.cumsum(x, 1, out=out),
    "softmax": lambda x, out: torch.softmax(x, 1, out=out),
    "where": lambda x, out: torch.where(x > 2, x, -x, out=out),
    "pow": lambda x, out: torch.pow(x, 2, out=out),
    "clamp": lambda x, out: torch.clamp(x, 1, 3, out=out),
    "tril": lambda x, out: torch.tril(x, out=out),
    "bmm": lambda x, out: torch.bmm(x[None], x.t()[None], out=out),
    "norm": lambda x, out: torch.linalg.vector_norm(x, dim=1, out=out),
}


@pytest.mark.parametrize("call", OUT_CALLS)
def test_out_with_no_elements_is_resized(call: str) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(0, device=x.device)
        result = OUT_CALLS[call](x * 1, out)
        assert result is out
        return out

    actual = check(run, X)
    assert actual.stride() == run(X).stride()


@pytest.mark.parametrize("call", OUT_CALLS)
def test_out_of_another_shape_is_resized_with_pytorchs_warning(call: str) -> None:
    def run(x: torch.Tensor) -> tuple[torch.Tensor, bool]:
        out = torch.ones(7, device=x.device)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            OUT_CALLS[call](x * 1, out)
        return out, any("resized" in str(warning.message) for warning in caught)

    check(run, X)


@pytest.mark.parametrize("call", OUT_CALLS)
def test_out_of_the_right_shape_keeps_its_strides_and_storage(call: str) -> None:
    expected = OUT_CALLS[call](X * 1, torch.empty(0))

    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        base = torch.zeros(*expected.shape, 2, device=x.device, dtype=expected.dtype)
        out = base[..., 1]
        pending = base * 5
        OUT_CALLS[call](x * 1, out)
        return base, out.clone(), pending

    check(run, X)


BAD_OUT: dict[str, Callable[[torch.Tensor], object]] = {
    "integer_out": lambda x: torch.add(x, 1.5, out=torch.empty(2, 3, dtype=torch.int64, device=x.device)),
    "bool_out": lambda x: torch.exp(x, out=torch.empty(2, 3, dtype=torch.bool, device=x.device)),
    "requires_grad": lambda x: torch.add(x, 1, out=torch.empty(2, 3, device=x.device, requires_grad=True)),
    "expanded_out": lambda x: torch.add(x, 1, out=torch.empty(1, 3, device=x.device).expand(2, 3)),
    "partial_overlap": lambda x: torch.add(x.view(-1)[:5], 1, out=x.view(-1)[1:]),
    "mm_integer_out": lambda x: torch.mm(x, x.t(), out=torch.empty(2, 2, dtype=torch.int32, device=x.device)),
}


@pytest.mark.parametrize("call", BAD_OUT)
def test_a_wrong_out_is_refused_as_on_cpu(call: str) -> None:
    expected = outcome(BAD_OUT[call], X.clone())
    assert expected[0] is RuntimeError
    assert outcome(BAD_OUT[call], X.clone().to(DEVICE)) == expected


SURGERY: dict[str, Callable[[torch.Tensor], object]] = {
    "resize_smaller": lambda x: (x.mul_(2), x.resize_(3), x.clone()),
    "resize_same_count": lambda x: (x.add_(1).resize_(3, 2), x * 1),
    "resize_keeps_pending_reader": lambda x: (x * 3, x.resize_(2), x + 0),
    "resize_as": lambda x: (x.neg_().resize_as_(torch.empty(6, device=x.device)), x * 1),
    "resize_view": lambda x: (x[0].resize_(2).fill_(7), x.clone()),
    "resize_to_zero_and_write": lambda x: x.resize_(0).resize_(2).fill_(3),
    "set_other": lambda x: (x.set_(torch.ones(2, device=x.device) * 4), x + 1),
    "set_shares": lambda x: share_by_set(x),
    "data_assignment": lambda x: data_assignment(x),
    "swap_contents": lambda x: swap_contents(x),
    "unsqueeze_in_place": lambda x: (x.unsqueeze_(0).squeeze_(0).t_(), x.transpose_(0, 1), x * 1),
    "as_strided_in_place": lambda x: (x.mul_(2).as_strided_((2, 2), (1, 2)), x * 1),
}


def share_by_set(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    other = torch.arange(4.0, device=x.device) * 10
    pending = x * 2
    x.set_(other)
    x[0] = -1
    return pending, other * 1, x * 1


def data_assignment(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    pending = x + 100
    x.data = x.data.t() * 2
    return pending, x * 1


def swap_contents(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = torch.full((3,), 5.0, device=x.device) + 1
    x_reader, y_reader = x * 1, y * 1
    x.data, y.data = y.data, x.data
    return x * 1, y * 1, x_reader, y_reader


@pytest.mark.parametrize("surgery", SURGERY)
def test_storage_surgery_equals_cpu(surgery: str) -> None:
    check(SURGERY[surgery], X)


@pytest.mark.parametrize("surgery", SURGERY)
def test_storage_surgery_on_a_pending_value_equals_cpu(surgery: str) -> None:
    check(lambda x: SURGERY[surgery]((x * 2 + 1).contiguous()), X)


def test_growing_keeps_the_prefix_and_the_rest_can_be_written() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        x.resize_(4, 3)
        x[2:].fill_(-2)
        return x

    check(run, X)


def test_contiguous_and_memory_format_changes_keep_values_and_strides() -> None:
    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        image = x.reshape(1, 2, 3, 1).expand(2, 2, 3, 4)
        last = image.contiguous(memory_format=torch.channels_last)
        return last, last.contiguous(), torch.empty_like(last).fill_(1), last.clone() + image

    device_results, cpu_results = run(*fresh_tree((X,))), run(X)
    for actual, expected in zip(device_results, cpu_results, strict=True):
        assert actual.stride() == expected.stride()
        assert_same(actual.cpu(), expected)


def test_two_outputs_by_name_are_written() -> None:
    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = torch.empty(0, device=x.device)
        indices = torch.empty(0, dtype=torch.int64, device=x.device)
        torch.max(x * -1, 1, out=(values, indices))
        places = (torch.empty(2, 2, device=x.device), torch.empty(2, 2, device=x.device).long())
        torch.topk(x, 2, out=places)
        return values, indices, *places

    check(run, X)
