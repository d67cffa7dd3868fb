"""torch.hetero is the module that PyTorch expects of a device, and torch.accelerator agrees."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch
from counters import EXPLICIT_FLUSH, SYNCHRONIZE, counting
from helpers import DEVICE, needs_hetero

pytestmark = needs_hetero

NAMES = (
    "Event",
    "Stream",
    "_is_in_bad_fork",
    "config",
    "current_device",
    "current_stream",
    "device",
    "device_count",
    "empty_cache",
    "explain",
    "flush",
    "get_amp_supported_dtype",
    "get_rng_state",
    "is_available",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "placement",
    "reset_counters",
    "reset_peak_memory_stats",
    "set_device",
    "set_rng_state",
    "stream",
    "synchronize",
)


@pytest.mark.parametrize("name", NAMES)
def test_module_has(name: str) -> None:
    assert hasattr(torch.hetero, name)


@pytest.mark.parametrize("name", [name for name in NAMES if name[0] != "_" and name != "config"])
def test_public_function_is_documented(name: str) -> None:
    assert getattr(torch.hetero, name).__doc__


def test_there_is_one_device_and_it_is_current() -> None:
    assert torch.hetero.is_available() is True
    assert torch.hetero.device_count() == 1
    assert torch.hetero.current_device() == 0


def test_set_device_refuses_a_device_that_is_not_there() -> None:
    torch.hetero.set_device(0)
    with pytest.raises(RuntimeError, match="device"):
        torch.hetero.set_device(1)
    assert torch.hetero.current_device() == 0


def test_tensor_on_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(RuntimeError):
        torch.ones(2, device="hetero:7")
    assert torch.ones(2, device="hetero:0").sum().item() == 2


def test_device_context_makes_factories_use_it() -> None:
    with torch.hetero.device(0):
        assert torch.hetero.current_device() == 0
    with torch.device("hetero"):
        assert torch.ones(2).device == torch.device("hetero:0")


def test_default_device_can_be_hetero() -> None:
    torch.set_default_device("hetero")
    try:
        assert torch.zeros(3).device.type == "hetero"
    finally:
        torch.set_default_device(None)


def test_device_without_index_means_index_zero() -> None:
    assert torch.ones(1, device="hetero").device == torch.device("hetero", 0)


def test_accelerator_api_answers_hetero() -> None:
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("hetero")
    assert torch.accelerator.device_count() == 1
    assert torch.accelerator.current_device_index() == 0
    torch.accelerator.synchronize()
    assert torch.accelerator.current_stream().device.type == "hetero"


def test_accelerator_memory_api_agrees_with_the_module() -> None:
    kept = torch.ones(1024, device=DEVICE)
    torch.hetero.flush()
    assert torch.accelerator.memory_allocated() == torch.hetero.memory_allocated() >= 4096
    assert torch.accelerator.max_memory_allocated() >= torch.accelerator.memory_allocated()
    torch.accelerator.empty_cache()
    assert kept.sum().item() == 1024


def test_tensor_and_module_methods_exist() -> None:
    tensor = torch.ones(2).hetero()
    assert tensor.is_hetero and not torch.ones(2).is_hetero
    module = torch.nn.Linear(2, 2).hetero()
    assert all(parameter.is_hetero for parameter in module.parameters())
    storage = torch.ones(2).untyped_storage().hetero()
    assert storage.device.type == "hetero"


def test_flush_runs_everything_pending_and_is_counted_by_name() -> None:
    with counting() as seen:
        kept = torch.ones(4, device=DEVICE) + 1
        torch.hetero.flush()
    assert seen.kernels > 0
    assert seen.flushes == {EXPLICIT_FLUSH: 1}
    assert kept.tolist() == [2.0] * 4


def test_synchronize_runs_everything_pending() -> None:
    with counting() as seen:
        kept = torch.ones(4, device=DEVICE) + 1
        torch.hetero.synchronize()
        kernels = seen.kernels
    assert kernels > 0
    assert seen.flushes == {SYNCHRONIZE: 1}
    assert kept.tolist() == [2.0] * 4


def test_stream_context_switches_the_current_stream_and_back() -> None:
    default = torch.hetero.current_stream()
    side = torch.hetero.Stream()
    with torch.hetero.stream(side):
        assert torch.hetero.current_stream() == side
        value = torch.ones(4, device=DEVICE) * 3
    assert torch.hetero.current_stream() == default
    side.synchronize()
    assert value.sum().item() == 12


def test_streams_wait_for_one_another_through_events() -> None:
    first, second = torch.hetero.Stream(), torch.hetero.Stream()
    event = torch.hetero.Event()
    with torch.hetero.stream(first):
        value = torch.arange(8.0, device=DEVICE) * 2
        event.record(first)
    second.wait_event(event)
    second.wait_stream(first)
    with torch.hetero.stream(second):
        value.add_(1)
    value.record_stream(second)
    second.synchronize()
    assert value.tolist() == [2.0 * i + 1 for i in range(8)]


def test_events_complete_and_measure_time() -> None:
    start = torch.hetero.Event(enable_timing=True)
    end = torch.hetero.Event(enable_timing=True)
    start.record()
    value = torch.ones(64, 64, device=DEVICE)
    value = value @ value
    end.record()
    end.synchronize()
    assert end.query()
    assert start.elapsed_time(end) >= 0.0
    assert value[0, 0].item() == 64.0


@pytest.fixture
def simulated() -> Iterator[None]:
    torch.hetero.config.accelerator = "sim"
    torch.hetero.config.placement = "accelerator"
    torch.hetero.use_profile("tiny", schedule_seed=61)
    yield
    torch.hetero.use_profile(None)


def products(x: torch.Tensor, count: int) -> torch.Tensor:
    for _ in range(count):
        x = x @ x * 0.01
    return x


def test_events_measure_the_time_of_the_simulated_machine(simulated: None) -> None:
    x = torch.randn(128, 128).to(DEVICE)
    first, second, third = (torch.hetero.Event(enable_timing=True) for _ in range(3))
    for _ in range(3):  # the first times also move what stays
        clock = []
        result = x
        for event, count in ((first, 0), (second, 10), (third, 20)):
            result = products(result, count)
            event.record()
            event.synchronize()
            clock.append(torch.hetero._C.virtual_seconds())
    assert first.elapsed_time(second) == pytest.approx(1e3 * (clock[1] - clock[0]), rel=1e-9)
    assert first.elapsed_time(third) == pytest.approx(1e3 * (clock[2] - clock[0]), rel=1e-9)
    assert second.elapsed_time(first) == -first.elapsed_time(second)
    # 2 * 128**3 operations at 1e11 a second take 42 us, and two launches 20.
    assert first.elapsed_time(second) >= 10 * 0.042
    assert second.elapsed_time(third) >= 1.5 * first.elapsed_time(second)
    # Recorded again with nothing between, no virtual time has passed, however long the host sleeps.
    first.record()
    time.sleep(0.02)
    second.record()
    assert first.elapsed_time(second) == 0.0


def test_work_of_streams_is_ordered_and_timed_on_the_simulated_machine(simulated: None) -> None:
    x = torch.randn(128, 128).to(DEVICE)
    one, other = torch.hetero.Stream(), torch.hetero.Stream()
    start, middle, end = (torch.hetero.Event(enable_timing=True) for _ in range(3))
    expected = products(products(x.cpu(), 4), 4)
    for _ in range(3):
        with torch.hetero.stream(one):
            start.record(one)
            result = products(x, 4)
            middle.record(one)
        other.wait_event(middle)
        with torch.hetero.stream(other):
            result = products(result, 4)
            end.record(other)
        result.record_stream(other)
        other.synchronize()
        assert start.query() and middle.query() and end.query()
        torch.testing.assert_close(result.cpu(), expected)
    # What the second stream runs comes after the first one's, and takes as long.
    assert start.elapsed_time(middle) > 0
    assert middle.elapsed_time(end) == pytest.approx(start.elapsed_time(middle), rel=0.25)
    assert start.elapsed_time(end) == pytest.approx(start.elapsed_time(middle) + middle.elapsed_time(end), rel=1e-9)


def test_events_of_two_machines_have_only_real_time_in_common(simulated: None) -> None:
    start, end = (torch.hetero.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.hetero.use_profile("tiny", schedule_seed=62)
    time.sleep(0.02)
    end.record()
    assert start.elapsed_time(end) >= 20


def test_torch_stream_and_event_classes_accept_the_device() -> None:
    stream = torch.Stream(device=DEVICE)
    event = torch.Event(device=DEVICE)
    event.record(stream)
    event.synchronize()
    assert stream.query() and event.query()


def test_memory_figures_follow_a_tensor() -> None:
    torch.hetero.flush()
    torch.hetero.empty_cache()
    before = torch.hetero.memory_allocated()
    tensor = torch.zeros(1 << 16, device=DEVICE)
    torch.hetero.flush()
    during = torch.hetero.memory_allocated()
    assert during - before >= tensor.nbytes
    assert torch.hetero.memory_reserved() >= during
    del tensor
    torch.hetero.flush()
    assert torch.hetero.memory_allocated() == before


def test_recording_takes_no_tensor_memory() -> None:
    torch.zeros(1 << 20, device=DEVICE) + 1  # what is large and new runs at once
    torch.hetero.flush()
    before = torch.hetero.memory_allocated()
    pending = torch.zeros(1 << 20, device=DEVICE) + 1
    assert torch.hetero.memory_allocated() == before
    assert pending[5].item() == 1.0


def test_peak_can_be_reset() -> None:
    big = torch.zeros(1 << 18, device=DEVICE)
    torch.hetero.flush()
    del big
    torch.hetero.flush()
    peak = torch.hetero.max_memory_allocated()
    torch.hetero.reset_peak_memory_stats()
    assert torch.hetero.max_memory_allocated() < peak
    assert torch.hetero.max_memory_allocated() == torch.hetero.memory_allocated()


def test_memory_stats_has_pytorch_keys() -> None:
    kept = torch.ones(16, device=DEVICE)
    torch.hetero.flush()
    stats = torch.hetero.memory_stats()
    assert stats["allocated_bytes.all.current"] == torch.hetero.memory_allocated()
    assert stats["allocated_bytes.all.peak"] == torch.hetero.max_memory_allocated()
    assert kept.numel() == 16


def test_amp_dtypes_contain_the_half_types() -> None:
    assert {torch.bfloat16, torch.float16} <= set(torch.hetero.get_amp_supported_dtype())


def test_another_thread_sees_the_device() -> None:
    seen: list[object] = []

    def look() -> None:
        seen.append(torch.hetero.current_device())
        seen.append(torch.ones(3, device=DEVICE).sum().item())

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [0, 3.0]


def test_explain_is_structured_and_prints_what_was_recorded() -> None:
    torch.hetero.reset_counters()
    result = torch.ones(4, device=DEVICE) + 1
    assert result.sum().item() == 8
    report = torch.hetero.explain()
    text = str(report)
    assert "read scalar" in text
    for word in ("typed", "boxed", "dead", "kernels", "fallback"):
        assert word in text.lower()
    assert not isinstance(report, str)


def test_is_initialized_and_not_in_a_bad_fork() -> None:
    torch.ones(1, device=DEVICE)
    assert torch.hetero.is_initialized() is True
    assert torch.hetero._is_in_bad_fork() is False
