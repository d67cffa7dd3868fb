"""The project models/qwen3, built against the installed package, as a user builds it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock
from helpers import ROOT

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
