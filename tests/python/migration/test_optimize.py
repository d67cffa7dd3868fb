"""Plans by measurement: what a trace sees, what is chosen, and why there is no plan where there is none."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import needs_hetero

pytestmark = needs_hetero

from migration_programs import command, write_program  # noqa: E402

from torch_hetero.migration import Plan, strategy  # noqa: E402
from torch_hetero.migration.optimize import search  # noqa: E402
from torch_hetero.migration.optimize.choose import EXACT, Edge, Problem, Task, best_by_chains, choose  # noqa: E402
from torch_hetero.migration.optimize.compare import Failed, Measured, Runner  # noqa: E402
from torch_hetero.migration.optimize.lineage import Follow, Lineage, Made, TracedArray  # noqa: E402
from torch_hetero.migration.optimize.measure import Captured, inexact  # noqa: E402
from torch_hetero.migration.optimize.page import write_page  # noqa: E402
from torch_hetero.migration.optimize.script import Script  # noqa: E402
from torch_hetero.migration.optimize.search import ScriptFailed, Settings, optimize  # noqa: E402
from torch_hetero.migration.optimize.table import explain  # noqa: E402
from torch_hetero.migration.optimize.trace import BATCH, OTHER, PROGRAM, Trace, trace_script  # noqa: E402
from torch_hetero.migration.plan import environment  # noqa: E402
from torch_hetero.migration.record import record  # noqa: E402


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for programs that run in this process; what they leave in the interpreter is taken away."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    strategies = {known.target: known for known in strategy.all_strategies()}
    yield tmp_path
    strategy._strategies.clear()
    strategy._strategies.update(strategies)
    sys.modules.pop("slow_photos", None)


def traced(script: Path, batches: int = 4) -> Trace:
    program = Script(str(script))
    program.prepare()
    trace, status = trace_script(program, batches)
    assert status == 0
    return trace


def moved_keys(plan: Plan) -> list[str]:
    return [rule.key for rule in plan.rules if rule.mode == "defer"]


class StandIn(Runner):
    """Runs no process: a batch takes `plain` seconds, of which the program waits for `wait`; with a plan `moved`."""

    def __init__(self, plain: float = 1.0, wait: float = 1.0, moved: float | str = 1.0) -> None:
        super().__init__([], 1)
        self.plain, self.wait, self.moved, self.plans = plain, wait, moved, []

    def run(self, plan: Plan | None = None) -> Any:
        if plan is not None:
            self.plans.append(plan)
            if isinstance(self.moved, str):
                raise Failed(self.moved)
        return {"seconds": self.plain if plan is None else self.moved, "wait_seconds": self.wait}, {}


def optimized(
    script: Path, runner: StandIn, monkeypatch: pytest.MonkeyPatch, settings: Settings | None = None
) -> tuple[Plan, list[str]]:
    monkeypatch.setattr(search, "Runner", lambda command, batches: runner)
    program, lines = Script(str(script)), []
    program.prepare()
    return optimize(program, [str(script)], settings or Settings(batches=4, rounds=2), lines.append), lines


# What a trace sees.


def test_a_trace_counts_calls_bytes_and_sizes_and_keeps_samples(folder: Path) -> None:
    trace = traced(write_program(folder))
    seen = trace.calls["slow_photos.invert"]
    assert (trace.batches, seen.calls, seen.bytes_in, seen.bytes_out) == (4, 32, 32 * 960, 32 * 960)
    assert [(sizes[0].shape, number) for sizes, number in seen.sizes.items()] == [((20, 16, 3), 32)]
    assert len(seen.samples) == 6 and seen.seconds > 0
    image = np.random.default_rng(0).integers(0, 256, (20, 16, 3), dtype=np.uint8)
    assert np.array_equal(seen.samples[0].positional[0], image)


def test_a_trace_follows_bytes_from_the_program_through_numpy_to_the_batch(folder: Path) -> None:
    trace = traced(write_program(folder))
    assert trace.flow[PROGRAM, "slow_photos.invert"] == [32, 32 * 960]
    assert trace.flow["slow_photos.invert", "numpy.ndarray.transpose"] == [32, 32 * 960]
    assert trace.flow["numpy.ndarray.transpose", "torch.from_numpy"] == [32, 32 * 960]
    assert trace.flow["torch.from_numpy", BATCH] == [32, 32 * 960]


def test_results_that_nothing_known_reads_go_to_other_code(folder: Path) -> None:
    script = write_program(folder)
    script.write_text(script.read_text().replace("return torch", "function(image).tobytes(); return torch"))
    trace = traced(script)
    assert trace.flow["slow_photos.invert", OTHER] == [32, 32 * 960]


def test_a_trace_leaves_data_random_numbers_and_names_as_they_are(folder: Path) -> None:
    script = write_program(folder)
    script.write_text(script.read_text().replace("total +=", "assert type(batch) is torch.Tensor; total +="))
    torch.manual_seed(3)
    traced(script)
    after = torch.get_rng_state()
    import slow_photos

    torch.manual_seed(3)
    torch.utils.data.DataLoader([1]).__iter__()  # draws a seed
    assert torch.equal(torch.get_rng_state(), after)
    assert slow_photos.invert.__name__ == "invert" and not hasattr(slow_photos.invert, "_hetero_original")
    assert not hasattr(torch.from_numpy, "_hetero_original")
    assert torch.utils.data.DataLoader.__iter__.__qualname__ == "DataLoader.__iter__"


def test_a_trace_loads_in_the_main_process_and_notes_the_workers(folder: Path) -> None:
    trace = traced(write_program(folder, workers=2, context="spawn"))
    assert [vars(facts) for facts in trace.timings.loaders] == [{"dataset": "Photos", "batch_size": 8, "workers": 2}]
    assert trace.calls["slow_photos.invert"].calls == 32


def test_a_call_in_two_datasets_has_two_keys(folder: Path) -> None:
    script = write_program(folder)
    text = script.read_text().replace("number == 9", "number == 1")
    text = text.replace("if __name__", "class Other(Photos):\n    pass\n\nif __name__")
    text += "    list(zip(range(2), torch.utils.data.DataLoader(Other())))\n"
    script.write_text(text)
    trace = traced(script, 100)
    assert {key for key in trace.calls if "invert" in key} == {
        "Photos/__getitem__/slow_photos.invert", "Other/__getitem__/slow_photos.invert",
    }  # fmt: skip


def test_calls_within_traced_calls_are_keys_below_them(folder: Path) -> None:
    script = write_program(folder, "twice")
    library = folder / "slow_photos.py"
    library.write_text(
        library.read_text()
        + "\ndef twice(image):\n    return invert(invert(image))\n"
        + '@register\nclass Twice(Pointwise):\n    target = "slow_photos.twice"\n'
    )
    trace = traced(script)
    inner = trace.calls["slow_photos.twice/slow_photos.invert"]
    assert (inner.calls, inner.caller) == (64, "slow_photos.twice")
    assert trace.calls["slow_photos.twice"].calls == 32
    assert trace.calls["slow_photos.twice"].seconds >= inner.seconds
    assert not any("slow_photos.twice/" in end for edge in trace.flow for end in edge)


def test_without_a_data_loader_the_whole_run_is_traced(folder: Path) -> None:
    write_program(folder)
    script = folder / "alone.py"
    call = "slow_photos.invert(numpy.zeros((2, 2), numpy.uint8))"
    script.write_text(f"import numpy, slow_photos\nfor _ in range(5): {call}\n")
    trace = traced(script)
    assert (trace.timings.loaders, trace.batches, trace.calls["slow_photos.invert"].calls) == ([], 1, 5)


def test_an_error_of_the_script_is_shown_as_its_own(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = folder / "broken.py"
    script.write_text("def fail():\n    raise KeyError('here')\n\nfail()\n")
    program = Script(str(script))
    program.prepare()
    with pytest.raises(ScriptFailed):
        optimize(program, [str(script)], Settings())
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):" and lines[-1] == "KeyError: 'here'"
    assert "broken.py" in lines[1] and "line 4" in lines[1] and len([line for line in lines if "File" in line]) == 2


def test_what_numpy_and_torch_compute_of_a_result_inherits_its_maker() -> None:
    lineage, made = Lineage(), Made("key")
    array = lineage.mark(np.arange(12.0).reshape(3, 4), made)
    for derived in (array[1:], array.T, array + 1, 2 * array, array.astype(np.float32), np.sqrt(array), array.copy()):
        assert isinstance(derived, TracedArray) and lineage.maker(derived) is made
    assert type(array.mean()) is np.float64 and type(array.sum()) is np.float64
    assert lineage.maker(np.ones(3)) is None
    tensor = lineage.mark(torch.ones(3), made)
    with Follow(lineage):
        assert lineage.maker(tensor.float().div(2)[1:]) is made
        assert lineage.maker(torch.ones(3) + 1) is None


# What is chosen.


def test_a_chain_moves_only_if_it_gains_more_than_its_copies_take() -> None:
    tasks = [Task("a", 1.0, 0.2), Task("b", 0.1, 0.15), Task("c", 1.0, 0.2)]
    edges = [Edge(None, "a", 0.3), Edge("a", "b", 0.4, 0.4), Edge("b", "c", 0.4, 0.4), Edge("c", None, 0.0, 0.3)]
    chosen, saved = choose(tasks, edges)
    assert chosen == {"a", "b", "c"}  # b is slower there, but its copies would take longer still
    assert saved == pytest.approx(2.1 - 0.55 - 0.6)
    assert choose(tasks, [Edge(None, "a", 2.0), *edges[1:3], Edge("c", None, 0.0, 2.0)])[0] == frozenset()


def test_budgets_and_exclusions_hold() -> None:
    tasks = [Task("a", 1.0, 0.4, 0.4, 100), Task("b", 0.9, 0.2, 0.2, 50), Task("c", 5.0, None)]
    assert choose(tasks, [])[0] == {"a", "b"}
    assert choose(tasks, [], seconds=0.3)[0] == {"b"}
    assert choose(tasks, [], size=120)[0] == {"b"}  # it saves more
    outer = Task("a", 1.0, 0.4, excludes=frozenset({"a/b"}))
    inner = Task("a/b", 0.9, 0.2, excludes=frozenset({"a"}))
    assert choose([outer, inner], [])[0] == {"a/b"}


def random_problem(number: random.Random, count: int) -> tuple[list[Task], list[Edge]]:
    tasks = [Task(str(index), number.random(), number.random(), number.random() / 2, 1) for index in range(count)]
    edges = [Edge(str(index), str(index + 1), number.random(), number.random()) for index in range(count - 1)]
    return tasks, [*edges, Edge(None, "0", number.random()), Edge(str(count - 1), None, 0.0, number.random())]


@pytest.mark.parametrize("seed", range(20))
def test_chains_find_the_optimum_of_a_chain(seed: int) -> None:
    tasks, edges = random_problem(random.Random(seed), 8)
    place = {task.key: index for index, task in enumerate(tasks)}
    numbered = [(place.get(e.maker, -1), place.get(e.reader, -1), e.upload, e.download) for e in edges]
    problem = Problem(tasks, numbered, [frozenset()] * 8, float("inf"), float("inf"))
    least = min(problem.cost(state) for state in itertools.product((False, True), repeat=8))
    assert problem.cost(best_by_chains(problem)) == pytest.approx(least)
    chosen, saved = choose(tasks, edges)
    assert problem.cost([task.key in chosen for task in tasks]) == pytest.approx(least)
    assert saved == pytest.approx(problem.cost([False] * 8) - least)


@pytest.mark.parametrize("seed", range(5))
def test_large_graphs_keep_budgets_and_never_lose(seed: int) -> None:
    number = random.Random(seed)
    tasks, edges = random_problem(number, EXACT + 20)
    edges += [Edge(str(number.randrange(20)), str(number.randrange(20, 34)), number.random(), 1.0) for _ in range(10)]
    for seconds in (float("inf"), 2.0, 0.0):
        chosen, saved = choose(tasks, edges, seconds)
        assert saved >= 0
        assert sum(task.busy for task in tasks if task.key in chosen) <= seconds


def test_a_gain_is_the_lesser_of_best_runs_and_neighbours() -> None:
    plain, moved = Measured([4.0, 8.0, 4.4]), Measured([2.0, 8.0, 4.0])
    assert moved.gain_over(plain) == pytest.approx(1.1)


# Plans, and reasons for none.


def test_a_fast_plan_is_kept_with_its_evidence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = StandIn(plain=0.02, wait=0.019, moved=0.01)
    plan, lines = optimized(write_program(folder), runner, monkeypatch)
    assert moved_keys(plan)[0] == "slow_photos.invert"
    assert plan.strategies == ("slow_photos",) and plan.environment == environment()
    assert plan.why.startswith("2.00 times as fast")
    evidence = plan.rules[0].evidence
    assert evidence["largest_difference"] == 0 and evidence["calls"] == 8 and evidence["samples"] == 6
    assert set(evidence["device_seconds"]) == {"1", "8"} and min(evidence["device_seconds"].values()) > 0
    assert len(runner.plans) in (2, 4) and any("round 2" in line for line in lines)  # two rounds of one or two plans
    # A method of arrays cannot be named in a plan; it follows what made its array.
    states = {call["key"]: call["state"] for call in plan.evidence["calls"]}
    assert states["numpy.ndarray.transpose"] == "follows"
    assert {rule.key for rule in plan.rules} == {"slow_photos.invert", "torch.from_numpy"}
    plan.save(folder / "plan.json")
    assert Plan.load(folder / "plan.json").as_object() == json.loads(json.dumps(plan.as_object()))
    text = explain(Plan.load(folder / "plan.json"), "plan.json")
    for part in ("slow_photos.invert", "uint8 [20, 16, 3] x 32", "2.00 times as fast", "the program", "chosen:"):
        assert part in text


@pytest.mark.parametrize(
    ("runner", "reason"),
    [
        (StandIn(0.02, 0.019, 0.0195), "the best plan gained 1.03 x, less than 1.1 x"),
        (StandIn(0.02, 0.019, 0.04), "the best plan gained 0.50 x"),
        (StandIn(0.02, 0.019, "the program failed with the plan: TypeError: no"), "TypeError: no"),
        (StandIn(1.0, 0.02), "the loader is hidden by the step: the program waits for data in 2.0% of its time"),
    ],
)
def test_an_empty_plan_says_why(runner: StandIn, reason: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, _ = optimized(write_program(folder), runner, monkeypatch)
    assert plan.rules == () and plan.strategies == () and reason in plan.why
    assert reason in explain(plan)
    assert Plan.load(json.loads(json.dumps(plan.as_object()))).as_object() == plan.as_object()


def test_minimum_gain_never_keeps_a_slower_plan(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(batches=4, rounds=1, minimum_gain=0.5)
    plan, _ = optimized(write_program(folder), StandIn(0.02, 0.019, 0.021), monkeypatch, settings)
    assert plan.rules == () and "0.95 x, less than 1 x" in plan.why


def test_a_strategy_that_is_slower_is_not_tried_end_to_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = StandIn(0.02, 0.019)
    script = write_program(folder, "plus_one")
    monkeypatch.setattr(search.Search, "headroom", lambda self: self.times.update(seconds=0.02) or "")
    plan, _ = optimized(script, runner, monkeypatch)
    assert runner.plans == [] and plan.rules == ()
    assert plan.why == "no call is faster on the device, with the copies that it would need"


def test_verification_drops_a_wrong_strategy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search.Search, "headroom", lambda self: self.times.update(seconds=0.02) or "")
    plan, _ = optimized(write_program(folder, "halve"), StandIn(0.02, 0.019, 0.01), monkeypatch)
    (row,) = [call for call in plan.evidence["calls"] if call["key"] == "slow_photos.halve"]
    assert "verification: 6 of 6 samples differ" in row["why"] and row["candidates"][0]["largest"] == 1
    assert row["state"] == "cpu" and plan.rules == ()


def test_a_strategy_is_exact_where_it_is_for_the_bytes_that_were_seen(folder: Path) -> None:
    script = folder / "program.py"
    script.write_text(
        "import torch\nfrom PIL import Image\nfrom torchvision.transforms import functional\n"
        "class Data(torch.utils.data.Dataset):\n"
        "    def __len__(self):\n        return 8\n"
        "    def __getitem__(self, i):\n"
        "        image = functional.adjust_contrast(Image.new('RGB', (9, 7), (i, 2, 3)), 1.5)\n"
        "        return functional.adjust_contrast(functional.pil_to_tensor(image), 0.5)\n"
        "for batch in torch.utils.data.DataLoader(Data(), 2):\n    pass\n"
    )
    calls = traced(script).calls
    seen = calls["torchvision.transforms.functional.adjust_contrast"]
    images = [sample for sample in seen.samples if sample.sizes[0].kind == "image"]
    assert inexact(dataclasses.replace(seen, samples=images)) == ""
    captured = Captured(images)
    step, _ = record(seen.strategy, seen.original, images[0].positional, images[0].keywords, captured)
    assert step.inputs[0] is captured(images[0].positional[0])


def test_a_program_without_calls_that_could_move_gets_an_empty_plan(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = folder / "nothing.py"
    script.write_text("print('hello')\n")
    plan, lines = optimized(script, StandIn(), monkeypatch)
    assert plan.rules == () and plan.why == "no call that a strategy covers was seen in the whole run"
    assert "no DataLoader was used, so the whole run was traced" in lines


def test_functions_that_stay_get_rules_that_bring_results_to_the_host(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = write_program(folder)
    script.write_text(script.read_text().replace("function(image)", "slow_photos.halve(function(image))"))
    plan, _ = optimized(script, StandIn(0.02, 0.019, 0.01), monkeypatch)
    modes = {rule.key: rule.mode for rule in plan.rules}
    assert modes["slow_photos.invert"] == "defer" and modes["slow_photos.halve"] == "cpu"


@pytest.mark.parametrize("moved", [0.01, 0.03])
def test_the_page_is_self_contained_and_escapes_names(
    moved: float, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, _ = optimized(write_program(folder), StandIn(0.02, 0.019, moved), monkeypatch)
    write_page(folder / "out.html", plan, "<b>plan</b>")
    text = (folder / "out.html").read_text()
    assert text.count("<svg") == (3 if plan.rules else 2)
    assert "default-src 'none'" in text and "<script" not in text and "http://" not in text and "src=" not in text
    assert "<b>plan" not in text and "&lt;b&gt;plan" in text
    assert ("stays, 7.7 kB" in text) == ("upload 7.7 kB" in text) == bool(plan.rules) or "download" in text


# The whole, in processes of their own.


def test_optimize_finds_a_slow_function_and_its_plan_runs(tmp_path: Path) -> None:
    write_program(tmp_path, "wait_and_invert")  # 240 ms a batch, on a busy machine, too
    options: Sequence[object] = ("--batches", 6, "--rounds", 1, "-o", "plan.json", "--report", "plan.html", "train.py")
    done = command("optimize", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    plan = Plan.load(tmp_path / "plan.json")
    assert "slow_photos.wait_and_invert" in moved_keys(plan), done.stdout
    assert "chosen: the program is" in done.stdout and "tracing train.py: 6 batches" in done.stderr
    assert plan.evidence["end_to_end"]["plans"][0]["counters"]["slow_photos.wait_and_invert"]["device_calls"] >= 48
    assert (tmp_path / "plan.html").read_text().startswith("<!DOCTYPE html>")


def test_optimize_declines_where_a_slow_step_hides_the_loader(tmp_path: Path) -> None:
    write_program(tmp_path, size="4, 4, 3", step=0.1)
    done = command("optimize", "--batches", 4, "-o", "plan.json", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    plan = Plan.load(tmp_path / "plan.json")
    assert plan.rules == () and "the loader is hidden by the step" in plan.why and plan.why in done.stdout
