"""The program qwen3 (models/qwen3), shape of Qwen3-0.6B, bf16, random weights: decoding, prefill, eight requests.

It is compared with eager transformers and with one read of the weights. The program is another process, so rounds take
turns: it runs for a while, then the peers do. `--depth N` takes N layers instead of 28.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from tests.perf import qwen3
from tests.perf.measure import DEPTH, ROOT, Row, Times, main, timed_row

ROUNDS = 3
CONTEXTS = (64, 2048)
PREFILL = (64, 256, 1024)
READ_BAR, PREFILL_BAR, REQUESTS_BAR = 1.15, 0.75, 1 / 5


def run_program(folder: Path, **options: int) -> dict[str, float]:
    """What `qwen3 bench` says: seconds of the prefill, and of a step."""
    from torch_hetero.qwen3 import program

    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    done = subprocess.run(
        [program(), "bench", str(folder), "--no-report", "--cache=2G", *flags], capture_output=True, text=True
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)


def seconds_of(run: Callable[[], object], count: int) -> float:
    """The median time of a call."""
    times = []
    for _ in range(count):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def decode_rows(what: str, folder: Path, eager: qwen3.Decoder, context: int) -> list[Row]:
    """A step with so many tokens before it, against one read of weights and cache, and eager."""
    read, size = qwen3.reader(eager.run)
    config = eager.config
    cache = 2 * 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * context
    if context == qwen3.CONTEXT:
        eager.reset()
    else:
        eager.begin_long()
    times: Times = {"hetero": [], "eager": [], "one read": []}
    eager.step()
    read()
    for _ in range(ROUNDS):
        times["hetero"].append(run_program(folder, prompt_tokens=context, tokens=24)["step_ms"] / 1e3)
        times["eager"].append(seconds_of(eager.step, 6))
        times["one read"].append(seconds_of(read, 8) * (size + cache) / size)
    what = f"{what}, C++ decode at {context:,}"
    note = (
        f"{(size + cache) / 2**20:,.0f} MiB, read at {(size + cache) / min(times['one read']) / 1e9:.1f} GB/s at best"
    )
    return [timed_row(what, times, READ_BAR, "ms", peer="one read", note=note), timed_row(what, times, 0.5, "ms")]


def prefill_row(what: str, folder: Path, eager: qwen3.Decoder, length: int) -> Row:
    """The time to the first token."""
    prompt = torch.randint(qwen3.VOCABULARY, (1, length))

    def run() -> None:
        eager.run(input_ids=prompt, past_key_values=eager.make_cache(), use_cache=True, logits_to_keep=1)

    times: Times = {"hetero": [], "eager": []}
    run()
    for _ in range(ROUNDS):
        times["hetero"].append(
            run_program(folder, prompt_tokens=length, tokens=1, step_tokens=length)["prefill_ms"] / 1e3
        )
        times["eager"].append(seconds_of(run, 3))
    return timed_row(f"{what}, C++ prefill of {length:,}", times, PREFILL_BAR, "ms")


def requests_row(what: str, folder: Path) -> Row:
    """Time for a token with eight requests that decode together, against one alone."""
    times: Times = {"hetero": [], "one request": []}
    for _ in range(ROUNDS):
        for name, count in (("one request", 1), ("hetero", 8)):
            made = run_program(folder, prompt_tokens=64, tokens=32, requests=count)
            times[name].append(made["step_ms"] / 1e3 / count)
    return timed_row(f"{what}, C++ decode of 8 requests, a token", times, REQUESTS_BAR, "ms", peer="one request")


def measure() -> list[Row]:
    """Rows of decoding, prefill and eight requests."""
    sys.path.insert(0, str(ROOT / "tests" / "python" / "models"))
    import qwen3_checkpoints

    depth = int(os.environ.get(DEPTH, qwen3.FULL_DEPTH))
    what = "Qwen3-0.6B shape bf16" + (f" CUT TO {depth} LAYERS" if depth != qwen3.FULL_DEPTH else "")
    model = qwen3.build(depth)
    with tempfile.TemporaryDirectory() as made, torch.no_grad():
        folder = qwen3_checkpoints.write(Path(made), model)
        eager = qwen3.Decoder(model, "cpu")
        rows = [row for context in CONTEXTS for row in decode_rows(what, folder, eager, context)]
        rows += [prefill_row(what, folder, eager, length) for length in PREFILL]
        return [*rows, requests_row(what, folder)]


if __name__ == "__main__":
    main(measure)
