"""What a store of keys and values costs where no prompt comes again: time added to generation.

``python -m tests.perf.kv_no_reuse`` generates from prompts that are all different, in turns without and with a store.
Ratios are of neighbours, so a loaded machine counts for both. A new store has memory that was never touched: its first
prompts are printed apart from those that come when all of it was used.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from transformers import DynamicCache

from torch_hetero import kv
from torch_hetero.kv.demo import make_model


def generate(model: torch.nn.Module, store: kv.Store | None, prompt: torch.Tensor, new: int) -> float:
    """Returns the seconds of one prompt; what is kept counts until host memory has it."""
    begin = time.perf_counter()
    cache = DynamicCache(config=model.config) if store is None else store.load(prompt, model.config)
    output = model.generate(prompt, past_key_values=cache, max_new_tokens=new, do_sample=False)
    if store is not None:
        store.save(output[0], cache).wait()
    return time.perf_counter() - begin


def main() -> None:
    """Prints the added time of a new store and of a used one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--new", type=int, default=32)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--idle", type=float, default=0.0, help="seconds between opening a store and its first prompt")
    arguments = parser.parse_args()
    model = make_model(arguments.layers, "cpu")
    spec = kv.Spec.from_model(model)
    random = torch.Generator().manual_seed(1)

    def prompt() -> torch.Tensor:
        return torch.randint(32000, (1, arguments.tokens), generator=random)

    def added(store: kv.Store) -> float:
        ratios = []
        for _ in range(arguments.prompts):
            without = generate(model, None, prompt(), arguments.new)
            ratios.append(generate(model, store, prompt(), arguments.new) / without)
        return statistics.median(ratios) - 1

    with torch.no_grad():
        generate(model, None, prompt(), arguments.new)
        blocks = -(-(arguments.tokens + arguments.new) // spec.block_tokens)
        probe = kv.Store(spec, cpu="64MiB")
        store = kv.Store(spec, cpu=arguments.prompts * blocks * probe.block_bytes)
        time.sleep(arguments.idle)
        print(f"time added by a store of {arguments.prompts * blocks * probe.block_bytes / 2**20:.0f} MiB: "
              f"new {100 * added(store):.1f} %", end="", flush=True)
        print(f", all of it used {100 * added(store):.1f} %")


if __name__ == "__main__":
    main()
