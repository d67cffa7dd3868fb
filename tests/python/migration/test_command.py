"""Commands: programs run as Python would run them, and errors are one sentence."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import needs_hetero

pytestmark = needs_hetero

from migration_programs import write_program  # noqa: E402

from torch_hetero.migration import session, strategy  # noqa: E402
from torch_hetero.migration.optimize.command import main  # noqa: E402


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for programs that run in this process; what they leave in the interpreter is taken away."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    strategies = {known.target: known for known in strategy.all_strategies()}
    yield tmp_path
    assert session.active() is None
    strategy._strategies.clear()
    strategy._strategies.update(strategies)
    for name in ("slow_photos", "tool", "tool.__main__"):
        sys.modules.pop(name, None)


def write(name: str, text: str) -> str:
    path = Path(name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return name


PLAN = {"slow_photos.invert": "hetero", "torch.from_numpy": "hetero"}


def plan_file(**rules: str) -> str:
    return write("plan.json", json.dumps(rules or PLAN))


# Programs run as Python would run them.


def test_a_script_gets_its_arguments_its_folder_and_its_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write("inner/neighbour.py", "value = 7")
    script = write(
        "inner/script.py",
        '"""The text."""\nfrom __future__ import annotations\nimport sys, neighbour\n'
        "def f(x: no_such_name): pass\n"
        "print(sys.argv, __name__, __file__, __doc__, neighbour.value, __spec__, __package__, f.__annotations__)\n"
        "assert sys.modules['__main__'].__dict__ is globals() and sys.path[0].endswith('inner')\n",
    )
    assert main(["run", script, "--plan", "x", "-m"]) == 0
    out = capsys.readouterr().out
    assert out == (
        f"['{script}', '--plan', 'x', '-m'] __main__ {folder / script} The text. 7 None None {{'x': 'no_such_name'}}\n"
    )


def test_a_module_runs_as_with_dash_m(capsys: pytest.CaptureFixture[str]) -> None:
    write("tool/__init__.py", "")
    main_text = "import sys\nfrom . import __name__ as package\nprint(package, sys.argv[1:], __spec__.name)"
    write("tool/__main__.py", main_text)
    assert main(["run", "-m", "tool", "-m", "a"]) == 0
    assert capsys.readouterr().out == "tool ['-m', 'a'] tool.__main__\n"


@pytest.mark.parametrize(
    ("ending", "status"), [("", 0), ("raise SystemExit(3)", 3), ("sys.exit()", None), ("sys.exit('no')", "no")]
)
def test_the_exit_status_is_the_scripts(ending: str, status: object) -> None:
    script = write("script.py", f"import sys\n{ending}\n")
    write_program(Path())
    arguments = ["run", "--plan", plan_file(), script]
    if not ending:
        with pytest.warns(UserWarning, match="matched nothing"):
            assert main(arguments) == status
        return
    with pytest.raises(SystemExit) as raised, pytest.warns(UserWarning, match="matched nothing"):
        main(arguments)
    assert raised.value.code == status


def test_a_traceback_is_the_scripts_own(capsys: pytest.CaptureFixture[str]) -> None:
    text = "x = 1\n\ndef fail():\n    1 / 0\n\ntry:\n    fail()\nexcept ZeroDivisionError as error:\n"
    script = write("script.py", text + "    raise ValueError('second') from error\n")
    assert main(["run", script]) == 1
    error = capsys.readouterr().err
    assert error.count("File") == 3 and error.count("script.py") == 3 and "torch_hetero" not in error
    assert error.endswith("ValueError: second\n") and "line 9" in error


def test_a_syntax_error_is_shown_as_python_shows_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", write("script.py", "x = 1\ny = = 2\n")]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f'  File "{folder / "script.py"}", line 2') and error.endswith(
        "SyntaxError: invalid syntax\n"
    )


@pytest.mark.parametrize("method", ["Photos/__getitem__", "Photos.__getitem__"])
def test_keys_may_name_what_the_script_defines_later(method: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = write_program(Path())
    plan = plan_file(**{f"{method}/slow_photos.invert": "hetero", "torch.from_numpy": "hetero"})
    assert main(["run", "--plan", plan, "--report", "report.json", str(script)]) == 0
    counts = json.loads(Path("report.json").read_text())
    assert counts["Photos.__getitem__/slow_photos.invert"]["device_calls"] == 80
    assert main(["run", str(script)]) == 0
    moved, plain = capsys.readouterr().out.splitlines()
    assert moved == plain and moved.startswith("total ")


def test_nothing_stays_patched_after_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    script = write_program(Path())
    assert main(["run", "--plan", plan_file(), "--batches", "3", "--times", "times.json", str(script)]) == 0
    import slow_photos

    assert not hasattr(slow_photos.invert, "_hetero_original")
    times = json.loads(Path("times.json").read_text())
    assert times["batches"] == 3 and times["seconds"] > 0
    assert times["loaders"] == [{"dataset": "Photos", "batch_size": 8, "workers": 0}]
    captured = capsys.readouterr()
    assert captured.out == "" and "slow_photos.invert" in captured.err  # the report, not among the script's output


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_workers_compute_the_same_with_a_plan(context: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = str(write_program(Path(), workers=1, context=context))
    assert main(["run", "--plan", plan_file(), "--report", "report.json", script]) == 0
    script = str(write_program(Path()))
    assert main(["run", script]) == 0
    moved, plain = capsys.readouterr().out.splitlines()
    assert moved == plain and moved.startswith("total ")
    counts = json.loads(Path("report.json").read_text())["slow_photos.invert"]
    assert counts["device_calls"] + counts["host_calls"] >= 80 and counts["fallbacks"] == {}


# Errors are one sentence.


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "missing.py"], "run: missing.py cannot be read: No such file or directory"),
        (["run", "."], "run: . is a folder; name the script in it"),
        (["run"], "run: name a script to run"),
        (["run", "-m", "no_such_module"], "run: there is no module no_such_module that could be run"),
        (["run", "--plan", "missing.json", "ok.py"], "run: missing.json: No such file or directory"),
        (["run", "--plan", "bad.json", "ok.py"], "run: bad.json is no JSON: Expecting value in line 1, column 1"),
        (["run", "--plan", "typo.json", "ok.py"], "run: 'numpy.stak': numpy has no stak; did you mean stack?"),
        (["optimize", "missing.py"], "optimize: missing.py cannot be read: No such file or directory"),
        (["optimize", "--device", "cuda:77", "ok.py"], "optimize: --device: device 'cuda:77' is not there"),
        (["optimize", "--strategies", "no_such", "ok.py"], "optimize: --strategies no_such cannot be imported"),
        (["optimize", "-o", "no/plan.json", "ok.py"], "optimize: no/plan.json cannot be written: there is no folder"),
        (["explain", "missing.json"], "explain: missing.json: No such file or directory"),
        (["explain", "--report", "x.html", "hand.json"], "explain: hand.json has no measurements to draw"),
    ],
)
def test_bad_input_is_answered_by_one_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write("ok.py", "print('ran')")
    write("bad.json", "?")
    write("typo.json", '{"numpy.stak": "hetero"}')
    write("hand.json", '{"numpy.stack": "hetero"}')
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(sentence) and captured.err.count("\n") == 1 and "ran" not in captured.out


def test_a_plan_that_fits_nothing_in_the_script_ends_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    write_program(Path())
    script = write("script.py", "import slow_photos\nprint('not reached')\n")
    with pytest.warns(UserWarning, match="matched nothing"):
        assert main(["run", "--plan", plan_file(**{"slow_photos.inwert": "hetero"}), script]) == 2
    captured = capsys.readouterr()
    assert "did you mean invert?" in captured.err and captured.out == ""


def test_explain_shows_plans_that_were_written_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", plan_file(**{"slow_photos.invert": "hetero"})]) == 0
    assert capsys.readouterr().out == "plan.json: written by hand\n  slow_photos.invert: hetero, defer\n"


def test_strategies_lists_names_tolerances_and_versions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["strategies", "numpy.st"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["function", "family", "tolerance"]
    assert any(line.startswith("numpy.stack ") and "exact" in line for line in lines)
    assert main(["strategies", "*.no_such*"]) == 1
    assert capsys.readouterr().err == "strategies: none matches '*.no_such*'\n"
