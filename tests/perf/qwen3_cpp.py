"""The program qwen3 (models/qwen3), shape of Qwen3-0.6B, random weights: decoding in bf16 and in 8 and 4 bits, prefill,
eight requests.

It is compared with eager transformers, with one read of the weights, and with llama.cpp (llama_cpp.py). The program is
another process, so rounds take turns: it runs for a while, then the peers do. `--depth N` takes N layers instead of 28.
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

from tests.perf import llama_cpp, qwen3
from tests.perf.measure import DEPTH, ROOT, Row, Times, main, missing, timed_row

ROUNDS = 3
CONTEXTS = (64, 2048)
PREFILL = (64, 256, 1024)
TOKENS = 24  # that are decoded in a round
READ_BAR, PREFILL_BAR, REQUESTS_BAR = 1.15, 0.75, 1 / 5
LLAMA_DECODE_BAR, LLAMA_PREFILL_BAR = 1.0, 0.9
# Bits of the weights: the format of llama.cpp, and the bar against bf16.
QUANTIZED = {8: ("Q8_0", 0.58), 4: ("Q4_0", 0.33)}


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


def llama_row(what: str, times: Times, bar: float, llama: llama_cpp.Models, note: str = "") -> Row:
    """A row against llama.cpp, or why there is none."""
    if llama.why_not:
        return missing(what, bar, "ms", llama.why_not, peer_name=llama_cpp.PEER)
    return timed_row(what, times, bar, "ms", peer=llama_cpp.PEER, note=note)


def decode_rows(
    what: str, folder: Path, eager: qwen3.Decoder, llama: llama_cpp.Models, context: int
) -> list[Row]:
    """A step with so many tokens before it, against one read of weights and cache, eager, and llama.cpp."""
    read, size = qwen3.reader(eager.run)
    config = eager.config
    cache = 2 * 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * context
    if context == qwen3.CONTEXT:
        eager.reset()
    else:
        eager.begin_long()
    times: Times = {"hetero": [], "eager": [], "one read": [], llama_cpp.PEER: []}
    eager.step()
    read()
    for _ in range(ROUNDS):
        times["hetero"].append(run_program(folder, prompt_tokens=context, tokens=TOKENS)["step_ms"] / 1e3)
        times["eager"].append(seconds_of(eager.step, 6))
        times["one read"].append(seconds_of(read, 8) * (size + cache) / size)
        if not llama.why_not:
            times[llama_cpp.PEER].append(llama.seconds("BF16", tokens=TOKENS, context=context))
    what = f"{what}, C++ decode at {context:,}"
    note = (
        f"{(size + cache) / 2**20:,.0f} MiB, read at {(size + cache) / min(times['one read']) / 1e9:.1f} GB/s at best"
    )
    return [
        timed_row(what, times, READ_BAR, "ms", peer="one read", note=note),
        timed_row(what, times, 0.5, "ms"),
        llama_row(what, times, LLAMA_DECODE_BAR, llama),
    ]


def quantized_rows(what: str, folder: Path, llama: llama_cpp.Models, bits: int) -> list[Row]:
    """A step with weights of so many bits, against bf16 and llama.cpp's format of as many bits."""
    kind, bar = QUANTIZED[bits]
    sizes = {"prompt_tokens": qwen3.CONTEXT, "tokens": TOKENS}
    times: Times = {"hetero": [], "bf16": [], llama_cpp.PEER: []}
    for _ in range(ROUNDS):
        times["hetero"].append(run_program(folder, **sizes, bits=bits)["step_ms"] / 1e3)
        times["bf16"].append(run_program(folder, **sizes)["step_ms"] / 1e3)
        if not llama.why_not:
            times[llama_cpp.PEER].append(llama.seconds(kind, tokens=TOKENS, context=qwen3.CONTEXT))
    what = f"{what}, C++ int{bits} decode at {qwen3.CONTEXT}"
    note = f"{kind}, the vocabulary too"
    return [
        timed_row(what, times, bar, "ms", peer="bf16"),
        llama_row(what, times, LLAMA_DECODE_BAR, llama, note),
    ]


def prefill_rows(
    what: str, folder: Path, eager: qwen3.Decoder, llama: llama_cpp.Models, length: int
) -> list[Row]:
    """The time to the first token, against eager and llama.cpp."""
    prompt = torch.randint(qwen3.VOCABULARY, (1, length))

    def run() -> None:
        eager.run(input_ids=prompt, past_key_values=eager.make_cache(), use_cache=True, logits_to_keep=1)

    times: Times = {"hetero": [], "eager": [], llama_cpp.PEER: []}
    run()
    for _ in range(ROUNDS):
        times["hetero"].append(
            run_program(folder, prompt_tokens=length, tokens=1, step_tokens=length)["prefill_ms"] / 1e3
        )
        times["eager"].append(seconds_of(run, 3))
        if not llama.why_not:
            times[llama_cpp.PEER].append(llama.seconds("BF16", prompt=length))
    what = f"{what}, C++ prefill of {length:,}"
    return [timed_row(what, times, PREFILL_BAR, "ms"), llama_row(what, times, LLAMA_PREFILL_BAR, llama)]


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
    shape = "Qwen3-0.6B shape" + (f" CUT TO {depth} LAYERS" if depth != qwen3.FULL_DEPTH else "")
    what = f"{shape} bf16"
    model = qwen3.build(depth)
    with tempfile.TemporaryDirectory() as made, torch.no_grad():
        folder = qwen3_checkpoints.write(Path(made), model)
        llama = llama_cpp.Models(model, Path(made))
        eager = qwen3.Decoder(model, "cpu")
        rows = [row for context in CONTEXTS for row in decode_rows(what, folder, eager, llama, context)]
        rows += [row for length in PREFILL for row in prefill_rows(what, folder, eager, llama, length)]
        rows += [row for bits in QUANTIZED for row in quantized_rows(shape, folder, llama, bits)]
        return [*rows, requests_row(what, folder)]


if __name__ == "__main__":
    main(measure)
