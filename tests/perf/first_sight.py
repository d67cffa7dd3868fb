"""The first call of a program, whole: recording, planning and running what was never seen.

Two ways. In a process of its own for each measurement, which has imported torch and has model and inputs ready:
nothing of the device was used but copies to it. And in one process with a new shape for every call, hetero and eager
in turns: less noise, but a device that plans once for many shapes has seen the program.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import torch

from tests.perf.chain import chain
from tests.perf.measure import DEVICE, ROOT, Row, Times, alternate, flush, main, timed_row

BAR = 1.05
CHAIN_SIZE = 2**20
MINILM_SHAPE = (1, 8)
# Rounds of processes; one of MiniLM takes several seconds to import and load.
PROCESS_ROUNDS = {"chain": 15, "minilm": 5}


def chain_of(size: int, device: str) -> Callable[[], torch.Tensor]:
    """The chain on `size` floats, run to its end."""
    x, y = torch.randn(size).to(device), torch.randn(size).to(device)

    def run() -> torch.Tensor:
        z = chain(x, y)
        if device != "cpu":
            flush()
        return z

    return run


def minilm_of(shape: tuple[int, int], device: str, model: torch.nn.Module) -> Callable[[], torch.Tensor]:
    """MiniLM on (batch, tokens); its result is read."""
    tokens = torch.randint(1000, 20000, shape)
    inputs = {"input_ids": tokens.to(device), "attention_mask": torch.ones_like(tokens).to(device)}
    return lambda: model(**inputs).last_hidden_state.cpu()


def load_minilm(device: str) -> torch.nn.Module:
    """The model on the device, ready to be called."""
    import models

    return models.minilm()[0].to(device)


def worker(program: str, device: str) -> None:
    """Prints the seconds of the first call, in this new process."""
    run = chain_of(CHAIN_SIZE, device) if program == "chain" else minilm_of(MINILM_SHAPE, device, load_minilm(device))
    if device != "cpu":
        flush()
    with torch.inference_mode():
        start = time.perf_counter()
        run()
        print(time.perf_counter() - start)


def in_new_process(program: str, device: str) -> float:
    """Seconds of the first call in a process of its own."""
    command = [sys.executable, "-m", "tests.perf.first_sight", program, device]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    variables = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    return float(done.stdout.split()[-1])


def new_shapes(name: str, make: Callable[[int, str], Callable[[], torch.Tensor]], rounds: int) -> Row:
    """A row where every call is a shape of its own; `make(step, device)` prepares a call with the clock stopped."""
    times: Times = {"hetero": [], "eager": []}
    for step in range(rounds):
        # The first two warm up kernels and Python, not shapes.
        subjects = {"hetero": make(step, DEVICE), "eager": make(step, "cpu")}
        flush()
        seen = alternate(dict(reversed(subjects.items())) if step % 2 else subjects, warmup=0, rounds=1, least=1)
        if step >= 2:
            for who, seconds in seen.items():
                times[who] += seconds
    return timed_row(f"first sight, {name}, a new shape each call", times, BAR, "ms")


def measure() -> list[Row]:
    """Chain and MiniLM, each in new processes and with new shapes."""
    rows = []
    for program, rounds in PROCESS_ROUNDS.items():
        times: Times = {"hetero": [], "eager": []}
        for step in range(rounds):
            for who in sorted(times, reverse=bool(step % 2)):
                times[who].append(in_new_process(program, DEVICE if who == "hetero" else "cpu"))
        what = f"{CHAIN_SIZE:,} floats" if program == "chain" else "1 x 8 tokens"
        rows.append(timed_row(f"first sight, {program} {what}, new process", times, BAR, "ms"))
    with torch.inference_mode():
        rows.append(new_shapes("chain", lambda step, device: chain_of(CHAIN_SIZE + 64 * step, device), 26))
        both = {DEVICE: load_minilm(DEVICE), "cpu": load_minilm("cpu")}
        shapes = [(1 + step % 3, 8 + step) for step in range(26)]
        rows.append(new_shapes("minilm", lambda step, device: minilm_of(shapes[step], device, both[device]), 26))
    return rows


if __name__ == "__main__":
    if len(sys.argv) == 3:
        worker(*sys.argv[1:])
    else:
        main(measure)
