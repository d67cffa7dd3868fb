"""What is told of programs on two devices, and what `torch.hetero.simulate` predicts, sees and leaves behind."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers import DEVICE, assert_same, fresh, needs_hetero
from simulated import Block, Heads, Layers
from torch import nn

from torch_hetero import _C

pytestmark = [needs_hetero, pytest.mark.usefixtures("simulated_accelerator")]


def planned_program() -> None:
    torch.hetero.config.keep_plans = True
    torch.hetero.config.placement = "mixed"
    x = fresh(torch.randn(32, 32))
    ((x @ x).relu().sin() + x).sum(0).cpu()


def test_explain_tells_device_reason_times_and_bytes() -> None:
    planned_program()
    report = torch.hetero.explain()
    program = report.program
    assert program["measured_seconds"] == pytest.approx(program["predicted_seconds"], rel=0.1)
    live = [node for node in program["nodes"] if node["live"]]
    assert {node["device"] for node in live} == {"cpu", "accelerator"}
    for node in live:
        assert node["reason"] == "requested" and node["bytes"] > 0
        assert node["measured"] == pytest.approx(node["predicted"], rel=0.1)
    text = str(report)
    assert "last program" in text and "accelerator h2d" in text and "aten::mm" in text
    assert "placements that were considered" in text


@pytest.mark.parametrize("fusion", [False, True])
def test_explain_agrees_with_itself_about_programs_of_the_cpu(fusion: bool) -> None:
    torch.hetero.config.keep_plans = True
    torch.hetero.config.placement = "cpu"
    torch.hetero.config.fusion = fusion
    model = Layers(3, 256).to(DEVICE)
    with torch.no_grad():
        for rows in (16, 16, 16, 64, 64, 64):  # also of sizes to which a plan was taken over
            before = _C.virtual_seconds()
            model(torch.randn(rows, 256).to(DEVICE)).cpu()
            passed = _C.virtual_seconds() - before
            program = torch.hetero.explain().program
            assert program["measured_seconds"] == pytest.approx(program["predicted_seconds"], rel=1e-4)
            assert passed == pytest.approx(program["measured_seconds"], rel=1e-4)
            spans = [span["measured_end"] - span["measured_begin"] for span in program["spans"]]
            assert sum(spans) == pytest.approx(program["measured_seconds"], rel=1e-4)
            for node in program["nodes"]:
                if node["live"] and node["measured"] is not None:
                    assert node["measured"] == pytest.approx(node["predicted"], rel=1e-4)


def test_explain_tells_what_a_fused_group_and_a_wait_for_a_weight_take() -> None:
    torch.hetero.config.keep_plans = True
    torch.hetero.config.fusion = True
    torch.hetero.config.placement = "accelerator"
    torch.hetero.set_memory_budget("1MiB")
    model = nn.Sequential(*(Block(256) for _ in range(10))).to(DEVICE)
    with torch.no_grad():
        for _ in range(3):  # what is seen for the first time runs unfused
            model(torch.randn(8, 256).to(DEVICE)).cpu()
    report = torch.hetero.explain()
    spans, nodes = report.program["spans"], {node["id"]: node for node in report.program["nodes"]}
    lines = [" ".join(line.split()) for line in str(report).splitlines()]
    groups = [span for span in spans if span["kind"] == "fused"]
    assert len(groups) == 10
    for span in groups:
        node = nodes[span["node"]]
        assert node["group"] is not None and node["device"] == "accelerator"
        seconds, measured = span["end"] - span["begin"], span["measured_end"] - span["measured_begin"]
        assert 0 < seconds == pytest.approx(measured, rel=0.1)
        figures = f"{1e6 * seconds:,.1f} us {1e6 * measured:,.1f} us {node['bytes']:,} bytes"
        stall = f"{1e6 * span['stall']:,.1f} us"
        assert f"accelerator compute {span['name']} requested {figures} {stall}" in lines
    # Weights have no place there: a product that does not find its own yet waits for the link.
    stalled = max((span for span in spans if span["kind"] == "run"), key=lambda span: span["stall"])
    assert stalled["stall"] > 0
    assert any(span["kind"] == "copy" and span["end"] == stalled["begin"] for span in spans)
    assert any(stalled["name"] in line and line.endswith(f" {1e6 * stalled['stall']:,.1f} us") for line in lines)


def test_report_and_trace_are_written(tmp_path: Path) -> None:
    torch.hetero._C.clear_program_log()
    torch.hetero.config.keep_plans = False
    with pytest.raises(RuntimeError, match="keep_plans"):
        torch.hetero.report(tmp_path / "none.html")
    planned_program()
    torch.hetero.report(tmp_path / "out.html")
    assert "aten::mm" in (tmp_path / "out.html").read_text()
    torch.hetero.trace(tmp_path / "out.json")
    events = json.loads((tmp_path / "out.json").read_text())["traceEvents"]
    assert any(event["ph"] == "X" and event["name"] == "aten::mm" for event in events)


def test_simulate_predicts_time_and_memory_of_other_machines() -> None:
    model = Layers(8, 512).to(DEVICE)
    x = torch.randn(512, 512)
    size = sum(p.nbytes for p in model.parameters())

    def step() -> torch.Tensor:
        with torch.no_grad():
            return model(x.to(DEVICE)).cpu()

    expected = step()
    before = torch.hetero.config.as_dict()
    fast = torch.hetero.simulate(step, profile="h200")
    slow = torch.hetero.simulate(step, profile="pcie3-slow")
    assert torch.hetero.config.as_dict() == before
    with pytest.raises(ValueError, match="the profile of a machine, not None"):
        torch.hetero.simulate(step, profile=None)
    assert torch.hetero.config.as_dict() == before
    assert_same(fast.result, expected)
    assert 0 < fast.seconds < slow.seconds
    assert fast.peak_bytes >= size and fast.bytes_to_cpu >= expected.nbytes
    assert "h200" in str(fast) and "accelerator compute" in fast.queue_seconds
    tight = torch.hetero.simulate(step, profile="h200", budget=size // 3)
    assert tight.peak_bytes <= size // 3 and tight.seconds >= fast.seconds
    # The same program twice takes the same virtual time.
    assert torch.hetero.simulate(step, profile="h200").seconds == pytest.approx(fast.seconds, rel=1e-6)
    with pytest.raises(ValueError, match="no profile"):
        torch.hetero.simulate(step, profile="h9000")
    with pytest.raises(ZeroDivisionError):
        torch.hetero.simulate(lambda: 1 / 0, profile="tiny")
    assert torch.hetero.config.as_dict() == before


def test_independent_branches_run_beside_each_other_on_compute_queues() -> None:
    model, x = Heads(4, 64), torch.randn(8, 64)
    with torch.no_grad():
        expected = model(x)
    model.to(DEVICE)

    def step() -> torch.Tensor:
        with torch.no_grad():
            return model(x.to(DEVICE)).cpu()

    with torch.hetero.config.override(placement="accelerator", verify_plans=True, fusion=False):
        spread = torch.hetero.simulate(step, profile="h200")
        with torch.hetero.config.override(compute_queues=1):
            serial = torch.hetero.simulate(step, profile="h200")
    assert_same(spread.result, expected)
    assert_same(serial.result, expected)
    sides = [name for name in spread.queue_seconds if name.startswith("accelerator compute ")]
    assert len(sides) == 3
    assert not any(name.startswith("accelerator compute ") for name in serial.queue_seconds)
    # Four heads of some launches each take about as long as one; the copies stay.
    assert spread.queue_seconds["accelerator compute"] < 0.5 * serial.queue_seconds["accelerator compute"]
    assert spread.seconds < 0.7 * serial.seconds
    for wrong in ("0", "5", "many"):
        with pytest.raises(ValueError, match="from 1 to 4"):
            torch.hetero.config.compute_queues = wrong


def test_profiles_change_the_simulated_machine() -> None:
    profile = torch.hetero.use_profile("tiny")
    assert profile is not None
    assert torch.hetero._C.accelerator_stats()["limit_bytes"] == profile.accelerator.capacity_bytes
    x = fresh(torch.ones(4))
    for bad in ({"flop": 1.0}, {"slowdown": 0.0}, {"duration_spread": 2.0}):
        with pytest.raises(ValueError):
            torch.hetero.use_profile("tiny", **bad)
    assert_same((x + 1).cpu(), torch.full((4,), 2.0))


def test_programs_of_the_cpu_move_the_virtual_clock_in_every_run() -> None:
    x = fresh(torch.randn(8, 8))
    times = []
    for _ in range(20):
        before = torch.hetero._C.virtual_seconds()
        (x @ x).tanh().cpu()
        times.append(torch.hetero._C.virtual_seconds() - before)
    assert min(times) > 0


@pytest.mark.parametrize("operator", (torch.unique, torch.nonzero, lambda x: torch.linalg.svd(x)[1]))
def test_operators_that_run_straight_take_simulated_time(operator: Callable[[torch.Tensor], torch.Tensor]) -> None:
    small, large = (fresh(torch.randn(n, n)) for n in (10, 300))
    seconds = [torch.hetero.simulate(lambda x=x: operator(x).cpu(), profile="tiny").seconds for x in (small, large)]
    assert 0 < seconds[0] < seconds[1]


def test_saved_programs_are_simulated_and_come_back() -> None:
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8)))
    x = torch.randn(256, 512)
    torch.hetero.config.accelerator = "none"
    program = torch.hetero.compile(model, (x,))
    expected = program(x)
    there = torch.hetero.simulate(lambda: program(x), profile="rtx4090")
    assert there.seconds > 0 and there.bytes_to_accelerator == x.nbytes and there.bytes_to_cpu == expected.nbytes
    assert there.queue_seconds["accelerator compute"] > 0 and there.peak_bytes > 8 * 512 * 512 * 4
    on_cpu = torch.hetero.simulate(lambda: program(x), profile="rtx4090", budget="16KiB")
    assert on_cpu.seconds > there.seconds
    assert_same(program(x), expected)


def test_a_simulation_leaves_the_log_of_programs_and_the_peak() -> None:
    torch.hetero.config.keep_plans = True
    x = fresh(torch.randn(64, 64))
    (x @ x).cpu()
    before = torch.hetero.programs(), torch.hetero.explain().plan
    peak = torch.hetero.max_memory_allocated()
    predicted = torch.hetero.simulate(lambda: (x + 1).cpu(), profile="tiny")
    assert len(predicted.programs) == 1
    assert (torch.hetero.programs(), torch.hetero.explain().plan) == before
    assert torch.hetero.max_memory_allocated() >= peak


def test_simulations_on_two_threads_wait_for_each_other() -> None:
    x = fresh(torch.randn(128, 128))
    alone = {name: torch.hetero.simulate(lambda: (x @ x).cpu(), profile=name).seconds for name in ("h200", "tiny")}
    together: dict[str, float] = {}

    def simulate(name: str) -> None:
        together[name] = torch.hetero.simulate(lambda: (x @ x).cpu(), profile=name).seconds

    threads = [threading.Thread(target=simulate, args=(name,)) for name in alone]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == pytest.approx(alone, rel=1e-6)
    assert (torch.hetero.config.accelerator, torch.hetero.config.keep_plans) == ("sim", False)


@pytest.mark.parametrize("profile", ["h200", "rtx4090"])
def test_a_step_whose_state_lies_on_the_host_comes_to_be_as_fast_as_on_the_accelerator_alone(profile: str) -> None:
    width, steps = 1024, 8

    def seconds_of_a_step(placement: str) -> float:
        torch.hetero.config.placement = placement
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width)) for _ in range(3)]
        model = nn.Sequential(*layers).to(DEVICE)
        optimizer = torch.optim.AdamW(model.parameters())
        x = torch.randn(32, width)

        def step() -> float:
            torch.hetero.synchronize()
            begin = torch.hetero._C.virtual_seconds()
            optimizer.zero_grad()
            model(x.to(DEVICE)).square().mean().backward()
            optimizer.step()
            torch.hetero.synchronize()
            return torch.hetero._C.virtual_seconds() - begin

        step()  # parameters, moments: on the host
        return torch.hetero.simulate(lambda: [step() for _ in range(steps)], profile=profile, warmup=0).result[-1]

    assert seconds_of_a_step("auto") <= 1.05 * seconds_of_a_step("accelerator")
