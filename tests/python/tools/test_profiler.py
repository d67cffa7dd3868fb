"""torch.profiler shows hetero's operators and flushes, and profiling changes no value."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from helpers import DEVICE, assert_same, needs_hetero
from torch.profiler import ProfilerActivity, profile, record_function


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
