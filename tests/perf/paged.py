"""Attention over a KV cache in pages: a step of decoding against one read of the same bytes and against eager.

16 heads of queries on 8 of keys, 128 elements, bfloat16, pages of 16 tokens in a random order. The operator runs on the
CPU's tensors, so that the kernel alone is timed. Each call takes the next of several caches, so that none is in a core's
own caches. Eager is `scaled_dot_product_attention` over the same keys side by side, one sequence.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention

from tests.perf.measure import Row, alternate, main, timed_row

HEADS, KV_HEADS, SIZE, PAGE = 16, 8, 128, 16
# Tokens of all caches together: 256 MiB.
TOKENS = 1 << 16
READ_BAR, EAGER_BAR, CHUNK_BAR = 1.15, 1.0, 1.0
CHUNK = 256


class Caches:
    """Caches of `context` tokens each, in pages that are shuffled among all of them."""

    def __init__(self, context: int, dtype: torch.dtype) -> None:
        blocks = -(-context // PAGE)
        self.count = max(1, TOKENS // context)
        pages = torch.randn(self.count * blocks, 2, KV_HEADS, PAGE, SIZE)
        self.scales: dict[str, torch.Tensor] = {}
        if dtype == torch.int8:
            scales = pages.abs().amax(-1) / 127
            self.scales = {"key_scales": scales[:, 0], "value_scales": scales[:, 1]}
            pages = (pages / scales[..., None]).round()
        self.pages = pages.to(dtype)
        self.sides = self.pages[:, 0], self.pages[:, 1]
        tables = torch.randperm(self.count * blocks).to(torch.int32).view(self.count, 1, blocks)
        self.turn = itertools.cycle(tables.unbind())
        self.lengths = torch.tensor([context], dtype=torch.int32)

    def attend(self, query: torch.Tensor) -> torch.Tensor:
        keys, values = self.sides
        return torch.ops.hetero.paged_attention(query, keys, values, next(self.turn), self.lengths, **self.scales)

    def reader(self) -> Callable[[], object]:
        """A call that sums the bytes of one cache as float32, which is as fast as PyTorch reads memory."""
        turn = itertools.cycle(self.pages.view(self.count, -1).view(torch.float32).unbind())
        return lambda: next(turn).sum()


def dense(context: int, queries: int) -> Callable[[], object]:
    """Eager's attention over keys side by side."""
    count = max(1, TOKENS // context)
    keys, values = torch.randn(2, count, 1, KV_HEADS, context, SIZE).bfloat16()
    query = torch.randn(1, HEADS, queries, SIZE).bfloat16()
    turn = itertools.cycle(zip(keys, values, strict=True))
    return lambda: scaled_dot_product_attention(query, *next(turn), enable_gqa=True)


def decode_rows(context: int) -> list[Row]:
    query = torch.randn(1, HEADS, SIZE).bfloat16()
    what = f"paged attention, a step at context {context:,}"
    caches = Caches(context, torch.bfloat16)
    subjects = {"hetero": lambda: caches.attend(query), "read": caches.reader(), "eager": dense(context, 1)}
    times = alternate(subjects, calls=max(1, 4096 // context), rounds=201)
    size = 2 * KV_HEADS * SIZE * 2 * context
    note = f"{size / 2**20:.2f} MiB, at {size / min(times['hetero']) / 1e9:.1f} GB/s at best"
    rows = [
        timed_row(what, times, READ_BAR, "us", peer="read", note=note),
        timed_row(what, times, EAGER_BAR, "us", peer="eager"),
    ]
    for dtype in (torch.int8, torch.float8_e4m3fn):
        small = Caches(context, dtype)
        subjects = {"hetero": lambda small=small: small.attend(query), "bfloat16": lambda: caches.attend(query)}
        times = alternate(subjects, calls=max(1, 4096 // context), rounds=101)
        rows.append(timed_row(f"{what}, {str(dtype)[6:]}", times, 1.0, "us", peer="bfloat16"))
    return rows


def chunk_row(context: int) -> Row:
    """A chunk of a prompt at the end of a context; eager gets no mask, so it computes a little more."""
    query = torch.randn(1, CHUNK, HEADS, SIZE).bfloat16()
    caches = Caches(context, torch.bfloat16)
    subjects = {"hetero": lambda: caches.attend(query), "eager": dense(context, CHUNK)}
    times = alternate(subjects, rounds=41)
    return timed_row(f"paged attention, {CHUNK} queries at context {context:,}", times, CHUNK_BAR, "ms")


@torch.no_grad()
def measure() -> list[Row]:
    """Rows for contexts of 64, 2,048 and 16,384 tokens, and for a chunk of a prompt."""
    rows = []
    for context in (64, 2048, 16384):
        rows += decode_rows(context)
    return [*rows, chunk_row(2048)]


if __name__ == "__main__":
    main(measure)
