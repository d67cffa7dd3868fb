"""A part of what `python -m tests.upstream.coverage` runs: in float32, the first sample of each entry of op_db in the ways that
record most, and PyTorch's modules and optimizers."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

if os.environ.get("HETERO_TEST_DEVICE", "hetero") == "cpu":
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import load_exclusions
from helpers import DEVICE
from modules import DATABASES
from ways import OPERATORS, Tally

# Samples or cases of each entry; 0: all.
PARTS = {"gradients": 1, "inplace": 1, "errors": 0, "modules": 0, "optimizers": 0}
WAYS = OPERATORS | DATABASES
EXCLUSIONS = load_exclusions()


def tasks() -> list[tuple[str, str]]:
    """The ways and the entries of the part."""
    names = [(way, name) for way in PARTS for name in WAYS[way].names()]
    return [(way, name) for way, name in names if way == "errors" or name.endswith(" float32")]


@pytest.mark.parametrize(("way", "name"), tasks(), ids=lambda text: text.replace(" float32", ""))
def test_entry_gives_what_the_cpu_gives(way: str, name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tally: Tally = WAYS[way].run(name, DEVICE, PARTS[way])
    wrong = [note for note in tally.notes if note[0] in ("differ", "refused")]
    excluded = EXCLUSIONS.get(name.split(" ")[0])
    if wrong and excluded:
        pytest.xfail(f"excluded, {excluded['reason']}: {excluded['why']}")
    assert not wrong, wrong
