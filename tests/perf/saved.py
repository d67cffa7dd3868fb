"""Programs of torch.hetero.compile: MiniLM in float32 and bfloat16, against eager, inductor, OpenVINO and ONNX Runtime
in one run; and the memory plans of MiniLM and resnet18.

OpenVINO and ONNX Runtime are taken as peers where they can be imported (`.venv/bin/pip install openvino`,
`.venv/bin/pip install onnxruntime onnx onnxscript`) and are in no requirements file. OpenVINO runs bfloat16 where the
processor has it unless it is told otherwise, so it is. Peers have the same weights, inputs and number of threads; they
are exported and compiled before anything is timed, and their results compared with eager's.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.perf import peers
from tests.perf.measure import DEVICE, Row, alternate, main, missing, timed_row, with_peers
from tests.perf.memory import program_arena_row

CASES = {(1, 8): 0.35, (8, 32): 0.42, (32, 128): 0.48}  # batch and tokens: bar against eager
PEER_BAR = 1.0
HALF_BAR = 0.5  # bfloat16 against float32
INT8_BAR = 0.6  # int8 against float32
INIT_BAR = 0.3  # seconds
HALF = "hetero, bfloat16"
INT8 = "hetero, int8"
# Beside eager: which of our programs is compared with it, and why it may be missing.
PEERS = {
    "openvino f32": ("hetero", "OpenVINO is not installed"),
    "openvino bf16": (HALF, "OpenVINO is not installed"),
    "onnxruntime f32": ("hetero", "ONNX Runtime, onnx or onnxscript is not installed"),
    "openvino int8 dynamic": (INT8, "OpenVINO or NNCF is not installed"),
    "openvino int8 static": (INT8, "OpenVINO or NNCF is not installed"),
    "onnxruntime int8 dynamic": (INT8, "ONNX Runtime, onnx or onnxscript is not installed"),
    "inductor": ("hetero", "needs --peers"),
}
TOLERANCES = {"rtol": 1e-4, "atol": 1e-4}
HALF_ERROR = 0.02  # of the norm
LEAST_COSINE = 0.995  # of the embeddings of our int8 program
SETTLE = 0.02  # seconds
CALL_BAR = 10.0  # microseconds
CALLS = 1000


def call(subject: Callable[..., Any], **tensors: torch.Tensor) -> Callable[[], object]:
    """A call that makes the last hidden state on the CPU."""
    return lambda: subject(**tensors)


def measure() -> list[Row]:
    """For each case the program's time against its peers and its memory plan; resnet18's; and what loading takes."""
    import models

    if DEVICE == "cpu":
        return [missing("MiniLM, saved program", 1.0, "ms", "needs the device")]
    model, _ = models.minilm()
    rows = []
    for (batch, length), bar in CASES.items():
        tokens = torch.randint(1000, 20000, (batch, length))
        inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        rows += compare(model, inputs, f"MiniLM, saved program, batch {batch} x {length} tokens", bar)
    rows.append(resnet18_row())
    rows.append(load_row(model))
    rows.append(call_row())
    return rows


def compare(model: torch.nn.Module, inputs: dict[str, torch.Tensor], what: str, bar: float) -> list[Row]:
    """The rows of one shape."""
    exact = torch.hetero.compile(model, (), inputs)
    half = torch.hetero.compile(model, (), inputs, precision="bfloat16")
    int8 = torch.hetero.compile(model, (), inputs, precision="int8")
    subjects = {"hetero": call(exact, **inputs), HALF: call(half, **inputs), INT8: call(int8, **inputs),
                "eager": call(model, **inputs)}
    with torch.inference_mode():
        expected = model(**inputs).last_hidden_state
        found, cosines = checked_peers(model, inputs, expected)
        subjects |= found
        if with_peers():
            subjects["inductor"] = call(peers.inductor(model), **inputs)
            peers.first_call(subjects["inductor"])
        torch.testing.assert_close(exact(**inputs)["last_hidden_state"], expected, **TOLERANCES)
        error = off(half(**inputs)["last_hidden_state"], expected)
        ours = cosine(int8(**inputs)["last_hidden_state"], expected)
        if ours < LEAST_COSINE:
            raise AssertionError(f"embeddings of the int8 program have a cosine of {ours:.4f} with eager's")
        times = alternate(subjects, seconds=8.0, settle=SETTLE)
    rows = [timed_row(what, times, bar, "ms")]
    rows.append(timed_row(f"{what}, bfloat16", times, HALF_BAR, "ms", peer="hetero", ours=HALF,
                          note=f"{100 * error:.1f} % from float32 in norm"))
    rows.append(timed_row(f"{what}, int8", times, INT8_BAR, "ms", peer="hetero", ours=INT8,
                          note=f"least cosine of an embedding {ours:.4f}"))
    for peer, (subject, why) in PEERS.items():
        name = f"{what}, int8" if subject == INT8 else what
        if peer in times:
            note = f"the peer's least cosine {cosines[peer]:.4f}" if subject == INT8 else ""
            rows.append(timed_row(name, times, PEER_BAR, "ms", peer=peer, ours=subject, note=note))
        else:
            rows.append(missing(name, PEER_BAR, "ms", why, peer_name=peer))
    rows.append(program_arena_row(what, exact))
    return rows


def checked_peers(
    model: torch.nn.Module, inputs: dict[str, torch.Tensor], expected: torch.Tensor
) -> tuple[dict[str, Callable[[], object]], dict[str, float]]:
    """The peers that are installed, and the least cosine of an embedding of each. Raises an AssertionError where one
    computes something else than eager."""
    found = {
        "openvino f32": peers.openvino(model, inputs, "f32"),
        "openvino bf16": peers.openvino(model, inputs, "bf16"),
        "onnxruntime f32": peers.onnxruntime(model, inputs),
        "openvino int8 dynamic": peers.openvino(model, inputs, "int8 dynamic"),
        "openvino int8 static": peers.openvino(model, inputs, "int8 static"),
        "onnxruntime int8 dynamic": peers.onnxruntime(model, inputs, "int8 dynamic"),
    }
    found = {name: subject for name, subject in found.items() if subject is not None}
    cosines = {}
    for name, subject in found.items():
        result = subject()
        cosines[name] = cosine(result, expected)
        if "int8" in name:
            continue
        if name.endswith("f32"):
            torch.testing.assert_close(result, expected, **TOLERANCES, msg=lambda text, name=name: f"{name}: {text}")
        elif off(result, expected) > HALF_ERROR:
            raise AssertionError(f"{name} is {100 * off(result, expected):.1f} % from eager's float32 in norm")
    return found, cosines


def cosine(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """The least cosine of an embedding, the mean of a text's states, with the one it should be."""
    return float(torch.nn.functional.cosine_similarity(actual.mean(1), expected.mean(1)).min())


def off(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """How far `actual` is from `expected`, as a share of its norm."""
    return float((actual.float() - expected).norm() / expected.norm())


def resnet18_row() -> Row:
    """The memory plan of a network whose temporaries differ in size by two orders of magnitude."""
    import models

    batch = (8, 3, 64, 64)
    program = torch.hetero.compile(models.resnet18().eval(), (torch.randn(batch),))
    return program_arena_row(f"resnet18, saved program, batch {' x '.join(map(str, batch))}", program)


def call_row() -> Row:
    """What a call from Python takes besides kernels: of a program whose only kernel takes next to nothing."""
    x = torch.randn(16)
    program = torch.hetero.compile(torch.nn.ReLU(), (x,))
    times = alternate({"hetero": lambda: program(x)}, calls=CALLS)["hetero"]
    what = "saved program: a call with relu of 16 floats"
    return Row(what, statistics.median(times) * 1e6, None, CALL_BAR, "us", "", "absolute")


# Prints the seconds of load and Init, and where the plan is from.
LOAD = """
import sys, time, torch
torch.hetero
start = time.perf_counter()
origin = torch.hetero.load(sys.argv[1]).plan_origin
print(time.perf_counter() - start, origin)
"""


def load_row(model: torch.nn.Module) -> Row:
    """From the file to a program with its executor, in processes that have done nothing before but import torch."""
    tokens = torch.randint(1000, 20000, (1, 8))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "minilm.hetero"
        torch.hetero.compile(model, (), {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}).save(path)
        seconds = []
        for _ in range(5):
            said = subprocess.run([sys.executable, "-c", LOAD, str(path)], check=True, capture_output=True, text=True)
            taken, origin = said.stdout.split(maxsplit=1)
            seconds.append(float(taken))
        size = path.stat().st_size / 2**20
    note = f"{size:.0f} MiB, a fresh process, plan {origin.strip()}"
    what = "MiniLM, saved program: load and Init"
    return Row(what, sorted(seconds)[2], None, INIT_BAR, "s", "", "absolute", note=note)


if __name__ == "__main__":
    main(measure)
