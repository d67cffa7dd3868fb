"""``python -m torch_hetero.kv demo`` (``make kv-demo``): a long shared prompt, cold, warm, and after a restart.

The model has Qwen3-0.6B's shape and random weights, so its text means nothing. It shows the time to the first
token of a prompt: computed; with keys and values from host memory; and from the disk, in a new process.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch


def make_model(layers: int, device: str) -> torch.nn.Module:
    """Returns a model of Qwen3-0.6B's shape, always with the same weights."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(hidden_size=1024, intermediate_size=3072, num_hidden_layers=layers, num_attention_heads=16,
                         num_key_value_heads=8, head_dim=128, vocab_size=32000, tie_word_embeddings=True, eos_token_id=None,
                         max_position_embeddings=40960)
    return Qwen3ForCausalLM(config).to(torch.bfloat16).eval().to(device)


def first_token(model: torch.nn.Module, store: object, prompt: torch.Tensor) -> tuple[float, int, int]:
    """Returns the seconds to the first token, the token, and how many tokens of the prompt were known."""
    begin = time.perf_counter()
    with torch.no_grad():
        cache = store.load(prompt, model.config)  # type: ignore[attr-defined]
        known = cache.get_seq_length()
        output = model.generate(prompt, past_key_values=cache, max_new_tokens=1, do_sample=False)
        token = int(output[0, -1])
    seconds = time.perf_counter() - begin
    store.save(output[0], cache).wait_completely()  # type: ignore[attr-defined]
    return seconds, token, known


def serve(folder: str, tokens: int, layers: int, device: str, rounds: int) -> None:
    """Answers the shared prompt with questions of its own, and prints a line for each."""
    from torch_hetero import kv

    model = make_model(layers, device)
    spec = kv.Spec.from_model(model)
    store = kv.Store(spec, cpu="4GiB", ssd={"dir": folder, "size": "8GiB"})
    shared = torch.randint(32000, (1, tokens), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():  # plans for a prompt's end are made before
        model.generate(shared[:, :8].to(device), max_new_tokens=1, do_sample=False)
    for question in range(rounds):
        own = torch.randint(32000, (1, 16), generator=torch.Generator().manual_seed(2 + question))
        prompt = torch.cat([shared, own], 1).to(device)
        seconds, token, known = first_token(model, store, prompt)
        by = store.stats()
        source = "computed" if known == 0 else "from the disk" if by["blocks_from_disk"] and question == 0 else "from host memory"
        print(f"  question {question + 1}: {seconds * 1e3:8.0f} ms to the first token, {known:5} of {prompt.shape[1]} tokens known, {source}", flush=True)


def run(arguments: argparse.Namespace) -> int:
    """Runs two processes, one after the other, on one folder."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or temporary
        for number, title in enumerate(("A process that has seen nothing", "A new process")):
            print(f"{title}:", flush=True)
            code = (f"from torch_hetero.kv import demo; demo.serve({str(Path(folder))!r}, {arguments.tokens}, {arguments.layers}, "
                    f"{arguments.device!r}, {3 - number})")
            if subprocess.run([sys.executable, "-c", code], check=False).returncode != 0:
                return 1
    return 0
