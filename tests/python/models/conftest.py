"""The project models/qwen3, built against the installed package, as a user builds it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from helpers import ROOT
from qwen3_checkpoints import Batch

import torch_hetero


@pytest.fixture(scope="session")
def qwen3_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the build; one for all workers of a run."""
    if shutil.which("cmake") is None:
        pytest.skip("models/qwen3 needs CMake, which is not installed")
    own = tmp_path_factory.getbasetemp()
    build = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "qwen3"
    with FileLock(f"{build}.lock"):
        configure = subprocess.run(
            [
                "cmake",
                "-S",
                ROOT / "models" / "qwen3",
                "-B",
                build,
                f"-DCMAKE_PREFIX_PATH={torch_hetero.cmake_prefix_path}",
                f"-DPython3_EXECUTABLE={sys.executable}",
                *(["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []),
            ],
            capture_output=True,
            text=True,
        )
        if "needs PCRE2 and utf8proc" in configure.stderr:
            pytest.skip("PCRE2 or utf8proc is not installed")
        assert configure.returncode == 0, configure.stdout + configure.stderr
        done = subprocess.run(["cmake", "--build", build, "-j", "2"], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return build


@pytest.fixture(scope="session")
def program(qwen3_build: Path) -> Path:
    """The program qwen3."""
    path = qwen3_build / "qwen3"
    if not path.exists():
        pytest.skip("cpp-httplib is not installed")
    return path


@pytest.fixture(scope="session")
def run_batch(program: Path) -> Batch:
    """Gives the results of requests, and the report."""

    def run(
        folder: Path, requests: list[dict[str, Any] | str], *options: str, variables: dict[str, str] | None = None
    ) -> tuple[list[dict[str, Any]], str]:
        text = "".join((json.dumps(request) if isinstance(request, dict) else request) + "\n" for request in requests)
        done = subprocess.run(
            [program, "batch", str(folder), *options],
            input=text,
            capture_output=True,
            text=True,
            timeout=600,
            env=os.environ | (variables or {}),
        )
        assert done.returncode == 0, done.stderr
        # Not splitlines(): texts have other ends of lines in them.
        return [json.loads(line) for line in done.stdout.split("\n") if line], done.stderr

    return run


@pytest.fixture(scope="session")
def run_failing(program: Path) -> Callable[..., str]:
    """Gives the sentence with which a checkpoint or an option is refused."""

    def run(folder: Path, *options: str) -> str:
        command = [program, "generate", str(folder), "--prompt=x", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode in (1, 2), done.stderr
        lines = [line for line in done.stderr.splitlines() if "no chat template" not in line]
        assert len(lines) == 1 and lines[0].startswith("qwen3: "), done.stderr
        return lines[0]

    return run
