"""Tensors that grow by concatenation: the old bytes stay where they are, and nobody can tell."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from random import Random

import pytest
import torch
import torch.nn.functional as F
from counters import Seen, counting
from helpers import DEVICE
from torch import Tensor

GREW = "concatenations that grew in place"


def grew(seen: Seen) -> int:
    return seen.own_kernels.get(GREW, 0)


def random(*sizes: int, dtype: torch.dtype = torch.float32, seed: int = 3) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)).to(dtype)


class Pair:
    """A tensor on the CPU and its twin on the device, which both grow."""

    def __init__(self, *sizes: int, dim: int, dtype: torch.dtype = torch.float32, step: int = 1) -> None:
        self.cpu = random(*sizes, dtype=dtype)
        self.dim = dim
        self.dtype = dtype
        self.added = [*sizes]
        self.added[dim] = step
        self.steps = 0
        self.device = self.cpu.to(DEVICE)

    def grow(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.steps += 1
            new = random(*self.added, dtype=self.dtype, seed=self.steps)
            self.cpu = torch.cat([self.cpu, new], self.dim)
            self.device = torch.cat([self.device, new.to(DEVICE)], self.dim)
            torch.hetero.flush()

    def check(self) -> None:
        assert self.device.stride() == self.cpu.stride() and self.device.is_contiguous()
        assert torch.equal(self.device.cpu(), self.cpu)


def apart(*sizes: int, dim: int, **options: object) -> Pair:
    """A pair whose tensor on the device has grown in place."""
    pair = Pair(*sizes, dim=dim, **options)  # type: ignore[arg-type]
    with counting() as seen:
        pair.grow(4)
    assert grew(seen) == 2
    return pair


DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.complex64]
SIZES = [((2, 4, 300, 128), 2), ((2, 4, 300, 128), -2), ((300_000,), 0), ((3000, 100), 0), ((100, 3000), 1)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("sizes", "dim"), SIZES)
def test_grows_in_place(sizes: tuple[int, ...], dim: int, dtype: torch.dtype) -> None:
    # Half a MiB or more.
    pair = Pair(2 * sizes[0], *sizes[1:], dim=dim, dtype=dtype)
    # The first concatenation is one, the second makes room, and then, when that is used up, the next does.
    with counting() as seen:
        pair.grow(12)
    assert grew(seen) >= 8
    assert seen.plans_made <= 4
    pair.check()


def test_grows_by_several_tensors_at_once() -> None:
    cpu = random(4, 512, 64)
    device = cpu.to(DEVICE)
    with counting() as seen:
        for i in range(8):
            parts = [random(4, n, 64, seed=i) for n in (1, 3)]
            cpu = torch.cat([cpu, parts[0], torch.empty(0), parts[1]], 1)
            device = torch.cat([device, parts[0].to(DEVICE), torch.empty(0, device=DEVICE), parts[1].to(DEVICE)], 1)
            torch.hetero.flush()
    assert grew(seen) >= 4
    assert torch.equal(device.cpu(), cpu)


def test_adds_a_part_of_itself() -> None:
    pair = apart(4, 512, 64, dim=1)
    with counting() as seen:
        for _ in range(5):
            pair.cpu, pair.device = (torch.cat([t, t[:, :1]], 1) for t in (pair.cpu, pair.device))
            torch.hetero.flush()
    assert grew(seen) >= 1  # at first sight it is run as it is
    pair.check()


# What sees a tensor with gaps: alone, and as views.
READERS: dict[str, Callable[[Tensor], Tensor]] = {
    "whole": lambda t: t * 2,
    "sum": lambda t: t.sum((0, 2)),
    "softmax": lambda t: torch.softmax(t, -1),
    "transposed": lambda t: t.transpose(0, 1) + 1,
    "product": lambda t: t @ t.mT,
    "slice": lambda t: t[1:, 3:9, 5] - 1,
    "last": lambda t: t[:, -1].clone(),
    "strided": lambda t: t[::2, ::3, ::5].contiguous(),
    "expanded": lambda t: t[:, None].expand(-1, 3, -1, -1).reshape(3 * t.shape[0], *t.shape[1:]),
    "merged dimensions in a row": lambda t: t.flatten(1) * 2,
    "merged dimensions over rows": lambda t: t.flatten(0, 1) * 2,
    "flat": lambda t: t.view(-1)[7:-7] * 2,
    "as_strided": lambda t: t.as_strided((5, 7), (3, 1), 11) * 2,
    "another dtype": lambda t: t.view(torch.int32) + 1,
    "wider dtype": lambda t: t.view(torch.float64).abs() < 1,
    "index": lambda t: t[:, torch.tensor([1, 0, 2], device=t.device)],
    "no entry": lambda t: t[:, :0] + 1,
    "attention": lambda t: F.scaled_dot_product_attention(t[:, -2:], t, t),
    "norm": lambda t: F.layer_norm(t, t.shape[-1:]),
    "nonzero": lambda t: (t > 2.5).nonzero(),
    "unfold": lambda t: t.unfold(1, 4, 2).sum(-1),
    "of another kind": lambda t: torch.cdist(t[:1], t[1:2]),
}


@pytest.mark.parametrize("reader", READERS)
def test_readers_see_no_gaps(reader: str) -> None:
    pair = apart(4, 512, 64, dim=1)
    for _ in range(4):
        torch.testing.assert_close(READERS[reader](pair.device).cpu(), READERS[reader](pair.cpu))
        pair.grow()
    pair.check()


@pytest.mark.parametrize("reader", READERS)
def test_readers_in_the_trace_of_a_concatenation_see_no_gaps(reader: str) -> None:
    pair = apart(4, 512, 64, dim=1)
    for i in range(4):
        new = random(4, 1, 64, seed=i)
        pair.cpu = torch.cat([pair.cpu, new], 1)
        before = READERS[reader](pair.device)
        pair.device = torch.cat([pair.device, new.to(DEVICE)], 1)
        after = READERS[reader](pair.device)
        torch.testing.assert_close(after.cpu(), READERS[reader](pair.cpu))
        torch.testing.assert_close(before.cpu(), READERS[reader](pair.cpu[:, :-1].contiguous()))
    pair.check()


WRITERS: dict[str, Callable[[Tensor], object]] = {
    "whole": lambda t: t.mul_(2),
    "fill": lambda t: t.fill_(3),
    "slice": lambda t: t[:, 5:7].zero_(),
    "flat": lambda t: t.view(-1)[3:-3].add_(1),
    "copy": lambda t: t[:, -1].copy_(t[:, 0]),
    "index": lambda t: t.index_copy_(1, torch.tensor([4, 2], device=t.device), t[:, :2] * 2),
    "mask": lambda t: t.masked_fill_(t > 1, 0),
    "put": lambda t: t.__setitem__((slice(None), 7), 5.0),
    "sort": lambda t: t.copy_(t.sort(1).values),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_writers_leave_what_the_cpu_leaves(writer: str) -> None:
    pair = apart(4, 512, 64, dim=1)
    for _ in range(3):
        for tensor in (pair.cpu, pair.device):
            WRITERS[writer](tensor)
        pair.check()
        pair.grow()
        for tensor in (pair.cpu, pair.device):
            WRITERS[writer](tensor)
        pair.grow()
    pair.check()


def test_a_write_in_the_same_trace_as_the_concatenation() -> None:
    pair = apart(4, 512, 64, dim=1)
    for i in range(4):
        new = random(4, 1, 64, seed=i)
        before = pair.device.sum(1)  # runs where it likes
        expected = pair.cpu.sum(1)
        pair.cpu = torch.cat([pair.cpu, new], 1).mul_(0.5)
        pair.device = torch.cat([pair.device, new.to(DEVICE)], 1).mul_(0.5)
        pair.check()
        torch.testing.assert_close(before.cpu(), expected)


@pytest.mark.parametrize("seed", range(24))
def test_random_programs_of_growth_views_and_writes(seed: int) -> None:
    choose = Random(seed)
    sizes = choose.choice([(4, 600, 64), (2, 3, 400, 64), (200_000,), (3, 100_000), (1, 8, 300, 64), (5, 40_000, 1)])
    pair = Pair(*sizes, dim=choose.randrange(len(sizes)))
    kept: list[tuple[Tensor, Tensor]] = []

    def both(function: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        return function(pair.device), function(pair.cpu)

    for _ in range(choose.randrange(4, 14)):
        i, dim = choose.randrange(pair.cpu.shape[pair.dim]), pair.dim
        view = choose.choice(
            [
                lambda t, i=i, dim=dim: t.select(dim, i),
                lambda t, i=i, dim=dim: t.narrow(dim, i // 2, i - i // 2),
                lambda t, i=i: t.view(-1)[i : i + 99],
                lambda t: t.transpose(0, -1),
            ]
        )
        match choose.randrange(10):
            case 0 | 1 | 2 | 3 | 4:
                pair.grow()
            case 5:
                kept.append(both(view))
            case 6:
                both(lambda t, view=view: view(t).mul_(0.5))
            case 7:
                kept.append(both(torch.clone))
            case 8:
                kept = kept[1:]
            case 9:
                torch.testing.assert_close(*(t.cpu() for t in both(lambda t, dim=dim: (t * t).sum(dim))))
    pair.check()
    for actual, expected in kept:
        assert torch.equal(actual.cpu(), expected)


def test_what_is_still_seen_is_not_taken() -> None:
    pair = apart(4, 512, 64, dim=1)
    old, old_cpu = pair.device, pair.cpu
    with counting() as seen:
        pair.grow()
    assert grew(seen) == 0
    pair.check()
    assert torch.equal(old.cpu(), old_cpu)
    # The new one has room of its own, and each goes its way.
    del old
    with counting() as seen:
        pair.grow()
    assert grew(seen) == 1
    pair.check()


def test_a_view_keeps_the_old_bytes() -> None:
    pair = apart(4, 512, 64, dim=1)
    view, view_cpu = pair.device[1:, 10:20], pair.cpu[1:, 10:20]
    with counting() as seen:
        pair.grow(2)
    assert grew(seen) == 1  # of the two
    assert torch.equal(view.cpu(), view_cpu)
    pair.check()


def test_two_branches_of_one_tensor() -> None:
    pair = apart(4, 512, 64, dim=1)
    a, b = (random(4, 1, 64, seed=seed) for seed in (50, 51))
    device = pair.device
    pair.device = None  # type: ignore[assignment]
    with counting() as seen:
        left, right = torch.cat([device, a.to(DEVICE)], 1), torch.cat([device, b.to(DEVICE)], 1)
        del device
        torch.hetero.flush()
    assert grew(seen) == 1
    assert torch.equal(left.cpu(), torch.cat([pair.cpu, a], 1))
    assert torch.equal(right.cpu(), torch.cat([pair.cpu, b], 1))


def test_a_concatenation_that_nobody_needs() -> None:
    pair = apart(4, 512, 64, dim=1)
    torch.cat([pair.device, pair.device[:, :1]], 1)
    pair.check()
    pair.grow()
    pair.check()


def test_ways_out_of_the_dispatcher() -> None:
    pair = apart(4, 512, 64, dim=1)
    saved = io.BytesIO()
    torch.save(pair.device, saved)
    saved.seek(0)
    assert torch.equal(torch.load(saved, map_location="cpu"), pair.cpu)
    assert pair.device.tolist() == pair.cpu.tolist()
    assert repr(pair.device[0, 0, :3])
    assert pair.device[3, 511, 63].item() == pair.cpu[3, 511, 63].item()
    assert torch.equal(pair.device.clone().cpu(), pair.cpu)
    pair.grow()
    array = pair.device.numpy()
    assert (array == pair.cpu.numpy()).all()
    array[:] = 1
    pair.cpu.fill_(1)
    pair.check()
    pair.grow(3)
    pair.check()
    assert (array == 1).all()


def test_bytes_that_cannot_be_moved_together_are_not_lost() -> None:
    pair = apart(4, 512, 64, dim=1)
    with torch.hetero.config.override(memory_limit=torch.hetero.memory_allocated() + 4096):
        for leave in (Tensor.cpu, Tensor.numpy, lambda t: t.resize_(4, 600, 64)):
            torch.hetero.empty_cache()
            with pytest.raises(torch.OutOfMemoryError):
                leave(pair.device)
    pair.check()
    pair.grow(2)
    pair.check()


def test_resizing_and_replacing() -> None:
    pair = apart(4, 512, 64, dim=1)
    for tensor in (pair.cpu, pair.device):
        tensor.resize_(4, 100, 64)
    pair.check()
    pair = apart(4, 512, 64, dim=1)
    other = pair.device
    other.data = torch.ones(3, device=DEVICE)
    assert other.tolist() == [1, 1, 1]


def test_without_fusion_gaps_are_closed() -> None:
    pair = apart(4, 512, 64, dim=1)
    with torch.hetero.config.override(fusion=False), counting() as seen:
        assert torch.equal((pair.device * 2).cpu(), pair.cpu * 2)
        pair.grow(4)
    assert grew(seen) == 0
    pair.check()


def test_a_custom_operator_gets_the_contiguous_tensor_that_it_sees() -> None:
    with torch.library._scoped_library("hetero_growth", "FRAGMENT") as library:
        library.define("strides(Tensor x) -> Tensor")

        def strides(x: Tensor) -> Tensor:
            return torch.tensor([*x.stride(), x.is_contiguous()])

        library.impl("strides", strides, "CPU")
        library.impl("strides", lambda x: torch.empty(4, dtype=torch.int64), "Meta")
        pair = apart(4, 512, 64, dim=1)
        for _ in range(3):
            expected = [*pair.cpu.stride(), 1]
            assert torch.ops.hetero_growth.strides(pair.device).tolist() == expected
            pair.grow()


def test_gradients_keep_what_they_need() -> None:
    weight = random(4, 1, 64)
    results = []
    for device in ("cpu", DEVICE):
        tensor = random(4, 512, 64, seed=9).to(device)
        grown = weight.clone().to(device).requires_grad_()
        for _ in range(5):
            tensor = torch.cat([tensor, grown * 2], 1)
            torch.hetero.flush()
        (tensor**2).sum().backward()
        assert grown.grad is not None
        results.append(grown.grad.cpu())
    torch.testing.assert_close(results[1], results[0])


def test_memory_grows_by_an_eighth_at_most_and_not_at_each_step() -> None:
    pair = apart(4, 512, 64, dim=1)
    bytes_of = torch.hetero.memory_allocated
    before = bytes_of()
    held = pair.device.nbytes
    torch.hetero.reset_peak_memory_stats()
    with counting() as seen:
        pair.grow(3)
    assert grew(seen) == 3
    # Nothing but the parts that are added.
    assert bytes_of() == before
    assert torch.hetero.max_memory_allocated() - before < held // 8


def test_threads_read_while_another_grows() -> None:
    pair = apart(4, 512, 64, dim=1)
    shared = pair.device
    expected = pair.cpu
    errors: list[object] = []

    def read() -> None:
        for i in range(40):
            actual = shared.cpu() if i % 2 else (shared.view(-1) + 0).view(shared.shape).cpu()
            if not torch.equal(actual, expected):
                errors.append(i)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    pair.grow(40)
    for thread in threads:
        thread.join()
    assert not errors
    pair.check()


@pytest.fixture
def pieces() -> Iterator[None]:
    from torch_hetero import _C

    _C.force_overlap(3)
    yield
    _C.force_overlap(0)


def test_grows_in_pieces_that_run_while_the_rest_is_recorded(pieces: None) -> None:
    def step(cache: list[Tensor], new: Tensor) -> Tensor:
        for _ in range(8):
            new = (new * 0.5 + 1).sin()
        cache[0] = torch.cat([cache[0], new], 1)
        out = F.scaled_dot_product_attention(new, cache[0], cache[0])
        for _ in range(8):
            out = (out * 0.5 + 1).cos()
        return out

    keys = [[random(4, 512, 64).to(device)] for device in ("cpu", DEVICE)]
    with counting() as seen:
        for i in range(20):
            new = random(4, 1, 64, seed=i)
            expected = step(keys[0], new)
            actual = step(keys[1], new.to(DEVICE))
            torch.testing.assert_close(actual.cpu(), expected)
    assert grew(seen) >= 12
    torch.testing.assert_close(keys[1][0].cpu(), keys[0][0])
