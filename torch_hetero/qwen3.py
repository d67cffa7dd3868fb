"""``python -m torch_hetero.qwen3``: the program ``qwen3`` (docs/qwen3.md), which needs no Python once it is built.

The program is C++ on the installed headers (models/qwen3 of the repository). It is built on first use, into the folder
of caches, with the CMake and the compiler of the machine.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["main", "program"]

_SOURCES = Path(__file__).resolve().parent.parent / "models" / "qwen3"


def program() -> Path:
    """The path of the program, which is built where it is missing or older than its sources.

    Raises:
        RuntimeError: where it cannot be built, with what CMake or the compiler said.
    """
    import torch_hetero

    found = os.environ.get("HETERO_QWEN3")
    if found:
        return Path(found)
    if not _SOURCES.is_dir():
        raise RuntimeError(
            "the sources of qwen3 are in the repository, models/qwen3: build them as docs/qwen3.md says, "
            "and set HETERO_QWEN3 to the program"
        )
    if shutil.which("cmake") is None:
        raise RuntimeError("qwen3 is built by CMake, which is not installed")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hetero"
    build = cache / ("qwen3-" + hashlib.sha256(str(_SOURCES).encode()).hexdigest()[:12])
    configure = [
        "cmake",
        "-S",
        str(_SOURCES),
        "-B",
        str(build),
        f"-DCMAKE_PREFIX_PATH={torch_hetero.cmake_prefix_path}",
        f"-DPython3_EXECUTABLE={sys.executable}",
    ]
    if shutil.which("ccache"):
        configure.append("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
    if not (build / "qwen3").exists():
        print("qwen3: building the program, once", file=sys.stderr)
    for command in (configure, ["cmake", "--build", str(build), "--target", "qwen3", "-j", str(os.cpu_count() or 1)]):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError("qwen3 cannot be built:\n" + (done.stdout + done.stderr)[-4000:])
    return build / "qwen3"


def main() -> None:
    """Runs the program with this process's arguments."""
    try:
        path = program()
    except RuntimeError as error:
        sys.exit(f"qwen3: {error}")
    os.execv(path, [str(path), *sys.argv[1:]])


if __name__ == "__main__":
    main()
