"""Programs of torch.hetero.compile: MiniLM in float32 and bfloat16, against eager, inductor and OpenVINO in one run.

OpenVINO is taken as a peer where it can be imported (`.venv/bin/pip install openvino`) and is in no requirements
file. It runs bfloat16 where the processor has it unless it is told otherwise, so it is.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.perf import peers
from tests.perf.measure import DEVICE, Row, alternate, main, missing, timed_row, with_peers

CASES = {(1, 8): 0.35, (8, 32): 0.42, (32, 128): 0.48}  # batch and tokens: bar against eager
PEER_BAR = 1.0
HALF_BAR = 0.5  # bfloat16 against float32
INIT_BAR = 0.3  # seconds
HALF = "hetero, bfloat16"


def call(subject: Callable[..., Any], **tensors: torch.Tensor) -> Callable[[], object]:
    """A call that makes the last hidden state on the CPU."""
    return lambda: subject(**tensors)


def measure() -> list[Row]:
    """For each case the program's time against its peers, and what loading takes."""
    import models

    if DEVICE == "cpu":
        return [missing("MiniLM, saved program", 1.0, "ms", "needs the device")]
    model, _ = models.minilm()
    rows = []
    for (batch, length), bar in CASES.items():
        tokens = torch.randint(1000, 20000, (batch, length))
        inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        rows += compare(model, inputs, f"MiniLM, saved program, batch {batch} x {length} tokens", bar)
    rows.append(load_row(model))
    return rows


def compare(model: torch.nn.Module, inputs: dict[str, torch.Tensor], what: str, bar: float) -> list[Row]:
    """The rows of one shape."""
    exact = torch.hetero.compile(model, (), inputs)
    half = torch.hetero.compile(model, (), inputs, precision="bfloat16")
    subjects = {"hetero": call(exact, **inputs), HALF: call(half, **inputs), "eager": call(model, **inputs)}
    for precision in ("f32", "bf16"):
        subject = peers.openvino(model, inputs, precision)
        if subject is not None:
            subjects[f"openvino {precision}"] = subject
    with torch.inference_mode():
        if with_peers():
            subjects["inductor"] = call(peers.inductor(model), **inputs)
            peers.first_call(subjects["inductor"])
        expected = model(**inputs).last_hidden_state
        error = (half(**inputs)["last_hidden_state"].float() - expected).norm() / expected.norm()
        times = alternate(subjects, seconds=8.0)
    rows = [timed_row(what, times, bar, "ms")]
    rows.append(timed_row(f"{what}, bfloat16", times, HALF_BAR, "ms", peer="hetero", ours=HALF,
                          note=f"{100 * float(error):.1f} % from float32 in norm"))
    for peer, ours in (("openvino f32", "hetero"), ("openvino bf16", HALF), ("inductor", "hetero")):
        if peer in times:
            rows.append(timed_row(what, times, PEER_BAR, "ms", peer=peer, ours=ours))
        else:
            why = "needs --peers" if peer == "inductor" else "OpenVINO is not installed"
            rows.append(missing(what, PEER_BAR, "ms", why, peer_name=peer))
    return rows


def load_row(model: torch.nn.Module) -> Row:
    """From the file to a program that can be called, with its plan."""
    tokens = torch.randint(1000, 20000, (1, 8))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "minilm.hetero"
        torch.hetero.compile(model, (), {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}).save(path)
        seconds = []
        for _ in range(5):
            start = time.perf_counter()
            loaded = torch.hetero.load(path)
            seconds.append(time.perf_counter() - start)
        size = path.stat().st_size / 2**20
    note = f"{size:.0f} MiB, plan {loaded.plan_origin}"
    what = "MiniLM, saved program: load and Init"
    return Row(what, sorted(seconds)[2], None, INIT_BAR, "s", "", "absolute", note=note)


if __name__ == "__main__":
    main(measure)
