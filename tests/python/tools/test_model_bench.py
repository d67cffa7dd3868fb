"""The bench over families of models: its table, its turns, and what it makes of cases that fail."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import needs_hetero

from tests.perf import models as family_bench
from tests.perf import run as bench
from tests.perf.models import child, driver, figures, subjects, table, turns, work
from tests.perf.models.driver import Case, Record, run_cases

MLP = table.BY_NAME["mlp2"]
FAMILIES = {
    "residual", "depthwise", "dense", "plain", "modern", "u-net", "detector", "encoder", "vision transformer",
    "windowed", "clip", "speech", "prefill", "recurrent", "temporal", "mixer", "tabular", "recommender",
    "graph network",
}  # fmt: skip


class Machine:
    """Answers cases without a process, and keeps the order in which they came."""

    def __init__(self, times: dict[str, list[float]] | None = None, failing: str = "") -> None:
        self.times = times or {}
        self.failing = failing
        self.asked: list[str] = []

    def __call__(self, case: Case, seconds: float) -> dict[str, Any]:
        self.asked.append(case.key)
        if case.subject == self.failing:
            return {"reason": "RuntimeError: as it was told"}
        if case.subject == driver.REFERENCE:
            return {"operators": [["product", 2e6, 4e3, 0.0, 2]], "between": 1000, "passed": 4000}
        waiting = self.times.get(case.subject, [1.0])
        time = waiting[min(self.asked.count(case.key), len(waiting)) - 1]
        return {"median_us": time, "best_us": time / 2, "first_call_s": 0.1}


def run(path: Path, machine: Machine, names: list[str], rounds: int = 2) -> tuple[Record, list[str]]:
    """A run of two models by the named subjects."""
    record, said = Record(path), []
    groups = {model: [Case("inference", model, 1, name) for name in names] for model in ("mlp2", "mlp5")}
    run_cases(record, groups, rounds, 0.1, runner=machine, say=said.append)
    return record, said


def test_the_table_has_24_models_of_all_families_and_no_name_twice() -> None:
    models = [model for model in table.MODELS if model.family != table.PROBE]
    assert len(models) >= 24
    assert {model.family for model in models} >= FAMILIES
    assert len(table.BY_NAME) == len(table.MODELS)
    assert all(model.larger > 1 for model in models)


def test_the_bench_has_options_of_its_own_and_other_benchmarks_refuse_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench.sys, "argv", ["bench", "models", "--help"])
    assert bench.main() == 0
    assert "--families" in capsys.readouterr().out
    monkeypatch.setattr(bench.sys, "argv", ["bench", "chain", "--quick"])
    with pytest.raises(SystemExit):
        bench.main()
    assert "unrecognized arguments: --quick" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", ["--models resnet1", "--families none", "--subjects nobody", "--training --subjects openvino"]
)
def test_a_name_that_is_not_there_is_refused_with_those_that_are(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    monkeypatch.setenv(family_bench.OPTIONS, words)
    with pytest.raises(SystemExit, match="there are: "):
        family_bench.measure()


def test_subjects_of_a_model_take_turns_and_rounds_follow_each_other(tmp_path: Path) -> None:
    machine = Machine()
    run(tmp_path / "models.json", machine, ["eager", "saved"])
    a_round = [f"inference/{model}/1/{name}" for model in ("mlp2", "mlp5") for name in ("eager", "saved")]
    assert [key for key in machine.asked if not key.endswith("reference")] == a_round + a_round
    assert machine.asked.count("inference/mlp2/1/reference") == 1


def test_a_run_that_was_interrupted_goes_on_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "models.json"
    run(path, Machine(), ["eager", "saved"], rounds=1)
    machine = Machine()
    record, said = run(path, machine, ["eager", "saved", "lazy"], rounds=1)
    assert machine.asked == ["inference/mlp2/1/lazy", "inference/mlp5/1/lazy"]
    assert len(said) == 2
    assert len(record.cases) == 6


def test_figures_of_another_processor_are_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "models.json"
    run(path, Machine(), ["eager"], rounds=1)
    stored = json.loads(path.read_text())
    stored["facts"]["processor"] = "another"
    path.write_text(json.dumps(stored))
    assert Record(path).cases == {}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"facts": {}}'])
def test_a_damaged_file_is_a_new_one(tmp_path: Path, text: str) -> None:
    path = tmp_path / "models.json"
    path.write_text(text)
    assert Record(path).cases == {}


def test_the_better_of_two_rounds_counts(tmp_path: Path) -> None:
    record, _ = run(tmp_path / "models.json", Machine({"saved": [9.0, 3.0]}), ["saved"])
    assert figures.time_of(record, "inference", "mlp2", 1, "saved") == 3.0
    record.by = "best_us"
    assert figures.time_of(record, "inference", "mlp2", 1, "saved") == 1.5


def test_a_case_that_fails_is_a_row_with_its_reason_and_runs_once(tmp_path: Path) -> None:
    machine = Machine(failing="saved")
    record, said = run(tmp_path / "models.json", machine, ["openvino", "saved"])
    assert machine.asked.count("inference/mlp2/1/saved") == 1
    assert any("as it was told" in line for line in said)
    made = figures.rows(record, "inference", [("mlp2", 1)])
    assert [row.note for row in made if row.what.startswith("saved program: mlp2")] == ["RuntimeError: as it was told"]
    record.retry()
    assert list(record.cases) == ["inference/mlp2/1/openvino", "inference/mlp5/1/openvino"]


def test_a_model_without_a_reference_is_a_row_with_its_reason(tmp_path: Path) -> None:
    machine = Machine(failing=driver.REFERENCE)
    record, _ = run(tmp_path / "models.json", machine, ["eager", "saved"])
    assert machine.asked == ["inference/mlp2/1/reference", "inference/mlp5/1/reference"]
    assert record.best(Case("inference", "mlp2", 1, "saved")) == {"reason": "RuntimeError: as it was told"}
    assert "–" in figures.markdown(record, "inference", [("mlp2", 1)])


def test_rows_compare_with_the_best_peer_and_end_in_geometric_means(tmp_path: Path) -> None:
    machine = Machine({"saved": [6.0], "openvino": [8.0], "onnxruntime": [3.0], "lazy": [2.0], "eager": [4.0]})
    record, _ = run(tmp_path / "models.json", machine, list(machine.times))
    by_what = {row.what: row for row in figures.rows(record, "inference", figures.batches(record, "inference"))}
    saved = by_what["saved program: mlp2, batch 1"]
    assert (saved.peer_name, saved.figure, saved.verdict) == ("onnxruntime", 2.0, "MISSED")
    assert math.isclose(by_what["saved program: geometric mean"].figure, 2.0)
    assert math.isclose(by_what["lazily: geometric mean"].figure, 0.5)
    assert "| mlp2 | 1 | 4 µs | 0.50 | – | 6 µs | onnxruntime 3 µs | 2.00 | – |" in figures.markdown(
        record, "inference", [("mlp2", 1)]
    )


class FakePlayer:
    """A subject without a process: the second turn finds the machine half as fast."""

    ended: list[str]
    asked: list[str]

    def __init__(self, case: Case) -> None:
        if case.subject == "onnxruntime":
            raise RuntimeError("as it was told")
        self.case, self.turns = case, 0

    def close(self) -> None:
        self.ended.append(self.case.subject)

    def turn(self) -> tuple[float, float]:
        self.asked.append(self.case.subject)
        self.turns += 1
        if self.case.subject == "inductor" and self.turns == 2:
            raise RuntimeError("it ended")
        times = {"saved": 30.0, "openvino": 20.0, "freezing": 60.0, "inductor": 1.0}
        time = times[self.case.subject] * (2 if self.turns == 2 else 1)
        return time, time / 2


def test_in_turns_the_figure_is_the_median_ratio_to_the_best_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakePlayer, "ended", [], raising=False)
    monkeypatch.setattr(FakePlayer, "asked", [], raising=False)
    names = ["saved", "openvino", "onnxruntime", "freezing"]
    played = turns.play([Case("inference", "mlp2", 1, name) for name in names], 3, FakePlayer)
    assert FakePlayer.asked == ["saved", "openvino", "freezing"] * 3
    assert FakePlayer.ended == ["saved", "openvino", "freezing"]
    assert played[1] == {"onnxruntime": "as it was told"}
    row, mean = turns.rows("inference", {("mlp2", 1): played})
    assert (row.figure, row.peer_name, row.rounds, row.best) == (1.5, "openvino", 3, 1.5)
    assert mean.ours == pytest.approx(1.5)


def test_in_turns_a_subject_that_ends_has_no_figure_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakePlayer, "ended", [], raising=False)
    monkeypatch.setattr(FakePlayer, "asked", [], raising=False)
    cases = [Case("inference", "mlp2", 1, name) for name in ("saved", "inductor", "openvino")]
    times, reasons = turns.play(cases, 3, FakePlayer)
    assert FakePlayer.ended == ["inductor", "saved", "openvino"]
    assert {name: len(of) for name, of in times.items()} == {"saved": 3, "openvino": 3}
    assert reasons == {"inductor": "it ended"}
    row, _ = turns.rows("inference", {("mlp2", 1): (times, reasons)})
    assert (row.figure, row.peer_name) == (1.5, "openvino")


def test_in_turns_a_subject_of_ours_that_fails_is_a_row_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = turns.rows("inference", {("mlp2", 1): ({"openvino": [(1.0, 1.0)]}, {"saved": "as it was told"})})
    assert row.figure is None and row.note == "as it was told"


@needs_hetero
def test_subjects_in_turns_are_processes_that_end_when_they_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case("inference", "mlp2", 1, "saved")
    file = tmp_path / "reference.pt"
    torch.save(child.reference("inference", MLP, 1), file)
    player = turns.Player(case, str(file), 0.01)
    with contextlib.closing(player):
        for _ in range(2):
            median, least = player.turn()
            assert 0 < least <= median
        monkeypatch.setattr(turns, "LONGEST_TURN", 0.1)
        os.kill(player._process.pid, signal.SIGSTOP)
        with pytest.raises(RuntimeError, match=r"no answer in 0\.1 s"):
            player.turn()
    with pytest.raises(RuntimeError, match="ended with status -9"):
        player.turn()
    monkeypatch.setattr(turns, "LONGEST_TURN", 60.0)
    with contextlib.closing(turns.Player(case, str(file), 0.01)) as failing:
        # What a process prints that fails in a turn.
        monkeypatch.setattr(failing._process.stdout, "readline", iter([b"\n", b'{"reason": "no memory"}\n']).__next__)
        with pytest.raises(RuntimeError, match="no memory"):
            failing.turn()
    (tmp_path / "other.pt").write_bytes(b"")
    with pytest.raises(RuntimeError):
        turns.Player(case, str(tmp_path / "other.pt"), 0.01)


def test_a_call_beyond_the_time_limit_and_one_that_dies_are_reasons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "FOLDER", tmp_path)
    monkeypatch.setattr(driver, "TIMEOUT", 0.01)
    case = Case("inference", "mlp2", 1, "eager")
    assert "longer than" in driver.run_case(case, 0.1)["reason"]
    monkeypatch.setattr(driver, "TIMEOUT", 60.0)
    monkeypatch.setattr(driver.sys, "executable", "/bin/false")
    assert "status 1" in driver.run_case(case, 0.1)["reason"]


def test_the_work_of_a_model_is_its_multiply_adds(tmp_path: Path) -> None:
    linear = torch.nn.Linear(30, 20)
    counted = work.count(linear, (torch.randn(10, 30),))
    assert work.operations(counted) == 2 * 10 * 20 * 30
    assert counted["between"] == 4 * (10 * 30 + 10 * 20)
    lstm = torch.nn.LSTM(8, 16, batch_first=True)
    assert work.operations(work.count(lstm, (torch.randn(2, 5, 8),))) == 2 * 2 * 5 * 4 * 16 * (8 + 16)
    grouped = torch.nn.Conv2d(8, 8, 3, groups=8, padding=1)
    assert work.operations(work.count(grouped, (torch.randn(1, 8, 6, 6),))) == 2 * 8 * 36 * 9


def test_a_weight_that_is_read_by_many_operators_comes_from_memory_once() -> None:
    layer = torch.nn.Linear(30, 30, bias=False)
    counted = work.count(torch.nn.Sequential(layer, layer), (torch.randn(10, 30),))
    assert sorted(weights for _, _, _, weights, _ in counted["operators"]) == [0, 4 * 30 * 30]


def test_the_floor_is_the_rate_of_the_work_or_of_its_bytes_and_a_pass_between() -> None:
    rates = {"product": 1e9, "convolution": 2e9, "memory": 1e9, "cache": 1e10}
    bound_by_work = {"operators": [["product", 4e6, 1e3, 1e3, 2]], "between": 5e6}
    assert math.isclose(work.floor_us(bound_by_work, rates), 2 * 4000 + 500)
    bound_by_bytes = {"operators": [["convolution", 1e3, 1e7, 2e6, 1], ["gather", 0.0, 1e7, 0.0, 1]], "between": 0}
    assert math.isclose(work.floor_us(bound_by_bytes, rates), 1000 + 2000 + 1000)


@needs_hetero
@pytest.mark.parametrize("name", ["eager", "lazy", "compile", "saved", "saved-bf16"])
def test_our_subjects_compute_what_float64_does(tmp_path: Path, name: str) -> None:
    file = tmp_path / "reference.pt"
    torch.save(child.reference("inference", MLP, 3), file)
    subject = next(subject for subject in subjects.SUBJECTS if subject.name == name)
    answer = child.run("inference", MLP, 3, subject, file, 0.02)
    assert answer["error"] < (0.05 if subject.precision == "bfloat16" else 1e-5)
    assert answer["median_us"] >= answer["best_us"] > 0
    assert torch.get_default_dtype() == torch.float32


@needs_hetero
@pytest.mark.parametrize("name", ["eager", "lazy", "compile"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_our_training_steps_have_the_losses_of_float64(tmp_path: Path, name: str, optimizer: str) -> None:
    row = dataclasses.replace(MLP, optimizer=optimizer)
    file = tmp_path / "reference.pt"
    torch.save(child.reference("training", row, 3), file)
    subject = next(subject for subject in subjects.TRAINING if subject.name == name)
    assert child.run("training", row, 3, subject, file, 0.02)["error"] < 1e-4


def test_a_subject_that_computes_something_else_has_no_figures(tmp_path: Path) -> None:
    file = tmp_path / "reference.pt"
    wrong = child.reference("inference", MLP, 3)
    wrong["expected"][0][0, 0] += 1.0
    torch.save(wrong, file)
    answer = child.run("inference", MLP, 3, subjects.SUBJECTS[0], file, 0.02)
    assert list(answer) == ["reason"]
    assert "something else" in answer["reason"]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_results_that_are_no_numbers_are_errors(value: float) -> None:
    assert not child.error_of([torch.tensor([1.0, value])], [torch.ones(2)]) <= 1e-3


def test_another_number_of_results_is_an_error() -> None:
    with pytest.raises(ValueError, match="1 results instead of 2"):
        child.error_of([torch.ones(2)], [torch.ones(2), torch.ones(2)])
