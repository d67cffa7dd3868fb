"""Laziness, by its mechanisms: what is recorded, when it runs, and what is never run.

The counters say that the mechanism was at work; the values say that it was right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from counters import (
    CONTROL_FLOW,
    COPY_TO_DEVICE,
    DATA_DEPENDENT_SHAPE,
    EXPLICIT_FLUSH,
    LEAVE_DISPATCHER,
    PENDING_BYTES,
    PENDING_NODES,
    READ_SCALAR,
    STORAGE_CHANGE,
    SYNC_MODE,
    SYNCHRONIZE,
    counting,
)
from helpers import DEVICE, assert_same, check, needs_hetero, run_python_ok


@pytest.fixture
def unfused() -> Iterator[None]:
    """One kernel per node, so that kernels can be counted; clean_state sets fusion back."""
    torch.hetero.config.fusion = False
    yield


def ready(*size: int) -> torch.Tensor:
    """A tensor on the device whose value is computed, not pending."""
    value = torch.arange(1.0, 1 + torch.Size(size).numel()).reshape(size).to(DEVICE)
    if DEVICE != "cpu":
        torch.hetero.flush()
    return value


@needs_hetero
def test_calling_an_operator_records_one_node_and_runs_nothing() -> None:
    x, y = ready(4), ready(4)
    with counting() as seen:
        z = x + y
    assert (seen.typed, seen.boxed, seen.kernels, seen.flushes) == (1, 0, 0, {})
    assert z.tolist() == [2.0, 4.0, 6.0, 8.0]


@needs_hetero
def test_shape_dtype_and_strides_are_known_without_running() -> None:
    x = ready(3, 4)
    with counting() as seen:
        z = torch.cat([x.t() @ x, x.t()], dim=1).sum(0).to(torch.float64)
        facts = (z.shape, z.dtype, z.stride(), z.numel(), z.is_contiguous(), z.device.type)
    assert facts == ((7,), torch.float64, (1,), 7, True, "hetero")
    assert seen.kernels == 0 and seen.flushes == {}


@needs_hetero
def test_a_value_that_died_before_the_flush_is_never_computed(unfused: None) -> None:
    x = ready(4, 4)
    with counting() as seen:
        dead = x @ x
        dead = dead.exp()
        kept = x + 1
        del dead
        torch.hetero.flush()
    assert seen.recorded == 3 and seen.dead == 2 and seen.kernels == 1
    assert kept[0, 0].item() == 2.0


@needs_hetero
def test_a_dead_value_with_a_living_reader_is_computed(unfused: None) -> None:
    x = ready(4)
    with counting() as seen:
        middle = x * 2
        result = middle + 1
        del middle
        torch.hetero.flush()
    assert seen.dead == 0 and seen.kernels == 2
    assert result.tolist() == [3.0, 5.0, 7.0, 9.0]


@needs_hetero
def test_a_dead_view_of_a_living_base_keeps_its_writes(unfused: None) -> None:
    base = ready(4)
    with counting() as seen:
        window = base[1:3]
        window.mul_(10)
        del window
        torch.hetero.flush()
    assert seen.dead == 0 and seen.kernels == 1
    assert base.tolist() == [1.0, 20.0, 30.0, 4.0]


@needs_hetero
def test_reading_one_value_runs_only_its_ancestors(unfused: None) -> None:
    x, y = ready(4), ready(4)
    with counting() as seen:
        one = (x + 1) * 2
        other = (y + 1).exp().log()
        total = one[0].item()
        after_reading = seen.kernels
    assert total == 4.0
    assert after_reading == 2
    assert seen.flushes == {READ_SCALAR: 1}
    assert_same(other.cpu(), (torch.arange(1.0, 5.0) + 1).exp().log())


@needs_hetero
def test_reading_a_value_runs_the_writes_that_it_saw_and_none_later(unfused: None) -> None:
    x = ready(3)
    with counting() as seen:
        x.add_(1)
        copy = x * 1
        x.mul_(100)
        value = copy.tolist()
        kernels = seen.kernels
    assert value == [2.0, 3.0, 4.0]
    assert kernels <= 3
    assert x.tolist() == [200.0, 300.0, 400.0]


@needs_hetero
def test_reading_a_computed_value_again_flushes_nothing() -> None:
    x = ready(3) + 1
    assert x.sum().item() == 9
    torch.hetero.flush()
    with counting() as seen:
        values = x.tolist()
    assert values == [2.0, 3.0, 4.0]
    assert seen.flushes == {} and seen.kernels == 0


@needs_hetero
def test_a_flush_with_nothing_pending_is_not_counted() -> None:
    with counting() as seen:
        torch.hetero.flush()
        torch.hetero.synchronize()
    assert seen.flushes == {} and seen.kernels == 0


@needs_hetero
def test_views_record_no_node() -> None:
    x = ready(4, 6)
    with counting() as seen:
        window = x.t()[1:].reshape(5, 2, 2).permute(2, 0, 1).unsqueeze(0).expand(3, 2, 5, 2)
        flat = x.view(-1)[::2].as_strided((3,), (4,), 1)
    assert seen.recorded == 0 and seen.views >= 8 and seen.kernels == 0
    assert window.shape == (3, 2, 5, 2) and flat.tolist() == [2.0, 6.0, 10.0]


@needs_hetero
def test_the_common_operators_have_typed_recorders() -> None:
    x, w = ready(4, 4), ready(4, 4)
    with counting() as seen:
        y = torch.nn.functional.layer_norm(x @ w, (4,)).softmax(-1)
        y = torch.where(y > 0.5, y, y * 2).sum(0, keepdim=True)
        y = torch.cat([y, x]).relu().clamp(0, 3).mean(1).sqrt().to(torch.float16)
    assert seen.boxed == 0 and seen.typed >= 10
    assert y.shape == (5,)


@needs_hetero
def test_an_operator_without_typed_recorder_is_recorded_boxed() -> None:
    x = ready(4)
    with counting() as seen:
        y = torch.special.bessel_j0(x)
    assert seen.boxed == 1 and seen.kernels == 0 and seen.flushes == {}
    assert_same(y.cpu(), torch.special.bessel_j0(torch.arange(1.0, 5.0)))


@needs_hetero
def test_the_report_names_calls_that_are_tried_each_time() -> None:
    x = torch.ones(3, 7, 5, device=DEVICE)
    with counting() as first:
        x.logaddexp(x).cpu()
    assert sum(first.tried.values()) <= 1
    with counting() as again:
        for _ in range(5):
            x.logaddexp(x).cpu()
    assert again.tried == {}
    mask = torch.tensor([True, False, True], device=DEVICE)
    with counting() as masks:
        for _ in range(5):
            x[mask].cpu()
    assert sum(masks.tried.values()) <= 1


@needs_hetero
def test_shapes_are_inferred_once_and_then_remembered() -> None:
    x = ready(5, 7)
    torch.special.entr(x)
    with counting() as seen:
        for _ in range(10):
            torch.special.entr(x)
    assert seen.meta_misses == 0 and seen.meta_hits == 10


def test_a_python_number_counts_as_it_was_when_recorded() -> None:
    x = ready(2)
    factor = 2.0
    y = x * factor
    factor = 100.0
    assert y.tolist() == [2.0, 4.0] and factor == 100.0


def test_a_zero_dim_cpu_tensor_is_taken_by_value_when_recorded() -> None:
    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scale = torch.tensor(3.0)
        first = x * scale
        scale.fill_(7.0)
        second = scale + x
        scale.zero_()
        return first, second

    check(run, torch.arange(3.0))


def test_a_list_given_to_an_operator_may_change_afterwards() -> None:
    sizes = [2, 3]
    made = torch.zeros(sizes, device=DEVICE)
    tensors = [ready(2), ready(2)]
    joined = torch.cat(tensors)
    sizes[0] = 9
    tensors.clear()
    assert made.shape == (2, 3) and joined.tolist() == [1.0, 2.0, 1.0, 2.0]


def test_a_cpu_source_may_change_after_copying_to_the_device() -> None:
    source = torch.ones(3)
    target = torch.zeros(3, device=DEVICE)
    target.copy_(source)
    result = target * 2
    source.fill_(50)
    assert result.tolist() == [2.0] * 3


HAZARDS: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "read_then_write": lambda x, y: (x * 2, x.add_(1), x * 1),
    "write_then_read": lambda x, y: (x.mul_(3), x + y),
    "write_then_write": lambda x, y: (x.copy_(y), x.neg_(), x.clone()),
    "copy_then_overwrite_source": lambda x, y: (x.copy_(y), y.zero_(), x + 0),
    "swap_through_copies": lambda x, y: (
        x.clone(),
        x.copy_(y),
        y.copy_(x * 2),
        x - y,
    ),
    "self_operand": lambda x, y: (x.add_(x), torch.mul(x, x, out=x), x.sub_(x.flip(0))),
    "view_read_write": lambda x, y: (x[:2] * 1, x[1:].add_(5), x[:2] * 1, x),
    "overlap_of_views": lambda x, y: (x[0:3].mul_(2), x[2:5].add_(1), x[1:4] * 1, x),
    "disjoint_views": lambda x, y: (x[:2].fill_(9), y.copy_(x), x[2:].fill_(8), y + x),
    "long_chain_of_writes": lambda x, y: [x.add_(y).mul_(0.5) for _ in range(40)],
    "write_after_dead_reader": lambda x, y: (del_result(x), x.add_(1), x * 1),
    "reduce_then_write": lambda x, y: (x.sum(), x.zero_(), x.sum()),
    "index_write_between_reads": lambda x, y: (x * 1, x.index_fill_(0, idx(x), 4), x * 1),
    "scatter_between_reads": lambda x, y: (x + 0, x.scatter_(0, idx(x), y[:2]), x + 0),
    "out_of_earlier_result": lambda x, y: write_out(x, y),
}


def del_result(x: torch.Tensor) -> int:
    unused = x * 7
    del unused
    return 0


def idx(x: torch.Tensor) -> torch.Tensor:
    return torch.tensor([3, 1], device=x.device)


def write_out(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    z = x + y
    doubled = z * 2
    torch.sub(x, y, out=z)
    return doubled, z, z * doubled


@pytest.mark.parametrize("hazard", HAZARDS)
def test_in_place_hazards_give_cpu_values(hazard: str) -> None:
    check(HAZARDS[hazard], torch.arange(1.0, 6.0), torch.tensor([5.0, -1.0, 2.0, 0.5, 3.0]))


@needs_hetero
@pytest.mark.parametrize("hazard", HAZARDS)
def test_hazards_are_ordered_when_one_result_is_read_at_a_time(hazard: str) -> None:
    def last_first(x: torch.Tensor, y: torch.Tensor) -> list[object]:
        results = list(HAZARDS[hazard](x, y))
        return [r.cpu() if isinstance(r, torch.Tensor) else r for r in reversed(results)]

    x, y = torch.arange(1.0, 6.0), torch.tensor([5.0, -1.0, 2.0, 0.5, 3.0])
    assert_same(last_first(x.to(DEVICE), y.to(DEVICE)), last_first(x.clone(), y.clone()))


REASONS: dict[str, tuple[str, Callable[[torch.Tensor], object]]] = {
    "item": (READ_SCALAR, lambda x: x[0].item()),
    "float": (READ_SCALAR, lambda x: float(x[1])),
    "int": (READ_SCALAR, lambda x: int(x.sum())),
    "cpu": (COPY_TO_DEVICE, lambda x: x.cpu()),
    "to_cpu": (COPY_TO_DEVICE, lambda x: x.to("cpu")),
    "tolist": (COPY_TO_DEVICE, lambda x: x.tolist()),
    "repr": (LEAVE_DISPATCHER, repr),
    "numpy": (LEAVE_DISPATCHER, lambda x: x.numpy()),
    "data_ptr": (LEAVE_DISPATCHER, lambda x: x.data_ptr()),
    "copy_into_cpu": (COPY_TO_DEVICE, lambda x: torch.zeros(4).copy_(x)),
    "nonzero": (DATA_DEPENDENT_SHAPE, lambda x: x.nonzero()),
    "mask": (DATA_DEPENDENT_SHAPE, lambda x: x[x > 2]),
    "unique": (DATA_DEPENDENT_SHAPE, lambda x: x.unique()),
    "masked_select": (DATA_DEPENDENT_SHAPE, lambda x: x.masked_select(x > 1)),
    "equal": (CONTROL_FLOW, lambda x: torch.equal(x, x + 1)),
    "dlpack": (LEAVE_DISPATCHER, lambda x: x.__dlpack__()),
    "flush": (EXPLICIT_FLUSH, lambda x: torch.hetero.flush()),
    "synchronize": (SYNCHRONIZE, lambda x: torch.hetero.synchronize()),
    "accelerator_synchronize": (SYNCHRONIZE, lambda x: torch.accelerator.synchronize()),
}


@needs_hetero
@pytest.mark.parametrize("name", REASONS)
def test_a_sync_point_flushes_under_its_name(name: str) -> None:
    reason, touch = REASONS[name]
    x = ready(4)
    with counting() as seen:
        pending = x + 1
        touch(pending)
    assert seen.flushes.get(reason, 0) >= 1, seen.flushes
    assert set(seen.flushes) == {reason}
    assert seen.kernels >= 1


@needs_hetero
def test_bool_of_a_tensor_flushes_once() -> None:
    x = ready(4)
    with counting() as seen:
        answer = bool((x > 2).any())
    assert answer is True
    assert sum(seen.flushes.values()) == 1
    assert set(seen.flushes) <= {READ_SCALAR, CONTROL_FLOW}


@needs_hetero
def test_replacing_a_storage_settles_what_is_pending_on_it() -> None:
    x = ready(4)
    with counting() as seen:
        pending = x * 2
        x.untyped_storage().resize_(0)
    assert seen.flushes.get(STORAGE_CHANGE, 0) == 1
    assert pending.tolist() == [2.0, 4.0, 6.0, 8.0]


@needs_hetero
def test_sync_mode_runs_each_operator_when_it_is_called() -> None:
    x = ready(4)
    torch.hetero.config.sync = True
    with counting() as seen:
        y = x + 1
        kernels_of_first = seen.kernels
        z = y * 2
    assert kernels_of_first == 1 and seen.kernels == 2
    assert seen.flushes == {SYNC_MODE: 2}
    assert z.tolist() == [4.0, 6.0, 8.0, 10.0]


@needs_hetero
def test_sync_mode_from_the_environment() -> None:
    out = run_python_ok(
        """
        import torch
        from counters import SYNC_MODE, snapshot
        y = torch.ones(3, device="hetero") + 1
        print(torch.hetero.config.sync, snapshot()["flushes"].get(SYNC_MODE, 0) >= 2)
        """,
        {"HETERO_SYNC": "1"},
    )
    assert out.strip() == "True True"


@needs_hetero
def test_too_many_pending_nodes_flush() -> None:
    x = ready(4)
    torch.hetero.config.pending_nodes = 10
    with counting() as seen:
        for _ in range(35):
            x = x + 1
    assert seen.flushes == {PENDING_NODES: 3}
    assert x.tolist() == [36.0, 37.0, 38.0, 39.0]


@needs_hetero
def test_too_many_pending_bytes_flush() -> None:
    x = ready(1024)
    torch.hetero.config.pending_bytes = 10 * 4096
    with counting() as seen:
        kept = [x + i for i in range(25)]
    assert set(seen.flushes) == {PENDING_BYTES}
    assert 1 <= seen.flushes[PENDING_BYTES] <= 3
    assert [value[0].item() for value in kept] == [1.0 + i for i in range(25)]


@needs_hetero
def test_the_same_program_gives_the_same_bits_at_any_flush_points() -> None:
    def program(flush_every: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(3)
        x = torch.randn(6, 6, generator=generator).to(DEVICE)
        for step in range(24):
            x = (x @ x.t()).tanh() + step
            x[step % 6].mul_(0.5)
            if flush_every and step % flush_every == 0:
                torch.hetero.flush()
        return x.cpu()

    expected = program(0)
    for flush_every in (1, 2, 5):
        assert_same(program(flush_every), expected)


@needs_hetero
def test_backward_is_recorded_too() -> None:
    w = ready(4, 4).requires_grad_()
    with counting() as seen:
        (w @ w).tanh().sum().backward()
    assert seen.kernels == 0 and seen.flushes == {}
    assert seen.recorded >= 6
    assert w.grad.shape == (4, 4) and w.grad.isfinite().all().item()


@needs_hetero
def test_a_training_step_reads_nothing_until_the_loss_is_read() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    model.to(DEVICE)
    inputs = ready(2, 4)
    for name, options in (("SGD", {"momentum": 0.9}), ("AdamW", {})):
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=1e-3, **options)
        for _ in range(2):
            with counting() as seen:
                optimizer.zero_grad()
                loss = model(inputs).pow(2).mean()
                loss.backward()
                optimizer.step()
            assert seen.flushes == {} and seen.fallbacks == {}, name
        assert loss.isfinite().item()


@needs_hetero
def test_no_operator_of_a_transformer_block_falls_back() -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).to(DEVICE)
    inputs = ready(2, 3, 8)
    with counting() as seen:
        output = layer(inputs).sum()
        output.backward()
    assert seen.fallbacks == {} and seen.flushes == {}
    assert output.isfinite().item()


@needs_hetero
def test_sizes_that_come_back_find_their_plans() -> None:
    def attend(length: int) -> float:
        keys, query = torch.ones(2, 4, length, 16, device=DEVICE), torch.ones(2, 4, 1, 16, device=DEVICE)
        return (torch.nn.functional.scaled_dot_product_attention(query, keys, keys) + 1).sum().item()

    for length in [*range(12, 24)] * 3:
        attend(length)
    with counting() as seen:
        for length in range(12, 24):
            attend(length)
    assert (seen.plans_made, seen.plans_resized) == (0, 0)


@needs_hetero
def test_a_padded_batch_of_a_transformer_stays_padded() -> None:
    # On the CPU the layers get a nested tensor, and what was padding becomes zeros.
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(3, 6, 16)
    padding = torch.arange(6)[None] >= torch.tensor([6, 4, 2])[:, None]
    with torch.no_grad():
        expected = model(x, src_key_padding_mask=padding)
        found = model.to(DEVICE)(x.to(DEVICE), src_key_padding_mask=padding.to(DEVICE)).cpu()
    torch.testing.assert_close(found[~padding], expected[~padding], rtol=1e-4, atol=1e-5)


@needs_hetero
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_interpolation_to_the_same_size_says_nothing_of_others(mode: str) -> None:
    x = torch.arange(64.0).reshape(1, 1, 8, 8)
    for size in ((8, 8), (16, 16), (8, 8), (5, 9)):
        found = torch.nn.functional.interpolate(x.to(DEVICE), size=size, mode=mode)
        assert found.shape == (1, 1, *size)
        assert_same(found.cpu(), torch.nn.functional.interpolate(x, size=size, mode=mode))
