"""Views share memory: what is written through one is read through every other, as on CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from counters import counting
from helpers import DEVICE, assert_same, check, needs_hetero

Function = Callable[[torch.Tensor], torch.Tensor]

# Every operator that gives a view, on a base of shape (4, 6).
VIEWS: dict[str, Function] = {
    "alias": lambda t: torch.ops.aten.alias(t),
    "as_strided": lambda t: t.as_strided((3, 2), (5, 2), 1),
    "chunk": lambda t: t.chunk(3, dim=1)[1],
    "detach": lambda t: t.detach(),
    "diagonal": lambda t: t.diagonal(1),
    "expand": lambda t: t[:, :1].expand(4, 3),
    "flatten": lambda t: t.flatten(),
    "index_int": lambda t: t[2],
    "index_slice": lambda t: t[1:4:2, ::3],
    "index_newaxis": lambda t: t[:, None, 1:],
    "index_ellipsis": lambda t: t[..., 5],
    "movedim": lambda t: t.reshape(2, 2, 6).movedim(2, 0),
    "mT": lambda t: t.mT,
    "narrow": lambda t: t.narrow(1, 2, 3),
    "permute": lambda t: t.reshape(2, 2, 6).permute(2, 0, 1),
    "real": lambda t: torch.view_as_complex(t.view(4, 3, 2)).real,
    "imag": lambda t: torch.view_as_complex(t.view(4, 3, 2)).imag,
    "reshape": lambda t: t.reshape(3, 8),
    "select": lambda t: t.select(1, 4),
    "slice": lambda t: torch.ops.aten.slice(t, 1, 1, 6, 2),
    "split": lambda t: t.split(2, dim=1)[2],
    "split_with_sizes": lambda t: t.split([1, 3, 2], dim=1)[1],
    "squeeze": lambda t: t[1:2].squeeze(0),
    "squeeze_dims": lambda t: t[:1, :1].squeeze((0, 1)),
    "swapaxes": lambda t: t.swapaxes(0, 1),
    "t": lambda t: t.t(),
    "tensor_split": lambda t: t.tensor_split(4, dim=1)[0],
    "transpose": lambda t: t.transpose(0, 1),
    "unbind": lambda t: t.unbind(1)[3],
    "unflatten": lambda t: t.unflatten(1, (2, 3)),
    "unfold": lambda t: t.unfold(1, 2, 2),
    "unsafe_split": lambda t: t.unsafe_split(3, dim=1)[1],
    "unsqueeze": lambda t: t.unsqueeze(1),
    "view": lambda t: t.view(2, 12),
    "view_as": lambda t: t.view_as(torch.empty(8, 3, device=t.device)),
    "view_dtype": lambda t: t.view(torch.int32).view(torch.float32),
    "view_as_real": lambda t: torch.view_as_real(torch.view_as_complex(t.view(4, 3, 2))),
    "hsplit": lambda t: t.hsplit(2)[1],
    "vsplit": lambda t: t.vsplit(2)[1],
    "ravel": lambda t: t.ravel(),
    "adjoint": lambda t: t.adjoint(),
    "swapdims": lambda t: t.swapdims(0, 1),
    "data": lambda t: t.data,
}
WRITABLE = [name for name in VIEWS if name != "expand"]
# Views in memory of which autograd does not say so, on CPU either.
NOT_MARKED_AS_VIEWS = ("data", "detach", "unsafe_split", "view_dtype")


def base() -> torch.Tensor:
    return torch.arange(24.0).reshape(4, 6)


@pytest.mark.parametrize("view", VIEWS)
def test_view_has_cpu_values_and_strides(view: str) -> None:
    def look(t: torch.Tensor) -> torch.Tensor:
        return VIEWS[view](t * 2)

    actual = check(look, base())
    expected = look(base())
    assert actual.stride() == expected.stride()
    assert actual.storage_offset() == expected.storage_offset()


@pytest.mark.parametrize("view", VIEWS)
def test_view_of_pending_values_shares_its_base_memory(view: str) -> None:
    there = base().to(DEVICE) + 1
    window = VIEWS[view](there)
    assert window.untyped_storage()._cdata == there.untyped_storage()._cdata
    if view not in NOT_MARKED_AS_VIEWS:
        assert window._is_view()


@pytest.mark.parametrize("view", WRITABLE)
def test_writing_through_the_view_changes_the_base(view: str) -> None:
    def write(t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        before = t.clone()
        VIEWS[view](t).mul_(3).add_(1)
        return before, t + 0

    check(write, base())


@pytest.mark.parametrize("view", VIEWS)
def test_writing_through_the_base_changes_the_view(view: str) -> None:
    def write(t: torch.Tensor) -> tuple[torch.Tensor, ...]:
        window = VIEWS[view](t)
        before = window.clone()
        t.add_(100)
        return before, window * 1, window.sum()

    check(write, base())


@pytest.mark.parametrize("first", ("t", "index_slice", "diagonal", "unfold", "imag", "flatten"))
@pytest.mark.parametrize("second", WRITABLE)
def test_writing_through_one_view_is_read_through_another(first: str, second: str) -> None:
    def write(t: torch.Tensor) -> tuple[torch.Tensor, ...]:
        reader, writer = VIEWS[first](t), VIEWS[second](t)
        early = reader * 2
        writer.copy_(torch.full_like(writer, 7.0))
        late = reader * 2
        return early, late, t.clone()

    check(write, base())


@pytest.mark.parametrize("view", WRITABLE)
def test_out_can_be_any_view(view: str) -> None:
    def write(t: torch.Tensor) -> torch.Tensor:
        window = VIEWS[view](t)
        source = torch.full(window.shape, 2.0, device=t.device)
        torch.add(source, window.clone(), out=window)
        torch.mul(window.clone(), source, out=window)
        return t

    check(write, base())


@pytest.mark.parametrize("view", WRITABLE)
def test_every_kind_of_in_place_operator_takes_any_view(view: str) -> None:
    def write(t: torch.Tensor) -> torch.Tensor:
        window = VIEWS[view](t)
        window.clamp_(2, 20)
        window.fill_(window.flatten()[0].item())
        window.addcmul_(torch.ones_like(window), torch.ones_like(window), value=0.5)
        window.masked_fill_(window > 3, 1.5)
        window.relu_()
        window.zero_()
        window.copy_(torch.arange(window.numel(), device=t.device).reshape(window.shape))
        return t

    check(write, base())


def test_views_of_views_at_any_depth_reach_the_base() -> None:
    def write(t: torch.Tensor) -> torch.Tensor:
        window = t
        for _ in range(20):
            window = window.t()[:, :].unsqueeze(0).squeeze(0).view_as(window.t())
        window[1:, 2:].t()[0] -= 50
        return t

    check(write, base())


def test_overlapping_windows_read_each_others_writes() -> None:
    def write(t: torch.Tensor) -> tuple[torch.Tensor, ...]:
        flat = t.view(-1)
        low, high = flat[:16], flat[8:]
        low.add_(1)
        middle = high * 1
        high.mul_(2)
        low.sub_(high[:16].clone())
        return middle, low.clone(), high.clone(), t

    check(write, base())


def test_sliding_windows_see_later_writes() -> None:
    def write(t: torch.Tensor) -> tuple[torch.Tensor, ...]:
        windows = t.view(-1).unfold(0, 5, 2)
        before = windows.sum(1)
        t.view(-1)[6] = 1000
        return before, windows.sum(1), windows.clone()

    check(write, base())


def test_a_shifted_copy_inside_one_storage_uses_the_old_values() -> None:
    def write(t: torch.Tensor) -> torch.Tensor:
        flat = t.view(-1)
        flat[1:] = flat[:-1].clone()
        flat[:-2].copy_(flat[2:].clone())
        return t

    check(write, base())


def test_writes_to_disjoint_windows_keep_both() -> None:
    def write(t: torch.Tensor) -> torch.Tensor:
        left, right = t[:, :3], t[:, 3:]
        left.mul_(2)
        right.add_(left)
        left.sub_(right)
        return t

    check(write, base())


def test_reading_before_an_in_place_write_keeps_the_old_value() -> None:
    def write(t: torch.Tensor) -> tuple[torch.Tensor, ...]:
        doubled = t * 2
        t.add_(1)
        tripled = t * 3
        t.zero_()
        return doubled, tripled, t

    check(write, base())


def test_as_strided_write_through_overlapping_memory_equals_cpu() -> None:
    def write(t: torch.Tensor) -> torch.Tensor:
        t.as_strided((2, 3), (6, 2), 2).fill_(-1)
        torch.as_strided(t, (4,), (7,)).add_(0.5)
        return t

    check(write, base())


def test_as_strided_scatter_and_slice_scatter_equal_cpu() -> None:
    check(lambda t: t.as_strided_scatter(torch.zeros(2, 2, device=t.device), (2, 2), (6, 1)), base())
    check(lambda t: t.slice_scatter(torch.zeros(4, 2, device=t.device), 1, 0, 6, 3), base())
    check(lambda t: t.select_scatter(torch.ones(4, device=t.device), 1, 2), base())
    check(lambda t: t.diagonal_scatter(torch.ones(4, device=t.device)), base())


ASSIGNMENTS: dict[str, Callable[[torch.Tensor], object]] = {
    "row": lambda t: t.__setitem__(1, 5.0),
    "slice": lambda t: t.__setitem__((slice(1, 3), slice(None, None, 2)), 2),
    "broadcast": lambda t: t.__setitem__(slice(0, 2), torch.ones(6, device=t.device)),
    "mask": lambda t: t.__setitem__(t > 10, 0.5),
    "mask_tensor": lambda t: t.__setitem__(t % 2 == 0, t[t % 2 == 0] * 10),
    "integers": lambda t: t.__setitem__(torch.tensor([3, 0], device=t.device), -1),
    "pairs": lambda t: t.__setitem__(([0, 1, 3], [5, 2, 2]), 9),
    "cpu_index": lambda t: t.__setitem__(torch.tensor([0, 2]), 4),
    "zero_dim_cpu_value": lambda t: t.__setitem__((0, 0), torch.tensor(8.0)),
}


@pytest.mark.parametrize("assignment", ASSIGNMENTS)
def test_assignment_by_index_equals_cpu(assignment: str) -> None:
    def write(t: torch.Tensor) -> torch.Tensor:
        transposed = t.t()
        ASSIGNMENTS[assignment](t)
        return transposed * 1

    check(write, base())


def test_complex_conjugate_views_alias_their_base() -> None:
    def write(t: torch.Tensor) -> tuple[torch.Tensor, ...]:
        conjugate = t.conj()
        conjugate.mul_(1j)
        t.imag.add_(1)
        return t, conjugate.resolve_conj(), conjugate.imag.clone()

    check(write, torch.view_as_complex(torch.randn(5, 2)))


def test_multi_output_views_can_all_be_written() -> None:
    def write(t: torch.Tensor) -> torch.Tensor:
        for index, row in enumerate(t.unbind(0)):
            row.mul_(index)
        for index, part in enumerate(t.split(4, 1)):
            part.add_(index)
        return t

    check(write, base())


def test_version_counter_is_shared_by_views() -> None:
    there = base().to(DEVICE)
    window = there[1]
    before = there._version
    window.add_(1)
    assert there._version == window._version == before + 1


def test_autograd_refuses_a_value_changed_through_a_view() -> None:
    leaf = torch.ones(3, device=DEVICE, requires_grad=True)
    squared = leaf * 2
    result = (squared * squared).sum()
    squared[0:1].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


def test_gradients_flow_through_views_and_in_place_writes_as_on_cpu() -> None:
    def run(t: torch.Tensor) -> tuple[torch.Tensor, ...]:
        leaf = t.detach().requires_grad_()
        value = leaf * 3
        value[1:3, ::2].mul_(2)
        value.t()[0].copy_(leaf[:, 1] ** 2)
        value.view(-1)[5:9] += 1
        loss = (value.unfold(1, 3, 1) ** 2).sum()
        loss.backward()
        return value.detach(), leaf.grad

    check(run, base())


def test_storage_outlives_the_base_tensor() -> None:
    window = (base().to(DEVICE) + 1)[2, 3:]
    assert_same(window.cpu(), torch.tensor([16.0, 17.0, 18.0]))


@needs_hetero
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_records_no_node_and_runs_nothing(view: str) -> None:
    there = base().to(DEVICE)
    with counting() as seen:
        window = VIEWS[view](there)
    expected = 1 if view == "view_as" else 0  # the tensor whose shape is taken
    assert seen.recorded <= expected
    assert seen.kernels == 0 and seen.flushes == {}
    assert window.device.type == DEVICE
