"""The commands of ``python -m torch_hetero.migration``."""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import importlib.metadata
import json
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch_hetero.migration.injector import Injector
from torch_hetero.migration.migrator import PipelineMigrator
from torch_hetero.migration.optimize.compare import Failed
from torch_hetero.migration.optimize.loader import Clock, Enough
from torch_hetero.migration.optimize.page import write_page
from torch_hetero.migration.optimize.script import Script, ScriptError
from torch_hetero.migration.optimize.search import ScriptFailed, Settings, optimize
from torch_hetero.migration.optimize.table import columns, explain
from torch_hetero.migration.plan import Plan, PlanError, check_device
from torch_hetero.migration.strategy import OnHost, all_strategies, load_entry_points

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit status: 2 for what cannot be used, the script's own for scripts."""
    chosen = parser().parse_args(arguments)
    try:
        return chosen.run(chosen)
    except (PlanError, ScriptError, Failed) as error:
        print(f"{chosen.command}: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        print(f"{chosen.command}: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    top = argparse.ArgumentParser(prog="python -m torch_hetero.migration", description="Input pipelines on a device.")
    commands = top.add_subparsers(dest="command", required=True)

    command = commands.add_parser("run", help="run a program with a plan")
    command.add_argument("--plan", help="the plan; without one the program runs as it is")
    command.add_argument("--debug", action="store_true", help="compute everything by the originals, too, and compare")
    command.add_argument(
        "--report", metavar="FILE", help="write the report there instead of stderr; *.json for a machine"
    )
    command.add_argument("--batches", type=positive, metavar="N", help="end after N batches of its DataLoaders")
    command.add_argument("--times", metavar="FILE", help="write the seconds of a batch there, as JSON")
    add_script(command)
    command.set_defaults(run=run)

    command = commands.add_parser("optimize", help="measure a program and write its plan")
    command.add_argument("-o", "--output", default="plan.json", metavar="PLAN", help="where to write the plan")
    command.add_argument("--batches", type=positive, default=50, metavar="N", help="batches to trace and to run (50)")
    command.add_argument("--device", default="hetero", help="where calls would run (hetero)")
    command.add_argument(
        "--minimum-gain", type=float, default=1.1, metavar="X", help="keep a plan from this gain on (1.1)"
    )
    command.add_argument(
        "--allow-inexact", action="store_true", help="allow other bytes, within strategies' tolerances"
    )
    command.add_argument("--device-share", type=float, metavar="X", help="most of a batch's time on the device")
    command.add_argument("--device-bytes", type=positive, metavar="N", help="most bytes of a batch on the device")
    command.add_argument("--rounds", type=positive, default=3, metavar="N", help="runs with and without each plan (3)")
    command.add_argument("--strategies", action="append", default=[], metavar="MODULE", help="import your strategies")
    command.add_argument("--report", metavar="HTML", help="draw the data flow and the time of a batch")
    add_script(command)
    command.set_defaults(run=run_optimize)

    command = commands.add_parser("explain", help="what a plan does, and why")
    command.add_argument("plan")
    command.add_argument("--report", metavar="HTML", help="draw the data flow and the time of a batch")
    command.set_defaults(run=run_explain)

    command = commands.add_parser("strategies", help="list the functions that can move")
    command.add_argument("pattern", nargs="?", default="", help="part of a name, such as cv2, or with * and ?")
    command.set_defaults(run=run_strategies)
    return top


def positive(text: str) -> int:
    """Returns a number from the command line that is at least 1."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def add_script(command: argparse.ArgumentParser) -> None:
    """Adds the program and its arguments: all that follows its name is the program's."""
    command.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help="run a module, as python -m does")
    command.add_argument("script", nargs=argparse.REMAINDER, metavar="script.py args...")


def command_of(chosen: argparse.Namespace) -> list[str]:
    """Returns the program and its arguments, as Python would get them.

    Raises:
        ScriptError: The command line names none.
    """
    program = chosen.script if chosen.module is None else chosen.module
    if not program:
        raise ScriptError("name a script to run")
    return program if chosen.module is None else ["-m", *program]


def script_of(chosen: argparse.Namespace) -> Script:
    """Returns the program that the command line names.

    Raises:
        ScriptError: It names none, or one that is not there.
    """
    command = command_of(chosen)
    is_module = chosen.module is not None
    name, *arguments = command[1:] if is_module else command
    return Script(name, arguments, is_module)


def run(chosen: argparse.Namespace) -> int:
    """`run`: the script with a plan; the exit status is the script's."""
    script = script_of(chosen)
    script.prepare()
    migrator = None if chosen.plan is None else PipelineMigrator(chosen.plan, debug=chosen.debug)
    clock = Clock(chosen.batches)
    injector = Injector()
    if migrator is not None:
        migrator.activate()
    if chosen.batches is not None or chosen.times is not None:
        clock.install(injector)
    clock.start()
    status: int | None = None
    try:
        status = script.run(None if migrator is None else lambda module: resolve(migrator, module))
    except Enough:
        status = 0
    except SystemExit:
        status = 0
        raise
    finally:
        if chosen.times is not None:
            clock.stop()
            Path(chosen.times).write_text(json.dumps(clock.timings.as_object()), encoding="utf-8")
        injector.undo()
        if migrator is not None:
            migrator.deactivate()
            if status is not None:
                write_report(migrator, chosen.report)
    return status


def resolve(migrator: PipelineMigrator, module: Any) -> None:
    """Patches what the script has defined by now."""
    if migrator.pending:
        migrator.imported(module)


def write_report(migrator: PipelineMigrator, path: str | None) -> None:
    """Writes the counters of a run: to stderr, or to a file."""
    if path is None:
        print(migrator.report.text(), file=sys.stderr)
    elif path.endswith(".json"):
        counts = {key: vars(counts) for key, counts in migrator.report.total().items()}
        Path(path).write_text(json.dumps(counts, indent=1), encoding="utf-8")
    else:
        Path(path).write_text("\n".join([migrator.report.text(), *migrator.notes, ""]), encoding="utf-8")


def run_optimize(chosen: argparse.Namespace) -> int:
    """`optimize`: writes a plan and shows why it is what it is."""
    script = script_of(chosen)
    check_device(chosen.device, "--device")
    output = os.path.abspath(chosen.output)
    page = os.path.abspath(chosen.report) if chosen.report else None
    if not os.path.isdir(os.path.dirname(output)):
        raise ScriptError(f"{chosen.output} cannot be written: there is no folder {os.path.dirname(output)}")
    script.prepare()
    for problem in load_entry_points():
        warnings.warn(problem, stacklevel=1)
    for module in chosen.strategies:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ScriptError(f"--strategies {module} cannot be imported: {error}") from None
    settings = Settings(
        chosen.batches, chosen.device, chosen.minimum_gain, chosen.allow_inexact, chosen.device_share,
        chosen.device_bytes, chosen.rounds, tuple(chosen.strategies),
    )  # fmt: skip
    command = command_of(chosen)
    try:
        plan = optimize(script, command, settings, lambda line: print(line, file=sys.stderr, flush=True))
    except ScriptFailed as failed:
        print(f"optimize: {failed} while it was traced; there is no plan", file=sys.stderr)
        return failed.status
    plan.save(output)
    print(explain(plan, chosen.output))
    if page is not None:
        write_page(page, plan, chosen.output)
    return 0


def run_explain(chosen: argparse.Namespace) -> int:
    """`explain`: what a plan does, and why."""
    plan = Plan.load(chosen.plan)
    print(explain(plan, chosen.plan))
    if chosen.report:
        if not plan.evidence:
            raise PlanError(f"{chosen.plan} has no measurements to draw; optimize writes them")
        write_page(chosen.report, plan, chosen.plan)
    return 0


def run_strategies(chosen: argparse.Namespace) -> int:
    """`strategies`: the functions that can move, with their tolerances and versions."""
    for problem in load_entry_points():
        warnings.warn(problem, stacklevel=1)
    pattern = chosen.pattern if any(sign in chosen.pattern for sign in "*?[") else f"*{chosen.pattern}*"
    rows = [("function", "family", "tolerance", "library", "tested with", "installed")]
    for strategy in all_strategies():
        if fnmatch.fnmatch(strategy.target.lower(), pattern.lower()):
            tolerance = f"on the CPU: {strategy.reason}" if isinstance(strategy, OnHost) else str(strategy.tolerance)
            rows.append(
                (strategy.target, strategy.family, tolerance, strategy.library or "-", tested_text(strategy.versions),
                 installed_text(strategy.library))
            )  # fmt: skip
    if len(rows) == 1:
        print(f"strategies: none matches {chosen.pattern!r}", file=sys.stderr)
        return 1
    print("\n".join(columns(rows, range(6))))
    return 0


def tested_text(versions: Sequence[str]) -> str:
    """Returns "4.14.*"."""
    return ", ".join(f"{version}*" for version in versions) or "any"


def installed_text(library: str) -> str:
    """Returns a library's version here."""
    if not library:
        return "-"
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
