"""The examples run unchanged with and without their plans, and their bytes are equal."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT, needs_hetero

pytestmark = needs_hetero

EXAMPLES = ROOT / "examples/migration"


def run(name: str, tmp_path: Path, *arguments: str, plan: bool) -> tuple[list[str], str]:
    for library in ("cv2", "torchvision", "torchaudio"):
        pytest.importorskip(library)
    script = str(EXAMPLES / f"{name}.py")
    command = [sys.executable, script]
    if plan:
        command = [
            sys.executable,
            "-m",
            "torch_hetero.migration",
            "run",
            "--plan",
            str(EXAMPLES / f"{name}.json"),
            script,
        ]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, env=environment, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return re.findall(r"loss [\d.]+, (?:pixels|features) (\w+)", done.stdout), done.stderr


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize(("name", "count"), [("photos", ["--photos", "16"]), ("sounds", ["--sounds", "16"])])
def test_an_example_has_the_same_bytes_with_its_plan(name: str, count: list[str], workers: str, tmp_path: Path) -> None:
    arguments = [*count, "--batch", "8", "--epochs", "1", "--workers", workers]
    want, _ = run(name, tmp_path, *arguments, plan=False)
    got, report = run(name, tmp_path, *arguments, plan=True)
    assert got == want and len(want) == 1
    for key in json.loads((EXAMPLES / f"{name}.json").read_text()):
        assert key in report
