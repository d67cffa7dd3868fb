"""A decoder in the shape of Qwen3-0.6B, bf16, random weights: decoding at context 64 and 2,048, prefill of 64 and 256.

It is uncompiled code of transformers with its DynamicCache, called as `generate` calls it: logits of the last
position, argmax, and the token is read, so a step cannot begin before the one before has ended. The cache grows by a
position a step. `--depth N` takes N layers instead of 28; such rows say so and are not those of the table.
"""

from __future__ import annotations

import gc
import os
import statistics
from collections.abc import Callable

import torch
from torch import nn

from tests.perf import peers
from tests.perf.measure import DEPTH, DEVICE, Row, alternate, flush, main, missing, timed_row, with_peers
from tests.perf.memory import arena_row, peak_row

FULL_DEPTH = 28
VOCABULARY = 151936
CONTEXT = 64
LONG_CONTEXT = 2048
PREFILL = (64, 256)
DECODE_BAR, READ_BAR, PREFILL_BAR, INDUCTOR_BAR = 0.5, 1.35, 0.85, 1.0


def build(depth: int) -> nn.Module:
    """The model on CPU, its weights normal numbers of small variance.

    Takes a second, as nothing is initialized twice.
    """
    import transformers
    from transformers.initialization import no_init_weights

    config = transformers.Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=depth,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=True,
        max_position_embeddings=40960,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        dtype=torch.bfloat16,
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with no_init_weights():
            model = transformers.Qwen3ForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    model.tie_weights()
    tile = torch.randn(2**20).mul_(0.02).to(torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.fill_(1.0)
                continue
            flat = parameter.view(-1)
            for start in range(0, flat.numel(), tile.numel()):
                part = flat[start : start + tile.numel()]
                part.copy_(tile[: part.numel()])
    return model.eval()


class Decoder:
    """A model, called as generation calls it, with a cache that starts with CONTEXT tokens."""

    def __init__(self, model: nn.Module, device: str, run: Callable[..., object] | None = None) -> None:
        from transformers import DynamicCache

        self.config = model.config
        self.make_cache = lambda: DynamicCache(config=model.config)
        self.run = model if run is None else run
        self.device = device
        self.prompts = {length: torch.randint(VOCABULARY, (1, length)).to(device) for length in PREFILL}
        self.reset()

    def _next(self, tokens: torch.Tensor, cache: object) -> torch.Tensor:
        output = self.run(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
        token = output.logits[:, -1].argmax(-1, keepdim=True)
        token.tolist()
        return token

    def reset(self) -> None:
        """Begins again with CONTEXT tokens."""
        self.cache = self.make_cache()
        self.token = self._next(self.prompts[CONTEXT], self.cache)
        flush()

    def begin_long(self) -> None:
        """Begins with LONG_CONTEXT tokens whose keys and values are random, which takes no prefill."""
        self.cache = self.make_cache()
        sizes = (1, self.config.num_key_value_heads, LONG_CONTEXT, self.config.head_dim)
        for layer in range(self.config.num_hidden_layers):
            keys, values = (torch.randn(sizes).to(torch.bfloat16).to(self.device) for _ in range(2))
            self.cache.update(keys, values, layer)
        flush()

    def step(self) -> None:
        """Decodes one token."""
        self.token = self._next(self.token, self.cache)
        flush()

    def prefill(self, length: int) -> None:
        """Takes a prompt of `length` tokens to its first new token."""
        self._next(self.prompts[length], self.make_cache())
        flush()

    def held(self) -> list[torch.Tensor]:
        """The tensors of the cache, which a step replaces."""
        return [tensor for layer in self.cache.layers for tensor in (layer.keys, layer.values)]


def reader(model: nn.Module) -> tuple[Callable[[], object], int]:
    """A call that reads every weight of the model once with all threads, and how many bytes that is.

    It sums them as float32, two bf16 at a time, which is as fast as PyTorch reads memory.
    """
    weights = [weight.detach().view(-1).view(torch.float32) for weight in model.parameters() if weight.dim() > 1]
    return lambda: [weight.sum() for weight in weights], sum(weight.nbytes for weight in weights)


def decode_rows(what: str, decoders: dict[str, Decoder], model: nn.Module, compiling: float) -> list[Row]:
    """Decoding against eager, one read of the weights, and inductor; then memory."""
    read, size = reader(model)
    for decoder in decoders.values():
        decoder.reset()
    what = f"{what}, decode from context {CONTEXT}"
    subjects = {**{name: decoder.step for name, decoder in decoders.items()}, "weights": read}
    times = alternate(subjects, rounds=24, seconds=12.0)
    fastest = min(times["weights"])
    rows = [timed_row(what, times, DECODE_BAR, "ms")]
    note = f"{size / 2**20:,.0f} MiB, read at {size / fastest / 1e9:.1f} GB/s at best"
    against = Row(
        what,
        statistics.median(times["hetero"]) * 1e3,
        fastest * 1e3,
        READ_BAR,
        "ms",
        peer_name="one read of the weights",
        best=min(times["hetero"]) / fastest,
        rounds=len(times["weights"]),
        note=note,
    )
    rows += [against, inductor_row(what, times, compiling)]
    rows.append(step_peak_row(what, decoders, Decoder.reset))
    rows.append(arena_row(what, decoders["hetero"].step))
    return rows


def step_peak_row(what: str, decoders: dict[str, Decoder], begin: Callable[[Decoder], None]) -> Row:
    """The memory of the step that comes after `begin`."""
    there, here = decoders["hetero"], decoders["eager"]
    return peak_row(
        what,
        there.step,
        here.step,
        prepare_there=lambda: begin(there),
        prepare_here=lambda: begin(here),
        held=here.held,
    )


def long_decode_rows(what: str, decoders: dict[str, Decoder]) -> list[Row]:
    """Decoding with keys and values that are larger than what else a step reads but the weights."""
    what = f"{what}, decode from context {LONG_CONTEXT:,}"
    pair = {name: decoders[name] for name in ("hetero", "eager")}
    for decoder in pair.values():
        decoder.begin_long()
    times = alternate({name: decoder.step for name, decoder in pair.items()}, rounds=24, seconds=12.0)
    return [timed_row(what, times, DECODE_BAR, "ms"), step_peak_row(what, pair, Decoder.begin_long)]


def inductor_row(what: str, times: dict[str, list[float]], compiling: float) -> Row:
    """The row against inductor, or why there is none."""
    if "inductor" not in times:
        return missing(what, INDUCTOR_BAR, "ms", "needs --peers", peer_name="inductor")
    note = f"inductor compiled in {compiling:.1f} s in all"
    return timed_row(what, times, INDUCTOR_BAR, "ms", peer="inductor", note=note)


def prefill_rows(what: str, decoders: dict[str, Decoder], compiling: float) -> list[Row]:
    """Each length against eager and inductor, and its memory."""
    rows = []
    for length in PREFILL:
        name = f"{what}, prefill of {length}"
        calls = {who: lambda d=decoder, n=length: d.prefill(n) for who, decoder in decoders.items()}
        times = alternate(calls, warmup=2, seconds=10.0)
        rows += [timed_row(name, times, PREFILL_BAR, "ms"), inductor_row(name, times, compiling)]
        rows.append(peak_row(name, calls["hetero"], calls["eager"]))
        rows.append(arena_row(name, calls["hetero"]))
    return rows


def measure() -> list[Row]:
    """Rows of decoding and of two prefills."""
    depth = int(os.environ.get(DEPTH, FULL_DEPTH))
    what = "Qwen3-0.6B shape bf16" + (f" CUT TO {depth} LAYERS" if depth != FULL_DEPTH else "")
    here = build(depth)
    there = build(depth).to(DEVICE)
    gc.collect()
    compiling = 0.0
    with torch.no_grad():
        decoders = {"hetero": Decoder(there, DEVICE), "eager": Decoder(here, "cpu")}
        if with_peers():
            torch._dynamo.reset()

            def compile_and_run() -> None:
                decoders["inductor"] = Decoder(here, "cpu", torch.compile(here))
                for _ in range(3):  # the cache's length becomes a variable at the second
                    decoders["inductor"].step()
                decoders["inductor"].prefill(PREFILL[-1])

            compiling = peers.first_call(compile_and_run)
        return [
            *decode_rows(what, decoders, here, compiling),
            *long_decode_rows(what, decoders),
            *prefill_rows(what, decoders, compiling),
        ]


if __name__ == "__main__":
    main(measure)
