"""No composed operator of ATen reads a hetero tensor's address or lacks an entry for the device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from helpers import needs_hetero

PROGRAM = Path(__file__).with_name("every_operator.py")
# Refused on every device but the CPU, as on CUDA: they pin memory, want an argument or a storage of the CPU.
CPU_ONLY = (
    "aten::_pin_memory", "aten::pin_memory", "aten::_pack_padded_sequence_backward", "aten::_lazy_clone",
    "aten::tensor_split.tensor_indices_or_sections",
)  # fmt: skip


def lines() -> list[str]:
    """What the program prints, started again behind each operator of which it died."""
    printed: list[str] = []
    first = 0
    while True:
        done = subprocess.run([sys.executable, str(PROGRAM), str(first)], capture_output=True, text=True, check=False)
        new = done.stdout.splitlines()
        printed += new
        if new and new[-1] == "end":
            return printed
        assert new, done.stderr[-2000:]
        first = int(new[-1].split()[0]) + 1
        printed.append(f"{new[-1]} died")


@needs_hetero
def test_composed_operators_do_on_hetero_what_they_do_on_the_cpu() -> None:
    printed = lines()
    died = [line for line in printed if line.endswith("hetero died")]
    assert died == []
    compared = [line.partition(" = ") for line in printed if " = " in line]
    differ = []
    for name, _, outcomes in compared:
        there, here = outcomes.split(" | ", 1)
        refused = there.startswith("gives") and not here.startswith("gives")
        internal = "INTERNAL ASSERT" in here and "INTERNAL ASSERT" not in there
        if (refused or internal) and not name.split()[1].startswith(CPU_ONLY):
            differ.append((name, there, here))
    assert differ == []
    assert sum(there.startswith("gives") for _, _, there in compared) > 1000
