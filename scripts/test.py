#!/usr/bin/env python3
"""Runs the tests in stages, cheapest first, and closes with one line: N passed, N failed, N skipped.

    scripts/test.py           what `make test` and CI run
    scripts/test.py --quick   `make check`: what a change of one file needs, in a minute
    scripts/test.py --full    `make test-full`: the long version of each stage, hours
    scripts/test.py --gpu     `make test-gpu`: the CUDA path on a GPU and its figures, without a network or .venv; writes
                              build/gpu.md. With --stand-in: its tests, on the stand-in for CUDA

A stage is one command. It prints its seconds. A stage that fails does not stop the others, unless nothing was built. Every test
case counts, and so does every seed of a fuzzer; a check without cases counts as one. Further arguments go to pytest.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
VENV_PYTHON = ROOT / ".venv/bin/python"
PYTHON = str(VENV_PYTHON) if VENV_PYTHON.exists() else sys.executable
# Packages that came along: scripts/carry_packages.sh.
CARRIED = ROOT / "third_party/carried/python"
REPORT = BUILD / "gpu.md"
JOBS = os.environ.get("JOBS") or str(os.cpu_count() or 1)
PYTEST = [PYTHON, "-m", "pytest", "-q"]
PYTHON_TESTS = [*PYTEST, "-n", JOBS, "--dist", "worksteal"]
# In each mode: random programs, damaged files, and random programs in Python.
SEEDS = {"normal": ("2000", "5000", "40"), "full": ("100000", "100000", "10000")}
# Without tests that start processes.
QUICK_PYTHON = ["tests/python/lazy/test_lazy.py", "tests/python/tensors/test_views.py", "tests/python/tools/test_helpers.py"]
QUICK_CPP = "^(ops|graph|graph_kv|graph_placement|backend)$"
QWEN3_FUZZ = "build/tests/models/qwen3/hetero_qwen3_fuzz"

# What a tool prints of its cases, as (pattern, the outcome that it counts). Outcomes that are not named count nothing.
CASES = [
    (re.compile(r"All tests passed \(\d+ assertions? in (\d+) test cases?\)"), "passed"),  # Catch2
    (re.compile(r"^test cases:.*?(\d+) passed", re.M), "passed"),
    (re.compile(r"^test cases:.*?(\d+) failed", re.M), "failed"),
    (re.compile(r"^\[  PASSED  \] (\d+) tests?\.", re.M), "passed"),  # GoogleTest
    (re.compile(r"^\[  FAILED  \] (\d+) tests?, listed", re.M), "failed"),
    (re.compile(r"^\[  SKIPPED \] (\d+) tests?, listed", re.M), "skipped"),
    (re.compile(r"^\w+-fuzz: (\d+) seeds as they should be", re.M), "passed"),
]
# tests/graph and tests/backend return early where there is no GPU; Catch2 takes that for a pass.
RETURNED_EARLY = re.compile(r"^(\d+) tests skipped: ", re.M)
# Lines of a stage that name what failed in it.
FAILURE = re.compile(r"^.*(?:\bFAILED\b|\*\*\*Failed|\*\*\*Exception|: runtime error: |^SUMMARY: |\bwarning: ).*$", re.M)
PYTEST_LINE = re.compile(r"^[=\s]*((?:\d+ [a-z]+, )*\d+ [a-z]+) in [\d.]+s", re.M)
PYTEST_OUTCOMES = {
    "passed": "passed", "xpassed": "passed", "failed": "failed", "error": "failed", "errors": "failed", "skipped": "skipped",
    "xfailed": "skipped",
}


def count_cases(text: str) -> Counter[str]:
    """Counts passed, failed and skipped cases in the output of Catch2, GoogleTest, the fuzzers and pytest."""
    counts: Counter[str] = Counter()
    for pattern, outcome in CASES:
        counts[outcome] += sum(int(number) for number in pattern.findall(text))
    early = sum(int(number) for number in RETURNED_EARLY.findall(text))
    counts["passed"] -= early
    counts["skipped"] += early
    for line in PYTEST_LINE.findall(text):
        for part in line.split(", "):
            number, word = part.split()
            if word in PYTEST_OUTCOMES:
                counts[PYTEST_OUTCOMES[word]] += int(number)
    return counts


@dataclass
class Stage:
    """A command, and what else is to be known of it."""

    name: str
    command: list[str]
    # Where the cases are counted that the output does not show, as paths below build/.
    logs: tuple[str, ...] = ()
    # Says why the stage cannot run here, if so; a reason that starts with "!" is a failure.
    unless: str = ""
    # A build. It must be free of warnings; where it breaks off, nothing else makes sense.
    is_build: bool = False
    broke_off: bool = False
    # Added to the environment.
    variables: dict[str, str] = field(default_factory=dict)
    # It uses one core: stages in a row that do run together, as many as there are cores, and show their output at the end.
    one_core: bool = False
    output: str = ""
    failed: int = 0
    seconds: float = 0

    def run(self) -> Counter[str]:
        """Runs the command, shows its output, and counts its cases."""
        shown: list[str] = []

        def show(text: str) -> None:
            shown.append(text)
            if not self.one_core:
                print(text, end="", flush=True)

        try:
            return self.run_command(show)
        finally:
            if self.one_core:
                print("".join(shown), end="", flush=True)

    def run_command(self, show: Callable[[str], None]) -> Counter[str]:
        """As `run`, with what is to be shown given to `show`."""
        show(f"\n== {self.name}\n")
        if self.unless:
            self.output = self.unless.lstrip("!")
            show(f"{self.output}\n")
            self.broke_off = self.unless.startswith("!")
            self.failed = int(self.broke_off)
            return Counter(failed=1) if self.broke_off else Counter(skipped=1)
        start = time.monotonic()
        text = []
        for log in self.logs:
            (BUILD / log).unlink(missing_ok=True)
        with subprocess.Popen(self.command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", env=os.environ | self.variables) as process:
            for line in process.stdout or ():
                show(line)
                text.append(line)
        self.output = printed = "".join(text)
        logs = [log for log in (BUILD / name for name in self.logs) if log.exists()]
        self.broke_off = process.returncode != 0
        counts = count_cases("\n".join(log.read_text(errors="replace") for log in logs) if self.logs else printed)
        if self.is_build and (warnings := re.findall(r"^.*\bwarning: .*$", printed, re.M)):
            show("\n".join([f"{len(warnings)} warnings of the compiler:", *sorted(set(warnings)), ""]))
            counts["failed"] += 1
        elif process.returncode != 0 and not counts["failed"]:
            show(f"status {process.returncode}\n")
            counts["failed"] += 1
        if not sum(counts.values()):
            counts["passed"] += 1
        self.failed = counts["failed"]
        self.seconds = time.monotonic() - start
        show(f"-- {self.name}: {self.seconds:.0f} s, {summary(counts)}\n")
        return counts

    def failures(self) -> list[str]:
        """What failed, a line each: those that say so, or the last ones of the output."""
        lines = list(dict.fromkeys(line.strip() for line in FAILURE.findall(self.output)))
        return lines[:12] or self.output.splitlines()[-5:]


def summary(counts: Counter[str]) -> str:
    """The line that closes a run."""
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped"))


def in_cache(pattern: str) -> bool:
    """Whether the configuration of build/ has a line that starts with this pattern."""
    cache = BUILD / "CMakeCache.txt"
    return cache.exists() and re.search(f"^{pattern}", cache.read_text(), re.M) is not None


def without_cuda() -> str:
    """Why this build has no cuda device. Where there is nvcc that was asked for by name, or is a mistake."""
    if in_cache("HETERO_CUDA:.*=OFF"):
        return "skipped: HETERO_CUDA=OFF"
    if in_cache("CMAKE_CUDA_COMPILER:.*nvcc"):
        return ""
    if shutil.which("nvcc") or Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin/nvcc").exists():
        return "!nvcc is there, and build/ has no cuda device: HETERO_CUDA=ON make build says why"
    return "skipped: no nvcc here, the cuda device is not built"


def gpu_variables() -> dict[str, str]:
    """What Python needs to find torch_hetero, where nothing is installed but torch, and what came along."""
    if VENV_PYTHON.exists():
        return {}
    site = BUILD / "site"
    site.mkdir(parents=True, exist_ok=True)
    # The entry points by which torch finds the device.
    subprocess.run([PYTHON, "setup.py", "-q", "egg_info", "--egg-base", str(site)], cwd=ROOT, check=False,
                   env=os.environ | {"HETERO_NO_BUILD": "1"})
    path = f"{site}:{ROOT}"
    if subprocess.run([PYTHON, "-c", "import pytest"], capture_output=True, check=False).returncode != 0:
        path += f":{CARRIED}"
    return {"PYTHONPATH": path}


def gpu_stages(stand_in: bool, pytest_arguments: list[str]) -> list[Stage]:
    """The stages of `--gpu` behind the build: the CUDA path, PyTorch's operator database, and the figures."""
    if stand_in:
        run = ["tests/cuda_standin/run.sh"]
        return [
            Stage("the stand-in for CUDA", ["tests/cuda_standin/build.sh"], is_build=True, unless=without_cuda()),
            Stage("the CUDA path", [*run, *PYTEST, "tests/cuda_standin", *pytest_arguments], unless=without_cuda(),
                  one_core=True),
            # Whether they can be taken; a stand-in has none.
            Stage("figures", [*run, PYTHON, "-m", "tests.perf", "gpu"], unless=without_cuda(), one_core=True,
                  variables={"HETERO_ACCELERATOR": "cuda"}),
        ]
    variables = gpu_variables()
    on_gpu = variables | {"HETERO_ACCELERATOR": "cuda"}
    mixed = on_gpu | {"HETERO_PLACEMENT": "mixed", "HETERO_FUSION": "0"}
    without_catch2 = "" if in_cache("HETERO_TESTS:.*=(ON|AUTO)") and not in_cache("HETERO_CATCH2_INCLUDE:.*NOTFOUND") else (
        "skipped: without Catch2 there are no C++ tests")
    return [
        Stage("the GPU", ["nvidia-smi"], is_build=True,
              unless="" if shutil.which("nvidia-smi") else "!there is no GPU here: nvidia-smi is missing"),
        Stage("devices and fused kernels, C++", [str(BUILD / "tests/backend/hetero_backend_tests")], variables=on_gpu,
              unless=without_catch2),
        Stage("executors, C++", [str(BUILD / "tests/graph/hetero_graph_tests"), "[accelerator]"], variables=on_gpu,
              unless=without_catch2),
        Stage("the CUDA path", [*PYTEST, "tests/cuda_standin", *pytest_arguments], variables=variables),
        Stage("figures", [PYTHON, "-m", "tests.perf", "gpu"], variables=on_gpu),
        # On one GPU, one process: others would measure and fill the same memory.
        Stage("PyTorch's operator database", [*PYTEST, "tests/upstream/test_opinfo.py", *pytest_arguments],
              variables=mixed),
    ]


def write_report(ran: list[Stage], total: Counter[str]) -> None:
    """Writes what a run on a GPU printed into one file, stage by stage; long ones by their last lines."""
    lines = ["# The CUDA path on a GPU", "", f"{summary(total)}.", ""]
    for stage in ran:
        shown = stage.output.splitlines()[-150:]
        lines += [f"## {stage.name}", "", f"`{' '.join(stage.command)}`", "", "```", *shown, "```", ""]
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text("\n".join(lines))
    print(f"report: {REPORT.relative_to(ROOT)}")


def stages(mode: str, pytest_arguments: list[str]) -> list[Stage]:
    """The stages of a mode, in order. Those that depend on the build's configuration come after it."""
    checks = Stage("checks of the sources", ["scripts/lint.sh", "--changed"])
    ctest = ["ctest", "--test-dir", "build", "--output-on-failure", "-j", JOBS]
    ctest_log = ("Testing/Temporary/LastTest.log",)
    if mode == "quick":
        return [
            checks,
            Stage("C++ tests", [*ctest, "-R", QUICK_CPP], logs=ctest_log),
            Stage("Python tests", [*PYTHON_TESTS, *QUICK_PYTHON, *pytest_arguments]),
        ]
    programs, files, python_programs = SEEDS[mode]
    machines = ["--machines", "all", *(["--all-parameters"] if mode == "full" else [])]
    return [
        checks,
        Stage("C++ tests", [*ctest, "-E", "fuzz"], logs=ctest_log),
        Stage("random programs on simulated accelerators", ["build/tests/graph/hetero_sim_fuzz", "--seeds", programs], one_core=True),
        Stage("damaged files of saved programs", ["build/tests/graph/hetero_load_fuzz", "--seeds", files], one_core=True),
        Stage("damaged files of Qwen3 models", [QWEN3_FUZZ, "--seeds", files], one_core=True,
              unless="" if Path(ROOT / QWEN3_FUZZ).exists() else "skipped: without PCRE2 or utf8proc, models/ is not built"),
        Stage("random programs in Python", [PYTHON, "-m", "tests.fuzz", "--programs", python_programs], one_core=True),
        Stage("instruction counts", ["scripts/instructions.sh"]),
        Stage("torch-free layers under sanitizers", ["scripts/sanitize.sh", *(["--all"] if mode == "full" else [])],
              logs=tuple(f"{sanitizer}/{ctest_log[0]}" for sanitizer in ("asan", "tsan"))),
        Stage("the CUDA path on a stand-in for the CUDA runtime", [PYTHON, "scripts/test.py", "--gpu", "--stand-in"],
              unless=without_cuda()),
        Stage("Python tests", [*PYTHON_TESTS, "tests/python", "tests/upstream", *machines, *pytest_arguments]),
    ]


def run_stages(rest: list[Stage]) -> Iterator[tuple[Stage, Counter[str]]]:
    """Runs stages in order, until a build breaks off, and gives what they count."""
    for one_core, group in groupby(rest, lambda stage: stage.one_core):
        if one_core:
            together = list(group)
            with ThreadPoolExecutor(int(JOBS)) as pool:
                yield from zip(together, pool.map(Stage.run, together), strict=True)
            continue
        for stage in group:
            yield stage, stage.run()
            if stage.is_build and stage.broke_off:
                return


def main() -> int:
    """Runs the stages of a mode and prints what came of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--quick", dest="mode", action="store_const", const="quick", default="normal")
    modes.add_argument("--full", dest="mode", action="store_const", const="full")
    modes.add_argument("--gpu", dest="mode", action="store_const", const="gpu")
    parser.add_argument("--stand-in", action="store_true", help="with --gpu: on the stand-in for CUDA, after `make build`")
    options, pytest_arguments = parser.parse_known_args()

    start = time.monotonic()
    what = {"quick": "quick", "gpu": "gpu"}.get(options.mode, "all")
    ran = [] if options.stand_in else [Stage("build", ["scripts/build.sh", what], is_build=True)]
    total: Counter[str] = Counter()
    for stage in ran:
        total.update(stage.run())
    if not any(stage.broke_off for stage in ran):
        gpu = options.mode == "gpu"
        rest = gpu_stages(options.stand_in, pytest_arguments) if gpu else stages(options.mode, pytest_arguments)
        for stage, counts in run_stages(rest):
            total.update(counts)
            ran.append(stage)
    if options.mode == "gpu":
        write_report(ran, total)
    print("\n== seconds")
    for name, taken in [*((stage.name, stage.seconds) for stage in ran), ("all", time.monotonic() - start)]:
        print(f"{taken:6.0f} {name}")
    if total["failed"]:
        # Last, where a log that was cut still has it.
        print("\n== failed")
        for stage in ran:
            if stage.failed:
                print("\n".join([f"{stage.name}: {stage.failed}", *(f"  {line[:200]}" for line in stage.failures())]))
    print(summary(total), flush=True)
    return 1 if total["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
