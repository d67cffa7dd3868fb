"""What operators have taken is kept in a file from process to process.

Only an accelerator whose time is real has one: here the simulated one, whose virtual clock is hidden, so that its
events tell the time as a GPU's do.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import needs_hetero, run_python_ok

pytestmark = needs_hetero

# Runs a product a few times on a machine that is fifty times slower than it says, and prints what it was predicted to
# take at first, and at last.
PROGRAM = """
    import json, torch
    torch.hetero.config.accelerator = "sim"
    torch.hetero.use_profile("h200", slowdown=50)
    if HIDES_CLOCK:
        torch.hetero._C.interpose_faults("accelerator")
        torch.hetero._C.hide_virtual_clock()
    torch.hetero.config.placement = "accelerator"
    torch.hetero.config.keep_plans = True
    torch.hetero.config.fusion = False
    weight = torch.randn(256, 256).to("hetero")
    predicted = []
    for _ in range(RUNS):
        (torch.randn(64, 256).to("hetero") @ weight).cpu()
        node = next(n for n in torch.hetero.explain().program["nodes"] if n["op"] == "aten::mm")
        predicted.append(node["predicted"])
    print(json.dumps([predicted[0], predicted[-1]]))
"""


def predictions(folder: Path, runs: int = 12, hides_clock: bool = True) -> tuple[float, float]:
    code = PROGRAM.replace("RUNS", str(runs)).replace("HIDES_CLOCK", str(hides_clock))
    environment = {"XDG_CACHE_HOME": str(folder), "HETERO_ACCELERATOR": "none"}
    first, last = json.loads(run_python_ok(code, environment).splitlines()[-1])
    return first, last


def cost_files(folder: Path) -> list[Path]:
    return sorted((folder / "hetero").glob("costs-*"))


def test_what_was_measured_is_known_to_the_next_process(tmp_path: Path) -> None:
    guess, learned = predictions(tmp_path)
    assert learned == pytest.approx(50 * guess, rel=0.05)
    # So few measurements are written when the process exits.
    (file,) = cost_files(tmp_path)
    lines = file.read_text().splitlines()
    assert lines[0].startswith("hetero costs 2; torch ") and ", sim, ; " in lines[0]
    assert f"; {len(file.read_bytes()) - len(lines[0]) - 1} bytes; " in lines[0] and len(lines) > 2
    written = file.read_bytes()
    # The next process plans by it from the first run on, and does not write what it knew.
    assert predictions(tmp_path, runs=2)[0] == pytest.approx(learned, rel=0.01)
    assert file.read_bytes() == written
    assert cost_files(tmp_path) == [file]


def test_a_file_that_is_stale_or_damaged_is_replaced(tmp_path: Path) -> None:
    guess, learned = predictions(tmp_path)
    (file,) = cost_files(tmp_path)
    good = file.read_text()
    for bad in (
        good.replace(", sim, ;", ", sim, another GPU;", 1),
        good.replace("hetero costs 2;", "hetero costs 0;", 1),
        good[:-3],
        good.replace("e-", "e+", 1),
        "",
        "no such thing\n",
    ):
        assert bad != good
        file.write_text(bad)
        assert predictions(tmp_path)[0] == pytest.approx(guess, rel=1e-6)
        assert file.read_text().startswith(good[: good.index("; ", len("hetero costs 2; "))])
        assert predictions(tmp_path, runs=2)[0] == pytest.approx(learned, rel=0.05)


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "hetero").write_text("a file where the folder should be")
    guess, learned = predictions(tmp_path)
    assert learned == pytest.approx(50 * guess, rel=0.05)


def test_virtual_time_is_kept_nowhere(tmp_path: Path) -> None:
    guess, learned = predictions(tmp_path, hides_clock=False)
    assert learned == pytest.approx(50 * guess, rel=0.05)
    assert cost_files(tmp_path) == []
