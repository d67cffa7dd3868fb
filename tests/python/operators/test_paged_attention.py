"""Attention over keys and values in pages: equal to attention over the same keys side by side, wherever it runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from counters import counting
from helpers import DEVICE, needs_hetero
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

paged_attention = torch.ops.hetero.paged_attention
paged_append_ = torch.ops.hetero.paged_append_

HEADS, KV_HEADS, SIZE, PAGE = 6, 2, 32, 8
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
# Keys and queries of each sequence: a page less one, a whole page, one more, nothing, a prompt, a long one.
LENGTHS = [(7, 1), (8, 1), (9, 1), (0, 0), (1, 1), (21, 21), (30, 4), (900, 1)]


class Cache:
    """Pages in a random order, keys and values as views of one tensor, and the sequences' keys side by side."""

    def __init__(self, keys: list[int], dtype: torch.dtype = torch.float32, device: str = DEVICE) -> None:
        blocks = max(1, max(-(-count // PAGE) for count in keys))
        pages = blocks * len(keys) + 2
        numbers = torch.randn(pages, 2, KV_HEADS, PAGE, SIZE)
        self.scales: torch.Tensor | None = None
        if dtype == torch.int8:
            self.scales = numbers.abs().amax(-1) / 127
            stored = (numbers / self.scales[..., None]).round().to(torch.int8)
            numbers = stored * self.scales[..., None]
        else:
            stored = numbers.to(dtype)
            numbers = stored.float()
        order = torch.randperm(pages).to(torch.int32)
        table = torch.full((len(keys), blocks), -1, dtype=torch.int32)
        for row, count in enumerate(keys):
            used = -(-count // PAGE)
            table[row, :used] = order[row * blocks : row * blocks + used]
        self.numbers, self.host_table, self.lengths_list = numbers, table, keys
        self.pages = stored.to(device)
        self.table = table.clone().to(device)
        self.lengths = torch.tensor(keys, dtype=torch.int32).to(device)

    @property
    def sides(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.pages[:, 0], self.pages[:, 1]

    @property
    def scale_arguments(self) -> dict[str, torch.Tensor]:
        if self.scales is None:
            return {}
        scales = self.scales.to(self.pages.device)
        return {"key_scales": scales[:, 0], "value_scales": scales[:, 1]}

    def gathered(self, sequence: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values of a sequence on the CPU, [kv_heads, keys, size]."""
        count = self.lengths_list[sequence]
        pages = self.host_table[sequence, : -(-count // PAGE)].long()
        rows = self.numbers[pages].permute(1, 2, 0, 3, 4).reshape(2, KV_HEADS, -1, SIZE)[:, :, :count]
        return rows[0], rows[1]


def expected(cache: Cache, queries: list[torch.Tensor], window: int = 0, sinks: int = 0) -> torch.Tensor:
    """PyTorch's attention over the gathered keys, in float32 on the CPU: [tokens, heads, size]."""
    results = []
    for sequence, query in enumerate(queries):
        keys, values = cache.gathered(sequence)
        count, total = query.size(0), keys.size(1)
        position = torch.arange(total - count, total)[:, None]
        key = torch.arange(total)[None]
        mask = key <= position
        if window:
            mask &= (key > position - window) | (key < sinks)
        out = scaled_dot_product_attention(
            query.float().transpose(0, 1)[None], keys[None], values[None], attn_mask=mask, enable_gqa=True
        )
        results.append(torch.nan_to_num(out[0].transpose(0, 1)) if total else query.float() * 0)
    return torch.cat(results)


def queries_of(lengths: list[tuple[int, int]], dtype: torch.dtype) -> list[torch.Tensor]:
    return [torch.randn(count, HEADS, SIZE).to(dtype) for _, count in lengths]


def starts_of(queries: list[torch.Tensor], device: str = DEVICE) -> torch.Tensor:
    counts = torch.tensor([0] + [query.size(0) for query in queries])
    return counts.cumsum(0).to(torch.int32).to(device)


def attend(cache: Cache, queries: list[torch.Tensor], **options: int) -> torch.Tensor:
    return paged_attention(
        torch.cat(queries).to(cache.pages.device),
        *cache.sides,
        cache.table,
        cache.lengths,
        query_starts=starts_of(queries, cache.pages.device),
        **options,
        **cache.scale_arguments,
    )


@pytest.mark.parametrize("stored", [None, torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("device", ["cpu", DEVICE])
def test_it_is_attention_over_the_same_keys_side_by_side(
    device: str, dtype: torch.dtype, stored: torch.dtype | None
) -> None:
    cache = Cache([keys for keys, _ in LENGTHS], stored or dtype, device)
    queries = queries_of(LENGTHS, dtype)
    out = attend(cache, queries)
    assert out.dtype == dtype and out.device.type == device and out.is_contiguous()
    torch.testing.assert_close(out.cpu().float(), expected(cache, queries), rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("sinks", [0, 3, 8, 50])
@pytest.mark.parametrize("window", [1, 8, 20, 5000])
def test_a_window_and_sinks_bound_what_is_read(window: int, sinks: int) -> None:
    cache = Cache([keys for keys, _ in LENGTHS])
    queries = queries_of(LENGTHS, torch.float32)
    out = attend(cache, queries, window=window, sinks=sinks)
    torch.testing.assert_close(out.cpu(), expected(cache, queries, window, sinks), rtol=0, atol=2e-5)


def test_one_query_each_needs_no_starts_and_padded_queries_are_padded_on_the_left() -> None:
    lengths = [17, 3, 40]
    cache = Cache(lengths)
    one = [torch.randn(1, HEADS, SIZE) for _ in lengths]
    out = paged_attention(torch.cat(one).to(DEVICE), *cache.sides, cache.table, cache.lengths)
    torch.testing.assert_close(out.cpu(), expected(cache, one), rtol=0, atol=2e-5)
    padded = torch.randn(3, 5, HEADS, SIZE)
    out = paged_attention(padded.to(DEVICE), *cache.sides, cache.table, cache.lengths)
    assert out.shape == padded.shape
    real = [padded[i, 5 - min(5, count) :] for i, count in enumerate(lengths)]
    got = torch.cat([out[i, 5 - min(5, count) :] for i, count in enumerate(lengths)])
    torch.testing.assert_close(got.cpu(), expected(cache, real), rtol=0, atol=2e-5)
    assert not out[1, :2].any()


def test_strided_queries_and_a_scale_are_taken() -> None:
    cache = Cache([20, 33])
    qkv = torch.randn(2, HEADS * SIZE * 2)
    query = qkv[:, HEADS * SIZE :].unflatten(1, (HEADS, SIZE))
    out = paged_attention(
        qkv.to(DEVICE)[:, HEADS * SIZE :].unflatten(1, (HEADS, SIZE)),
        *cache.sides,
        cache.table,
        cache.lengths,
        scale=2 * SIZE**-0.5,
    )
    wanted = expected(cache, [row[None] * 2 for row in query])
    torch.testing.assert_close(out.cpu(), wanted, rtol=0, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn])
def test_appended_keys_are_read_by_the_next_attention(dtype: torch.dtype) -> None:
    pages = torch.zeros(4, 2, KV_HEADS, PAGE, SIZE, dtype=dtype, device=DEVICE)
    scales = torch.zeros(4, 2, KV_HEADS, PAGE, device=DEVICE)
    options = {"key_scales": scales[:, 0], "value_scales": scales[:, 1]} if dtype == torch.int8 else {}
    table = torch.tensor([[3, 1, 0]], dtype=torch.int32, device=DEVICE)
    keys, values = torch.randn(2, 20, KV_HEADS, SIZE)
    torch.hetero.flush()
    # A prompt of 18 tokens, then two steps; one of the prompt's slots is left out and written later.
    slots = torch.tensor([int(table[0, i // PAGE]) * PAGE + i % PAGE for i in range(20)])
    first = slots[:18].clone()
    first[5] = -1
    paged_append_(pages[:, 0], pages[:, 1], keys[:18].to(DEVICE), values[:18].to(DEVICE), first.to(DEVICE), **options)
    late = [5, 18, 19]
    paged_append_(
        pages[:, 0], pages[:, 1], keys[late].to(DEVICE), values[late].to(DEVICE), slots[late].to(DEVICE), **options
    )
    query = torch.randn(1, HEADS, SIZE)
    lengths = torch.tensor([20], dtype=torch.int32, device=DEVICE)
    out = paged_attention(query.to(DEVICE), pages[:, 0], pages[:, 1], table, lengths, **options)
    wanted = scaled_dot_product_attention(
        query.transpose(0, 1)[None], keys.transpose(0, 1)[None], values.transpose(0, 1)[None], enable_gqa=True
    )[0].transpose(0, 1)
    atol = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.int8: 2e-2, torch.float8_e4m3fn: 0.15}[dtype]
    torch.testing.assert_close(out.cpu(), wanted, rtol=0, atol=atol)
    # The last page has 4 tokens, and nothing else was written.
    assert not pages[0, :, :, 4:].float().any() and not pages[2].float().any()
    if dtype == torch.float32:
        assert torch.equal(pages[0, 0, :, 3].cpu(), keys[19])


@needs_hetero
def test_calls_are_recorded_and_run_with_what_needs_them() -> None:
    cache = Cache([20, 33], torch.bfloat16)
    key = torch.randn(2, KV_HEADS, SIZE, dtype=torch.bfloat16, device=DEVICE)
    slots = torch.tensor([0, PAGE], device=DEVICE)
    query = torch.randn(2, HEADS, SIZE, dtype=torch.bfloat16, device=DEVICE)
    torch.hetero.flush()
    with counting() as seen:
        paged_append_(*cache.sides, key, key, slots)
        out = paged_attention(query, *cache.sides, cache.table, cache.lengths) + 1
    assert seen.boxed == 2 and seen.kernels == 0 and seen.flushes == {}
    assert out.float().cpu().isfinite().all()


@needs_hetero
def test_a_loop_of_steps_replays_its_plan() -> None:
    pages = torch.zeros(8, 2, KV_HEADS, PAGE, SIZE, device=DEVICE)
    table = torch.arange(8, dtype=torch.int32, device=DEVICE)[None]
    keys = torch.randn(40, KV_HEADS, SIZE)
    outs = []
    with counting() as seen:
        for i in range(40):
            key = keys[i : i + 1].to(DEVICE)
            paged_append_(pages[:, 0], pages[:, 1], key, key * 2, torch.tensor([i], device=DEVICE))
            length = torch.tensor([i + 1], dtype=torch.int32, device=DEVICE)
            query = key.repeat(1, HEADS // KV_HEADS, 1)
            outs.append(paged_attention(query, pages[:, 0], pages[:, 1], table, length).cpu())
    if torch.hetero.config.accelerator == "none":
        assert seen.plans_replayed >= 35
    query = keys.repeat(1, HEADS // KV_HEADS, 1).transpose(0, 1)[None]
    rows = keys.transpose(0, 1)[None]
    wanted = scaled_dot_product_attention(query, rows, rows * 2, is_causal=True, enable_gqa=True)[0].transpose(0, 1)
    torch.testing.assert_close(torch.cat(outs), wanted, rtol=0, atol=2e-5)


WRONG = {
    "page": (lambda c: c.table.__setitem__((1, 2), 99), "has page 99 for block 2 of sequence 1"),
    "negative page": (lambda c: c.table.__setitem__((0, 0), -1), "has page -1 for block 0 of sequence 0"),
    "length": (lambda c: c.lengths.__setitem__(0, 41), "sequence 0 has 41 keys"),
    "negative length": (lambda c: c.lengths.__setitem__(0, -3), "sequence 0 has -3 keys"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("device", ["cpu", DEVICE])
def test_pages_and_lengths_out_of_range_are_an_error_and_the_next_call_works(device: str, name: str) -> None:
    change, words = WRONG[name]
    cache = Cache([20, 33], device=device)
    query = torch.randn(2, HEADS, SIZE)
    right = cache.table.clone(), cache.lengths.clone()
    change(cache)
    with pytest.raises(IndexError, match=words):
        paged_attention(query.to(device), *cache.sides, cache.table, cache.lengths).cpu()
    out = paged_attention(query.to(device), *cache.sides, *right)
    torch.testing.assert_close(out.cpu(), expected(cache, [row[None] for row in query]), rtol=0, atol=2e-5)


@pytest.mark.parametrize("device", ["cpu", DEVICE])
def test_a_slot_out_of_range_writes_nothing(device: str) -> None:
    pages = torch.zeros(2, 2, KV_HEADS, PAGE, SIZE, device=device)
    key = torch.ones(2, KV_HEADS, SIZE, device=device)
    torch.hetero.flush()  # what exists keeps its bytes
    with pytest.raises(IndexError, match="token 1 has slot 16, and there are 16 slots"):
        paged_append_(pages[:, 0], pages[:, 1], key, key, torch.tensor([0, 16], device=device))
        pages.cpu()
    assert not pages.any()


@pytest.mark.parametrize("device", ["cpu", DEVICE])
def test_wrong_shapes_and_dtypes_are_errors_on_the_line(device: str) -> None:
    cache = Cache([20, 33], device=device)
    query = torch.randn(2, HEADS, SIZE, device=device)
    keys, values = cache.sides

    def refused(error: type[Exception], words: str, *args: torch.Tensor, **options: object) -> None:
        with pytest.raises(error, match=words):
            paged_attention(*args, **options)

    refused(RuntimeError, "no multiple", query[:, :5], keys, values, cache.table, cache.lengths)
    refused(RuntimeError, "have 32 elements", query[..., :16], keys, values, cache.table, cache.lengths)
    refused(TypeError, "query must be float32", query.double(), keys, values, cache.table, cache.lengths)
    refused(TypeError, "block_table must be int32", query, keys, values, cache.table.long(), cache.lengths)
    refused(RuntimeError, "several queries need query_starts", query[:1], keys, values, cache.table, cache.lengths)
    refused(RuntimeError, "block_table has 1 entries", query, keys, values, cache.table[:1], cache.lengths)
    refused(RuntimeError, "same sizes", query, keys, values[:1], cache.table, cache.lengths)
    spread = torch.zeros(*keys.shape[:3], 2 * SIZE, device=device)[..., ::2]
    refused(RuntimeError, "dense along", query, spread, spread, cache.table, cache.lengths)
    refused(RuntimeError, "cannot be negative", query, keys, values, cache.table, cache.lengths, window=-1)
    refused(RuntimeError, "key_scales are not for", query, keys, values, cache.table, cache.lengths, key_scales=query)
    whole = keys.to(torch.int8), values.to(torch.int8)
    refused(RuntimeError, "key_scales are needed", query, *whole, cache.table, cache.lengths)
    with pytest.raises(TypeError, match="slots must be int64"):
        paged_append_(keys, values, query[:, :2], query[:, :2], torch.zeros(2, dtype=torch.int32, device=device))
    with pytest.raises(RuntimeError, match="one for each of the 2 tokens"):
        paged_append_(keys, values, query[:, :2], query[:, :2], torch.zeros(3, dtype=torch.int64, device=device))


class Step(nn.Module):
    """A layer's step of decoding: projections, append, attention, projection."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(16, (HEADS + 2 * KV_HEADS) * SIZE)
        self.out = nn.Linear(HEADS * SIZE, 16)

    def forward(
        self, x: torch.Tensor, pages: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor, slots: torch.Tensor
    ) -> torch.Tensor:
        query, key, value = self.project(x).unflatten(-1, (-1, SIZE)).split([HEADS, KV_HEADS, KV_HEADS], -2)
        paged_append_(pages[:, 0], pages[:, 1], key, value, slots)
        return self.out(paged_attention(query, pages[:, 0], pages[:, 1], table, lengths).flatten(-2))


def step_arguments() -> tuple[torch.Tensor, ...]:
    torch.manual_seed(1)
    cache = Cache([20, 33], device="cpu")
    slots = [int(cache.table[row, (count - 1) // PAGE]) * PAGE + (count - 1) % PAGE for row, count in ((0, 20), (1, 33))]
    return torch.randn(2, 16), cache.pages, cache.table, cache.lengths, torch.tensor(slots)


@needs_hetero
@torch.no_grad()
def test_a_compiled_step_writes_its_pages() -> None:
    model, arguments = Step(), step_arguments()
    pages = arguments[1].clone()
    wanted = model(arguments[0], pages, *arguments[2:])
    compiled = torch.compile(model.to(DEVICE), backend="hetero", fullgraph=True)
    for _ in range(3):
        there = [argument.to(DEVICE) for argument in arguments]
        out = compiled(*there)
        torch.testing.assert_close(out.cpu(), wanted, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(there[1].cpu(), pages, rtol=1e-4, atol=1e-5)


@needs_hetero
@torch.no_grad()
def test_a_saved_step_writes_its_pages(tmp_path: Path) -> None:
    model, arguments = Step(), step_arguments()
    pages = arguments[1].clone()
    wanted = model(arguments[0], pages, *arguments[2:])
    program = torch.hetero.compile(model, arguments)
    program.save(tmp_path / "step.hetero")
    for step in (program, torch.hetero.load(tmp_path / "step.hetero")):
        there = [arguments[0], arguments[1].clone(), *arguments[2:]]
        for _ in range(2):
            torch.testing.assert_close(step(*there), wanted, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(there[1], pages, rtol=1e-4, atol=1e-5)
