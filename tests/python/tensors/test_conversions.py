"""Values come to the device and back unchanged: dtypes, layouts, scalars, lists, numpy."""

from __future__ import annotations

import numpy
import pytest
import torch
from helpers import DEVICE, assert_same, check, outcome

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.complex64,
    torch.complex128,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)


def values(dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([[0, 1, 2], [3, 4, 100]]).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_round_trip_keeps_every_bit(dtype: torch.dtype) -> None:
    tensor = values(dtype)
    there = tensor.to(DEVICE)
    assert there.device.type == DEVICE and there.dtype == dtype
    assert_same(there.cpu(), tensor)


def test_round_trip_keeps_special_floats() -> None:
    special = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-45])
    assert_same(special.to(DEVICE).cpu(), special)


@pytest.mark.parametrize("source", DTYPES[:12], ids=str)
@pytest.mark.parametrize("target", DTYPES[:12], ids=str)
def test_conversion_between_dtypes_equals_cpu(source: torch.dtype, target: torch.dtype) -> None:
    check(lambda t: t.to(target), values(source))


def test_to_moves_and_converts_at_once() -> None:
    tensor = torch.randn(3, 4)
    assert_same(tensor.to(DEVICE, torch.float16).cpu(), tensor.to(torch.float16))
    assert_same(tensor.to(DEVICE).to("cpu", torch.int32), tensor.to(torch.int32))


def test_to_the_same_device_returns_the_same_tensor() -> None:
    there = torch.randn(3).to(DEVICE)
    assert there.to(DEVICE) is there
    assert there.to(DEVICE, copy=True) is not there


@pytest.mark.parametrize("non_blocking", (False, True))
def test_non_blocking_copies_give_the_right_values(non_blocking: bool) -> None:
    tensor = torch.randn(17, 5)
    there = tensor.to(DEVICE, non_blocking=non_blocking) * 2
    back = there.to("cpu", non_blocking=non_blocking)
    if DEVICE != "cpu":
        torch.accelerator.synchronize()
    assert_same(back, tensor * 2)


def test_source_may_change_after_the_copy() -> None:
    source = torch.ones(4)
    there = source.clone().to(DEVICE) if DEVICE == "cpu" else source.to(DEVICE)
    source.fill_(9)
    assert there.tolist() == [1.0] * 4


def test_result_may_change_without_changing_the_device_tensor() -> None:
    there = torch.ones(4, device=DEVICE)
    back = there.cpu().clone() if DEVICE == "cpu" else there.cpu()
    back.fill_(9)
    assert there.tolist() == [1.0] * 4


LAYOUTS = {
    "contiguous": lambda: torch.randn(2, 3, 4, 5),
    "transposed": lambda: torch.randn(3, 4).t(),
    "permuted": lambda: torch.randn(2, 3, 4).permute(2, 0, 1),
    "channels_last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "channels_last_3d": lambda: torch.randn(2, 2, 3, 3, 2).to(memory_format=torch.channels_last_3d),
    "empty": lambda: torch.randn(0, 3),
    "zero_dim": lambda: torch.randn(()),
    "size_one": lambda: torch.randn(4, 1, 3).transpose(0, 1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_to_keeps_the_strides_of_dense_tensors(layout: str) -> None:
    tensor = LAYOUTS[layout]()
    there = tensor.to(DEVICE)
    assert there.stride() == tensor.stride()
    back = there.cpu()
    assert back.stride() == tensor.stride()
    assert_same(back, tensor)


GAPPED = {
    "sliced": lambda: torch.randn(6, 8)[1:5, ::2],
    "expanded": lambda: torch.randn(1, 4).expand(3, 4),
    "diagonal": lambda: torch.randn(5, 5).diagonal(),
    "unfolded": lambda: torch.randn(9).unfold(0, 3, 1),
    "conjugated": lambda: torch.randn(3, dtype=torch.complex64).conj(),
    "imaginary_of_conjugate": lambda: torch.randn(3, dtype=torch.complex64).conj().imag,
}


@pytest.mark.parametrize("layout", GAPPED)
def test_tensors_with_gaps_or_overlap_keep_their_values(layout: str) -> None:
    tensor = GAPPED[layout]()
    assert_same(tensor.to(DEVICE).cpu(), tensor)
    assert_same(tensor.to(DEVICE).clone().cpu(), tensor)


def test_copy_into_a_view_across_devices_both_ways() -> None:
    there = torch.zeros(4, 6, device=DEVICE)
    there[1:3, ::2].copy_(torch.arange(6.0).reshape(2, 3))
    expected = torch.zeros(4, 6)
    expected[1:3, ::2] = torch.arange(6.0).reshape(2, 3)
    assert_same(there.cpu(), expected)
    here = torch.zeros(6, 4)
    here.t().copy_(there)
    assert_same(here.t().contiguous(), expected)


def test_copy_converts_dtype_and_broadcasts_across_devices() -> None:
    there = torch.zeros(3, 4, device=DEVICE, dtype=torch.int64)
    there.copy_(torch.tensor([1.7, 2.2, 3.9, -4.5]))
    assert there.tolist() == [[1, 2, 3, -4]] * 3
    here = torch.empty(2, 3, 4, dtype=torch.float16)
    here.copy_(there)
    assert here[1].tolist() == [[1.0, 2.0, 3.0, -4.0]] * 3


def test_tolist_item_and_python_numbers() -> None:
    tensor = torch.tensor([[1.5, 2.5], [-3.0, 0.0]], device=DEVICE)
    assert tensor.tolist() == [[1.5, 2.5], [-3.0, 0.0]]
    assert tensor[0, 1].item() == 2.5
    assert float(tensor[1, 0]) == -3.0
    assert int(tensor[0, 0]) == 1
    assert bool(tensor[1, 1]) is False
    assert complex(tensor[0, 0]) == 1.5 + 0j
    assert [0, 1, 2][torch.tensor(2, device=DEVICE)] == 2
    assert torch.tensor(3 + 4j, device=DEVICE).item() == 3 + 4j
    assert torch.tensor(True, device=DEVICE).item() is True


def test_len_iteration_and_membership() -> None:
    tensor = torch.arange(6, device=DEVICE).reshape(3, 2)
    assert len(tensor) == 3
    assert [row.tolist() for row in tensor] == [[0, 1], [2, 3], [4, 5]]
    assert 4 in tensor and 9 not in tensor


def test_formatting_a_zero_dim_tensor_equals_cpu() -> None:
    value = torch.tensor(2.34567)
    assert f"{value.to(DEVICE):.2f}" == f"{value:.2f}"


def test_tensor_from_a_device_tensor_copies() -> None:
    there = torch.ones(3, device=DEVICE)
    copied = there.clone().detach()
    assert torch.as_tensor(there) is there
    copied.add_(1)
    assert there.tolist() == [1.0] * 3
    assert torch.tensor([1, 2], device=DEVICE).tolist() == [1, 2]
    assert torch.as_tensor([1, 2], device=DEVICE).tolist() == [1, 2]


def test_from_numpy_then_to_and_back() -> None:
    array = numpy.arange(12, dtype=numpy.float32).reshape(3, 4)
    there = torch.from_numpy(array).to(DEVICE)
    assert numpy.array_equal((there + 1).cpu().numpy(), array + 1)


def test_numpy_of_a_device_tensor_shares_its_bytes_as_on_cpu() -> None:
    there = torch.arange(4.0, device=DEVICE) * 2
    array = there.numpy()
    assert array.tolist() == [0.0, 2.0, 4.0, 6.0]
    there.add_(1)
    assert there.sum().item() == 16
    assert array.tolist() == [1.0, 3.0, 5.0, 7.0]
    array[0] = -1
    assert there.tolist() == [-1.0, 3.0, 5.0, 7.0]
    assert numpy.asarray(there[1:]).tolist() == [3.0, 5.0, 7.0]


@pytest.mark.parametrize("dtype", (torch.float16, torch.int64, torch.bool, torch.complex64))
def test_numpy_keeps_the_dtype(dtype: torch.dtype) -> None:
    value = torch.tensor([0, 1, 3]).to(dtype)
    assert value.to(DEVICE).numpy().dtype == value.numpy().dtype
    assert numpy.array_equal(value.to(DEVICE).numpy(), value.numpy())


NO_NUMPY = {
    "requires_grad": lambda d: torch.ones(2, device=d, requires_grad=True).numpy(),
    "bfloat16": lambda d: torch.ones(2, device=d, dtype=torch.bfloat16).numpy(),
    "conjugated": lambda d: torch.ones(2, device=d, dtype=torch.complex64).conj().numpy(),
}


@pytest.mark.parametrize("case", NO_NUMPY)
def test_what_numpy_cannot_hold_is_refused_as_on_cpu(case: str) -> None:
    expected = outcome(NO_NUMPY[case], "cpu")
    assert expected[0] is not None
    assert outcome(NO_NUMPY[case], DEVICE) == expected


def test_new_tensors_follow_the_device() -> None:
    there = torch.ones(2, 3, device=DEVICE)
    made = (
        there.new_zeros(2),
        there.new_ones(2),
        there.new_full((2,), 7),
        there.new_tensor([1, 2]),
        torch.zeros_like(there),
        torch.full_like(there, 3),
        torch.empty_like(there),
    )
    assert all(tensor.device.type == DEVICE for tensor in made)
    assert made[3].dtype == torch.float32 or made[3].dtype == torch.int64


FACTORIES = {
    "zeros": lambda d: torch.zeros(3, 2, device=d),
    "ones": lambda d: torch.ones(3, dtype=torch.int16, device=d),
    "full": lambda d: torch.full((2, 2), 3.5, device=d),
    "arange": lambda d: torch.arange(2, 9, 3, device=d),
    "arange_float": lambda d: torch.arange(0.0, 1.0, 0.1, device=d),
    "linspace": lambda d: torch.linspace(-1, 1, 7, device=d),
    "logspace": lambda d: torch.logspace(0, 2, 5, device=d),
    "eye": lambda d: torch.eye(3, 4, device=d),
    "tril_indices": lambda d: torch.tril_indices(3, 3, device=d),
    "triu_indices": lambda d: torch.triu_indices(3, 4, 1, device=d),
    "scalar": lambda d: torch.scalar_tensor(2.5, device=d),
    "hann_window": lambda d: torch.hann_window(8, device=d),
    "complex": lambda d: torch.complex(torch.ones(2, device=d), torch.zeros(2, device=d)),
    "tensor": lambda d: torch.tensor([[1, 2], [3, 4]], device=d),
    "asarray": lambda d: torch.asarray([1.0, 2.0], device=d),
    "sparse_to_dense": lambda d: torch.eye(3, device=d).bool(),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_factory_equals_cpu(name: str) -> None:
    made = FACTORIES[name](DEVICE)
    assert made.device.type == DEVICE
    assert_same(made.cpu(), FACTORIES[name]("cpu"))


def test_type_promotion_with_numbers_and_zero_dim_tensors_equals_cpu() -> None:
    ints = torch.arange(4, dtype=torch.int32)
    check(lambda t: t + 1.5, ints)
    check(lambda t: t * torch.tensor(2.5, dtype=torch.float64, device=t.device), ints)
    check(lambda t: t + torch.tensor(2, dtype=torch.int64), ints)
    check(lambda t: torch.where(t > 1, t, 0.5), ints)
