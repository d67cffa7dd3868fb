"""Operators whose default kernel is chosen by device, and that the device therefore takes whole; `out=` without elements."""

from __future__ import annotations

import torch
from counters import counting
from helpers import assert_same, check, fresh, needs_hetero


def test_a_complex_tensor_is_conjugated_in_place() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y.t().conj_physical_()
        return y

    for dtype in (torch.complex64, torch.complex128, torch.float32):
        check(run, torch.randn(3, 4, dtype=dtype))


@needs_hetero
def test_conjugation_in_place_is_recorded() -> None:
    x = torch.randn(3, dtype=torch.complex64).to("hetero")
    with counting() as seen:
        x.conj_physical_()
    assert seen.recorded == 1 and seen.kernels == 0


def test_modes_are_written_into_given_tensors() -> None:
    numbers = torch.randint(0, 3, (4, 6))
    for shape in ((4,), (0,)):

        def run(x: torch.Tensor, shape: tuple[int, ...] = shape) -> tuple[torch.Tensor, torch.Tensor]:
            values, places = x.new_ones(shape), torch.ones(shape, dtype=torch.int64, device=x.device)
            torch.mode(x, out=(values, places))
            return values, places

        check(run, numbers)


def test_out_without_elements_may_have_gaps() -> None:
    """LAPACK's kernels give it the strides of Fortran, which must not count as another shape."""

    def run(a: torch.Tensor, tau: torch.Tensor) -> torch.Tensor:
        out = a.new_empty(0, 0, 2)[..., 1]
        torch.linalg.householder_product(a, tau, out=out)
        return out

    check(run, torch.empty(0, 0), torch.empty(0))


def test_svd_into_given_tensors() -> None:
    x = torch.randn(4, 3, dtype=torch.complex64)
    expected = torch.linalg.svd(x, full_matrices=False)
    given = [torch.empty_like(part) for part in (expected.U, expected.S, expected.Vh.mH)]
    on_device = [fresh(part) for part in given]
    torch.svd(x, out=tuple(given))
    torch.svd(fresh(x), out=tuple(on_device))
    assert_same(on_device, given)


def test_what_is_given_twice_is_one_tensor_to_the_kernel() -> None:
    # nan_to_num_ passes itself as `out`, and kernels allow overlapping elements only to one and the same tensor.
    check(lambda x: x.clone().expand(2, 2, 3).nan_to_num_(), torch.arange(3).expand(2, 3))


def test_the_norm_of_a_number_does_not_depend_on_what_the_kernel_was_given_before() -> None:
    # PyTorch's kernel reads the first size of a tensor without dimensions, and chooses between two formulas by it.
    number = torch.tensor(-5.3837995529174805 + 1.3494563102722168j)

    def norm(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.vector_norm(x, 1.2, 0, True)

    for _ in range(2):
        check(norm, number)
        check(norm, number.reshape(1))
