"""torch.profiler shows hetero's operators and flushes, and profiling changes no value."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import torch
from helpers import DEVICE, assert_same, needs_hetero
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function, schedule

BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]


def program(device: str) -> torch.Tensor:
    x = torch.arange(12.0, device=device).reshape(3, 4)
    with record_function("my range"):
        y = (x @ x.t()).softmax(-1)
    return (y + 1).cpu()


def test_profiling_changes_no_value_and_names_the_operators() -> None:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        actual = program(DEVICE)
    names = {event.key for event in profiler.key_averages()}
    assert {"aten::matmul", "aten::softmax", "aten::add", "my range"} <= names
    assert_same(actual, program("cpu"))


@needs_hetero
def test_a_flush_appears_as_a_range_of_its_own() -> None:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        program(DEVICE)
    names = {event.key for event in profiler.key_averages()}
    assert any("hetero" in name for name in names), sorted(names)


def test_a_trace_exports_as_json(tmp_path: Path) -> None:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        program(DEVICE)
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    names = {event.get("name") for event in json.loads(path.read_text())["traceEvents"]}
    assert "aten::mm" in names and "my range" in names


def test_profiling_a_training_step_names_the_backward() -> None:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        leaf = torch.ones(3, 3, device=DEVICE, requires_grad=True)
        (leaf @ leaf).tanh().sum().backward()
        leaf.grad.cpu()
    names = {event.key for event in profiler.key_averages()}
    assert any("TanhBackward0" in name for name in names)


def test_the_privateuse_activity_is_accepted() -> None:
    activities = [ProfilerActivity.CPU]
    if DEVICE != "cpu":
        activities.append(ProfilerActivity.PrivateUse1)
    with profile(activities=activities) as profiler:
        value = program(DEVICE)
    assert_same(value, program("cpu"))
    assert profiler.key_averages()


@needs_hetero
def test_the_profiler_of_autograd_has_times_of_the_device() -> None:
    with torch.autograd.profiler.profile(use_device="hetero") as profiler:
        program(DEVICE)
    events = {event.name: event for event in profiler.function_events}
    assert {"aten::matmul", "aten::softmax", "hetero::flush"} <= events.keys()
    assert events["hetero::flush"].device_time_total > 0
    assert "hetero" in profiler.key_averages().table().lower()


def device_rows(profiler: profile) -> list:
    """What ran on hetero, without the row of runs."""
    events = [event for event in profiler.events() if event.device_type == DeviceType.PrivateUse1]
    return [event for event in events if not event.name.startswith("run ")]


@needs_hetero
def test_each_kernel_is_a_row_of_the_device_linked_with_the_operator_that_recorded_it() -> None:
    torch.hetero.config.fusion = False
    with profile(activities=BOTH) as profiler:
        program(DEVICE)
    rows = {event.name: event for event in device_rows(profiler)}
    assert {"aten::mm", "aten::_softmax", "aten::add.Tensor"} <= rows.keys()
    recorders = {event.name: event for event in profiler.events() if event.kernels}
    for kernel in ("aten::mm", "aten::_softmax", "aten::add.Tensor"):
        recorder = recorders[kernel.removesuffix(".Tensor")]
        assert [linked.name for linked in recorder.kernels] == [kernel]
        assert recorder.device_time_total == pytest.approx(rows[kernel].time_range.elapsed_us())
        # It was recorded before it ran.
        assert recorder.time_range.end <= rows[kernel].time_range.start
    assert next(event for event in profiler.events() if event.name == "aten::matmul").device_time_total > 0
    assert "hetero" in profiler.key_averages().table(sort_by="self_device_time_total").lower()


@needs_hetero
def test_a_fused_group_is_one_row_and_names_its_operators() -> None:
    x = torch.randn(1000, 100, device=DEVICE)
    for _ in range(3):
        (x * 2 + 1).relu().cpu()
    with profile(activities=BOTH) as profiler:
        (x * 2 + 1).relu().cpu()
    groups = [event.name for event in device_rows(profiler) if event.name.startswith("group")]
    assert len(groups) == 1 and groups[0].endswith("mul, add, relu"), groups


@needs_hetero
def test_rows_of_repeated_and_of_partial_runs_are_linked_too() -> None:
    torch.hetero.config.fusion = False
    x = torch.ones(4, 4, device=DEVICE)
    with profile(activities=BOTH) as profiler:
        for _ in range(5):
            a, b = x.exp(), x.cos()
            assert a.sum().item() > 0
            b.cpu()
    kernels = [event.name for event in device_rows(profiler)]
    assert kernels.count("aten::exp") == 5 and kernels.count("aten::cos") == 5
    for name in ("aten::exp", "aten::cos"):
        operators = [event for event in profiler.events() if event.name == name and event.device_type == DeviceType.CPU]
        assert [len(event.kernels) for event in operators if event.kernels] == [1] * 5


@needs_hetero
def test_operators_that_run_at_once_have_rows() -> None:
    x = torch.tensor([1, 0, 2], device=DEVICE)
    with profile(activities=BOTH) as profiler:
        x.nonzero()
    assert "aten::nonzero" in {event.name for event in device_rows(profiler)}


@needs_hetero
def test_the_backward_pass_and_other_threads_have_rows() -> None:
    def step() -> None:
        leaf = torch.ones(3, 3, device=DEVICE, requires_grad=True)
        (leaf @ leaf).tanh().sum().backward()
        leaf.grad.cpu()

    with profile(activities=BOTH) as profiler:
        step()
        thread = threading.Thread(target=step)
        thread.start()
        thread.join()
    names = [event.name for event in device_rows(profiler)]
    assert sum("mm" in name for name in names) == 6 or any(name.startswith("group") for name in names), names
    linked = [event for event in profiler.events() if event.device_type == DeviceType.CPU and event.kernels]
    assert any("mm" in kernel.name for event in linked for kernel in event.kernels)


@needs_hetero
def test_compiled_and_saved_programs_have_rows(tmp_path: Path) -> None:
    x = torch.randn(8, 8, device=DEVICE)
    with torch.no_grad():
        compiled = torch.compile(torch.nn.Linear(8, 8).to(DEVICE), backend="hetero")
        compiled(x).cpu()
        with profile(activities=BOTH) as profiler:
            compiled(x).cpu()
    rows = [event.name for event in device_rows(profiler)]
    assert len(rows) == 1 and ("addmm" in rows[0] or "linear" in rows[0])

    torch.hetero.compile(torch.nn.Linear(8, 8).eval(), (x.cpu(),)).save(str(tmp_path / "linear.hetero"))
    loaded = torch.hetero.load(str(tmp_path / "linear.hetero"))
    with profile(activities=BOTH) as profiler:
        loaded(x)
        loaded(x.cpu())
    assert [event.name for event in device_rows(profiler)] == ["hetero::program"] * 2


@needs_hetero
def test_a_trace_has_a_track_for_each_queue_and_arrows_from_operators(tmp_path: Path) -> None:
    torch.hetero.config.fusion = False
    with profile(activities=BOTH, record_shapes=True, with_stack=True) as profiler:
        program(DEVICE)
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    tracks = {event["args"]["name"] for event in events if event.get("name") == "thread_name" and event["pid"] == 0}
    assert "runs" in tracks and tracks & {"cpu compute", "accelerator compute"}
    kernels = [event for event in events if event.get("cat") == "kernel"]
    mm = next(event for event in kernels if event["name"] == "aten::mm")
    assert mm["dur"] > 0 and mm["args"]["run"] == 1 and "External id" in mm["args"]
    starts = {event["id"]: event for event in events if event.get("cat") == "ac2g" and event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event.get("cat") == "ac2g" and event["ph"] == "f"}
    assert starts and starts.keys() == ends.keys()
    assert all(starts[flow]["ts"] <= ends[flow]["ts"] for flow in starts)


@needs_hetero
def test_each_cycle_of_a_schedule_has_its_own_rows() -> None:
    counts: list[int] = []
    with profile(
        activities=BOTH,
        schedule=schedule(wait=1, warmup=1, active=1, repeat=2),
        on_trace_ready=lambda profiler: counts.append(sum("exp" in event.name for event in device_rows(profiler))),
    ) as profiler:
        for _ in range(6):
            torch.ones(5, device=DEVICE).exp().cpu()
            profiler.step()
    assert counts == [1, 1]


@needs_hetero
def test_memory_of_the_device_is_shown() -> None:
    with profile(activities=BOTH, profile_memory=True) as profiler:
        y = torch.ones(1000, 1000, device=DEVICE).exp()
        torch.hetero.synchronize()
        held = torch.hetero.memory_allocated()
        del y
    memory = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    here = [event.nbytes() for event in memory if event.device_type() == DeviceType.PrivateUse1]
    assert held >= 4_000_000 and max(here) >= 4_000_000 and min(here) <= -4_000_000
    assert max(event.device_memory_usage for event in profiler.events()) >= 4_000_000


@needs_hetero
def test_without_the_activity_there_are_no_rows_and_nothing_is_noted() -> None:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        program(DEVICE)
    assert not device_rows(profiler)
