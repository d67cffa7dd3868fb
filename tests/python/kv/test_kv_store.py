"""The store of keys and values: what was put comes back, from every tier, in every kind of tensor."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import mmap
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers import DEVICE, ROOT, needs_hetero, run_python_ok

if DEVICE == "hetero":
    from torch_hetero import _C, kv

pytestmark = needs_hetero

BLOCK = 4  # tokens


def spec(**fields: object) -> kv.Spec:
    return kv.Spec(**({"model": "test", "revision": "1", "dtype": torch.bfloat16, "layers": 3, "kv_heads": 2, "head_size": 8,
                       "block_tokens": BLOCK} | fields))


def caches(blocks: int, kind: str = "pages", device: str = "cpu", dtype: torch.dtype = torch.bfloat16) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    shape = {"pages": (blocks, 2, BLOCK, 8), "sequence": (2, blocks * BLOCK, 8), "batch": (1, 2, blocks * BLOCK, 8)}[kind]
    return tuple([torch.randn(shape).to(dtype).to(device) for _ in range(3)] for _ in range(2))  # type: ignore[return-value]


def as_pages(sides: tuple[list[torch.Tensor], ...], kind: str) -> list[torch.Tensor]:
    flat = [t.cpu() for side in sides for t in side]
    if kind == "pages":
        return flat
    return [t.reshape(2, -1, BLOCK, 8).transpose(0, 1).contiguous() for t in flat]


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.randint(50000, (40,), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("device", ("cpu", "hetero"))
@pytest.mark.parametrize("kind", ("pages", "sequence", "batch"))
def test_what_was_put_comes_back_into_tensors_of_each_layout(kind: str, device: str, tokens: torch.Tensor) -> None:
    store = kv.Store(spec(), cpu="8MiB")
    source = caches(10, kind, device)
    assert store.put(tokens, *source).wait() == 40
    for other in ("pages", "sequence", "batch"):
        target = caches(10, other, device)
        with store.match(tokens) as match:
            assert (match.tokens, match.by_tier) == (40, {"cpu": 10, "ssd": 0, "remote": 0})
            request = store.get(match, *target, layer_granularity=1)
            for layer in range(3):
                request.wait_layer(layer)
            assert request.wait() == 40
        for one, expected in zip(as_pages(target, other), as_pages(source, kind), strict=True):
            assert torch.equal(one, expected)


def test_tensors_that_were_only_recorded_are_computed_first(tokens: torch.Tensor) -> None:
    store = kv.Store(spec(), cpu="8MiB")
    keys, values = caches(10, "pages", "hetero")
    doubled = [k * 2 for k in keys]
    store.put(tokens, doubled, values).wait()
    target = caches(10, "pages", "hetero")
    store.get(store.match(tokens), *target).wait()
    after = [t + 1 for t in target[0]]
    for one, expected in zip(after, keys, strict=True):
        assert torch.equal(one.cpu(), expected.cpu() * 2 + 1)


@pytest.mark.parametrize("kind", ("pages", "sequence", "batch"))
def test_by_way_of_host_memory_only_the_blocks_that_are_asked_for_are_touched(
    kind: str, tokens: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As for CUDA, on a machine without it.
    monkeypatch.setattr("torch_hetero.kv.store._on_host", lambda tensor: False)
    store = kv.Store(spec(), cpu="8MiB")
    source = caches(12, kind)
    assert store.put(tokens, *source, blocks=range(2, 12)).wait() == 40
    target = [[torch.full_like(t, 7).requires_grad_() for t in side] for side in caches(20, kind)]
    with store.match(tokens) as match:
        request = store.get(match, *target, blocks=range(6, 14), first_block=2, layer_granularity=1)
        request.wait_layer(0)
        assert request.wait() == 40
        with pytest.raises(ValueError, match="20"):
            store.get(match, *target, blocks=range(11, 21))
        with pytest.raises(ValueError, match="same place"):
            store.get(match, *target, blocks=[0] * 10)
        assert store.get(match, *target, blocks=[], first_block=10).wait() == 40
    assert store.put(tokens[:3], *source).wait() == 0
    for one, expected in zip(as_pages(target, kind), as_pages(source, kind), strict=True):
        assert torch.equal(one[6:14], expected[4:12])
        assert (one[:6] == 7).all() and (one[14:] == 7).all()


def test_a_part_of_a_longer_sequence_of_one_block_and_pages_with_tokens_first() -> None:
    tokens = list(range(BLOCK))
    store = kv.Store(spec(), cpu="8MiB")
    source = [[t[:, :, :BLOCK] for t in side] for side in caches(5, "batch")]
    assert store.put(tokens, *source).wait() == BLOCK
    target = [[t[:, :, :BLOCK] for t in side] for side in caches(3, "batch")]
    assert store.get(store.match(tokens), *target).wait() == BLOCK
    assert all(torch.equal(a, b) for s, t in zip(source, target, strict=True) for a, b in zip(s, t, strict=True))
    other = kv.Store(spec(layout="tokens, heads, size"), cpu="8MiB")
    page = [[t.transpose(1, 2).contiguous() for t in side] for side in caches(1)]
    assert other.put(tokens, *page).wait() == BLOCK
    with pytest.raises(ValueError, match="pages"):
        other.put(tokens, *caches(1, "sequence"))


def test_blocks_go_where_they_are_wanted(tokens: torch.Tensor) -> None:
    store = kv.Store(spec(), cpu="8MiB")
    source = caches(12)
    store.put(tokens, *source, blocks=[11, 3, 5, 0, 1, 2, 4, 6, 7, 8]).wait()
    target = caches(20)
    match = store.match(tokens)
    store.get(match, *target, blocks=torch.tensor([19, 0]), first_block=8).wait()
    assert torch.equal(target[0][1][19], source[0][1][7])
    assert torch.equal(target[1][2][0], source[1][2][8])


def on_pages(blocks: int, size: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Tensors of three layers that begin at page borders."""
    shape = (blocks, 2, BLOCK, size)

    def layer() -> torch.Tensor:
        pages = torch.frombuffer(mmap.mmap(-1, 2 * math.prod(shape)), dtype=torch.bfloat16)
        return pages.view(shape).copy_(torch.randn(shape))

    return [layer() for _ in range(3)], [layer() for _ in range(3)]


def test_blocks_of_the_disk_are_read_past_host_memory_into_tensors_on_page_borders(
    tmp_path: Path, tokens: torch.Tensor
) -> None:
    wide = spec(head_size=4096 // (2 * BLOCK * 2))  # the keys of a block are a page
    source = on_pages(10, wide.head_size)
    kv.Store(wide, cpu="8MiB", ssd=str(tmp_path / "kv")).put(tokens, *source).wait_completely()
    gc.collect()
    store = kv.Store(wide, cpu="8MiB", ssd=str(tmp_path / "kv"))
    target = on_pages(10, wide.head_size)
    assert store.get(store.match(tokens), *target, past_host=True).wait() == 40
    assert all(torch.equal(a, b) for a, b in zip(source[0] + source[1], target[0] + target[1], strict=True))
    stats = store.stats()
    assert (stats["blocks_read_past_host"], stats["merged_copies"], stats["host_blocks_used"]) == (10, 0, 0)
    # Other tensors get theirs by way of host memory.
    shifted = [[torch.empty(t.numel() + 8, dtype=t.dtype)[8:].view(t.shape) for t in side] for side in target]
    assert store.get(store.match(tokens), *shifted, past_host=True).wait() == 40
    assert all(torch.equal(a, b) for a, b in zip(source[0] + source[1], shifted[0] + shifted[1], strict=True))
    assert store.stats()["blocks_read_past_host"] == 10


def test_a_prefix_of_the_disk_is_there_in_a_new_process(tmp_path: Path, tokens: torch.Tensor) -> None:
    code = f"""
import torch
from torch_hetero import kv
store = kv.Store(kv.Spec("test", "1", torch.bfloat16, 3, 2, 8, block_tokens={BLOCK}), cpu="8MiB", ssd={str(tmp_path / 'kv')!r})
torch.manual_seed(7)
sides = [[torch.randn(10, 2, {BLOCK}, 8).bfloat16() for _ in range(3)] for _ in range(2)]
tokens = torch.tensor({tokens.tolist()})
store.put(tokens, *sides).wait_completely()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    store = kv.Store(spec(), cpu="8MiB", ssd=f"dir={tmp_path / 'kv'},size=1GiB")
    target = caches(10)
    with store.match(tokens) as match:
        assert match.by_tier == {"cpu": 0, "ssd": 10, "remote": 0}
        assert store.get(match, *target).wait() == 40
    torch.manual_seed(7)
    for one in [t for side in target for t in side]:
        assert torch.equal(one, torch.randn(10, 2, BLOCK, 8).bfloat16())
    folder = next((tmp_path / "kv").iterdir())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in folder.iterdir())


def test_a_second_store_of_one_folder_is_refused(tmp_path: Path) -> None:
    first = kv.Store(spec(), cpu="8MiB", ssd=tmp_path)
    with pytest.raises(RuntimeError, match="another|already|in use"):
        kv.Store(spec(), cpu="8MiB", ssd=tmp_path)
    kv.Store(spec(namespace="other"), cpu="8MiB", ssd=tmp_path)
    del first
    kv.Store(spec(), cpu="8MiB", ssd=tmp_path)


def test_tenants_and_revisions_never_see_each_others_blocks(tmp_path: Path, tokens: torch.Tensor) -> None:
    kv.Store(spec(), cpu="8MiB", ssd=f"dir={tmp_path},size=1MiB", remote="memory:tenants").put(tokens, *caches(10)).wait_completely()
    for fields in ({"namespace": "b"}, {"revision": "2"}, {"adapter": "lora"}, {"model": "other"}, {"tensor_parallel_size": 2}):
        store = kv.Store(spec(**fields), cpu="8MiB", ssd=f"dir={tmp_path},size=1MiB", remote="memory:tenants")
        assert store.match(tokens).tokens == 0
        # Even where the other's files are put in its place.
        del store
    mine, other = (_C.kv_fingerprint(spec(**f).fields()) for f in ({}, {"namespace": "c"}))
    shutil.copytree(tmp_path / mine, tmp_path / other)
    with pytest.raises(RuntimeError):
        kv.Store(spec(namespace="c"), cpu="8MiB", ssd=f"dir={tmp_path},size=1MiB")


def test_stores_share_blocks_by_redis(tokens: torch.Tensor, tmp_path: Path) -> None:
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    socket = tmp_path / "redis.sock"
    server = subprocess.Popen(["redis-server", "--port", "0", "--unixsocket", str(socket), "--save", ""],
                              stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 20
        while not socket.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        source = caches(10)
        kv.Store(spec(), cpu="8MiB", remote=f"unix://{socket}").put(tokens, *source).wait_completely()
        store = kv.Store(spec(), cpu="8MiB", remote=f"unix://{socket}")
        assert store.match(tokens, remote=False).tokens == 0
        target = caches(10)
        with store.match(tokens) as match:
            assert match.by_tier["remote"] == 10
            assert store.get(match, *target).wait() == 40
        assert all(torch.equal(a, b) for s, t in zip(source, target, strict=True) for a, b in zip(s, t, strict=True))
        server.kill()
        server.wait()
        late = kv.Store(spec(), cpu="8MiB", remote=f"unix://{socket}", remote_timeout=0.5)
        assert late.match(tokens).tokens == 0
        assert late.put(tokens, *source).wait() == 40
    finally:
        server.kill()
        server.wait()


def test_damaged_blocks_are_missing_and_can_be_erased(tmp_path: Path, tokens: torch.Tensor) -> None:
    kv.Store(spec(), cpu="8MiB", ssd=tmp_path).put(tokens, *caches(10)).wait_completely()
    folder = next(tmp_path.iterdir())
    data = max(folder.iterdir(), key=lambda path: path.stat().st_size)
    with open(data, "r+b") as file:
        file.seek(4096 * 3 * 6 + 5)  # in the seventh block
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    seen = []
    assert len(_C.kv_verify(str(folder), False, lambda done, total: seen.append((done, total)))) == 1
    assert seen[-1] == (10, 10)
    store = kv.Store(spec(), cpu="8MiB", ssd=tmp_path)
    with store.match(tokens) as match:
        assert match.tokens == 40
        request = store.get(match, *caches(10))
        assert request.wait() <= 24
        with pytest.raises(RuntimeError):
            request.check()
    assert store.match(tokens).tokens <= 24
    del store, match, request
    done = subprocess.run([sys.executable, "-m", "torch_hetero.kv", "inspect", str(tmp_path), "--repair"], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "blocks of 4 tokens" in done.stdout and "test" in done.stdout


def test_wrong_arguments_are_refused_in_one_sentence(tokens: torch.Tensor) -> None:
    store = kv.Store(spec(), cpu="8MiB")
    store.put(tokens, *caches(10)).wait()
    match = store.match(tokens)
    with pytest.raises(ValueError, match="torch.bfloat16"):
        store.get(match, *caches(10, dtype=torch.float16))
    with pytest.raises(ValueError, match="bytes"):
        store.get(match, *([t[:, :1] for t in side] for side in caches(10)))
    with pytest.raises(ValueError):
        store.get(match, *caches(5))
    with pytest.raises(ValueError):
        store.get(match, caches(10)[0][:2], caches(10)[1][:2])
    with pytest.raises(ValueError, match=r"2\^31"):
        store.match(torch.tensor([-1] * 8))
    with pytest.raises(ValueError, match=r"2\^31"):
        store.match([2**31] * 8)
    with pytest.raises(TypeError, match="integers"):
        store.match(torch.ones(8))
    with pytest.raises(TypeError, match="integers"):
        store.match([1.5] * 8)
    assert store.match([]).tokens == 0
    for options in ({"cpu": "1 elephant"}, {"ssd": "dir=/tmp,colour=red"}, {"policy": "mru"}, {"durability": "perhaps"},
                    {"remote": "gopher://x"}, {"cpu": 10}):
        with pytest.raises(ValueError):
            kv.Store(spec(), **({"cpu": "8MiB"} | options))
    match.close()
    with pytest.raises(ValueError, match="closed"):
        store.get(match, *caches(10))


def test_a_folder_that_cannot_be_used_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises((RuntimeError, OSError)):
        kv.Store(spec(), cpu="8MiB", ssd=file)
    store = kv.Store(spec(), cpu="8MiB", ssd=tmp_path / "kv")
    folder = next((tmp_path / "kv").iterdir())
    del store
    index = folder / "index"
    index.write_bytes(b"not an index" * 100)
    with pytest.raises(RuntimeError, match="index") as error:
        kv.Store(spec(), cpu="8MiB", ssd=tmp_path / "kv")
    assert str(error.value).count("\n") == 0 or "Exception raised" in str(error.value)


def test_a_request_can_be_awaited_and_cancelled(tokens: torch.Tensor) -> None:
    store = kv.Store(spec(), cpu="8MiB")

    async def work() -> int:
        await store.put(tokens, *caches(10))
        return await store.get(store.match(tokens), *caches(10))

    assert asyncio.run(work()) == 40
    request = store.prefetch(store.match(tokens))
    request.cancel()
    request.wait()
    assert request.done and "digraph" in request.dump_graph()


def test_a_child_of_a_fork_neither_uses_nor_closes_the_store_of_its_parent(tokens: torch.Tensor, tmp_path: Path) -> None:
    code = f"""
import os, signal, torch
from torch_hetero import kv
store = kv.Store(kv.Spec("test", "1", torch.bfloat16, 3, 2, 8, block_tokens={BLOCK}), cpu="8MiB", ssd={str(tmp_path)!r}, remote="memory:")
sides = [[torch.randn(10, 2, {BLOCK}, 8).bfloat16() for _ in range(3)] for _ in range(2)]
request = store.put(list(range(40)), *sides)
match = store.match(list(range(40)))
if os.fork() == 0:
    signal.alarm(20)
    refused = 0
    for use in (lambda: store.match([1] * 8), store.stats, store.reset, request.wait):
        try:
            use()
        except RuntimeError as error:
            refused += "parent" in str(error)
    match.close()
    del request, store, match
    os._exit(0 if refused == 4 else 1)
_, status = os.wait()
assert status == 0, status
assert request.wait() == 40
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


def test_transfers_are_drawn_by_type(tokens: torch.Tensor, tmp_path: Path) -> None:
    store = kv.Store(spec(), cpu="8MiB", ssd=tmp_path / "kv")
    put = store.put(tokens, *caches(10))
    put.wait_completely()
    get = store.get(store.match(tokens), *caches(10))
    get.wait()
    kv.save_trace([put, get], tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["args"]["name"] for event in events if event["ph"] == "M"} == {"D2H", "H2DISK", "H2D"}
    assert sum(event["args"]["blocks"] for event in events if event["ph"] == "X") == 30
    assert all(event["dur"] >= 0 for event in events if event["ph"] == "X")


def test_a_report_shows_the_transfers_of_all_open_stores(tokens: torch.Tensor, tmp_path: Path) -> None:
    store = kv.Store(spec(), cpu="8MiB", ssd=tmp_path / "kv")
    put = store.put(tokens, *caches(10))
    put.wait_completely()
    request = store.get(store.match(tokens), *caches(10), layer_granularity=1)
    request.wait()
    store.wait_idle()
    rows = store.timeline()
    assert rows == put.timeline() + request.timeline()
    store.report(tmp_path / "store.html")
    assert rows == transfers_of(tmp_path / "store.html")
    kv.save_trace([store], tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == len(rows)
    # The page of programs has them, of each store, and goes without programs.
    other = kv.Store(spec(model="other"), cpu="8MiB")
    other.put(tokens, *caches(10)).wait_completely()
    other.wait_idle()
    torch.hetero._C.clear_program_log()
    torch.hetero.report(tmp_path / "all.html")
    shown = transfers_of(tmp_path / "all.html")
    assert len(shown) == len(rows) + len(other.timeline())
    assert {str(row["store"])[:-4] for row in shown} == {"test", "other"}
    del store, other, put, request
    gc.collect()
    with pytest.raises(RuntimeError, match="no programs were kept"):
        torch.hetero.report(tmp_path / "none.html")


def transfers_of(page: Path) -> list[dict[str, object]]:
    data = re.search(r'<script type="application/json" id="data">(.*)</script>', page.read_text())
    assert data is not None
    return json.loads(data[1])["transfers"]


def test_the_timeline_of_a_store_is_bounded(tokens: torch.Tensor) -> None:
    store = kv.Store(spec(), cpu="8MiB")
    target = caches(10)
    store.put(tokens, *target).wait()
    with store.match(tokens) as match:
        for _ in range(2800):  # 3 transfers each
            store.get(match, *target, layer_granularity=1).wait()
    store.wait_idle()
    rows = store.timeline()
    assert len(rows) == 8192
    assert rows[-1]["graph"] - rows[0]["graph"] == 8192 // 3


def test_counters_are_told_to_people_and_to_prometheus(tokens: torch.Tensor) -> None:
    store = kv.Store(spec(), cpu="8MiB")
    store.put(tokens, *caches(10)).wait()
    store.get(store.match(tokens), *caches(10)).wait()
    stats = store.stats()
    assert (stats["puts"], stats["gets"], stats["blocks_stored"], stats["blocks_from_host"]) == (1, 1, 10, 10)
    assert "hetero_kv_blocks_from_host 10" in store.metrics()
    # Each figure says what it is, and the program knows no other.
    assert set(_C.kv_counter_texts()) | {"disk_engine", "disk_unregistered"} == set(stats)
    assert "# HELP hetero_kv_disk_slots_used slots of the disk that have blocks\n" in store.metrics()
    store.reset()
    assert store.stats()["host_blocks_used"] == 0


@pytest.fixture(scope="module")
def model() -> Iterator[torch.nn.Module]:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                         head_dim=16, vocab_size=200, eos_token_id=None)
    yield Qwen3ForCausalLM(config).eval()


@pytest.mark.parametrize("device", ("cpu", "hetero"))
def test_a_model_of_transformers_computes_only_what_is_new(model: torch.nn.Module, tmp_path: Path, device: str) -> None:
    model = model.to(device)
    prompt = torch.randint(200, (1, 70), generator=torch.Generator().manual_seed(1)).to(device)
    expected = model.generate(prompt, max_new_tokens=6, do_sample=False)
    for round_number, known in enumerate((0, 64, 64)):
        store = kv.Store(kv.Spec.from_model(model), cpu="64MiB", ssd=tmp_path)
        cache = store.load(prompt, model.config)
        assert cache.get_seq_length() == known
        output = model.generate(prompt, past_key_values=cache, max_new_tokens=6, do_sample=False)
        assert torch.equal(output.cpu(), expected.cpu()), round_number
        store.save(output[0], cache).wait_completely()
        del store
    # What was generated is known too.
    store = kv.Store(kv.Spec.from_model(model), cpu="64MiB", ssd=tmp_path)
    longer = torch.cat([output, prompt[:, :10]], 1)
    assert store.match(longer[0].cpu()).tokens == 64
    with pytest.raises(ValueError, match="one prompt"):
        store.load(torch.cat([prompt, prompt]), model.config)


def test_other_weights_are_another_revision(model: torch.nn.Module) -> None:
    before = kv.Spec.from_model(model)
    assert kv.Spec.from_model(model) == before
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight.mul_(2)
    assert kv.Spec.from_model(model).revision != before.revision


def test_gathering_and_scattering_blocks_are_inverse_also_when_compiled() -> None:
    keys, values = caches(6, dtype=torch.float32)
    blocks = torch.tensor([4, 0, 5])
    gathered = torch.ops.hetero.kv_gather(keys, values, blocks)
    assert gathered.shape == (3, 3, 2, 2, BLOCK, 8)
    assert torch.equal(gathered[0, 1, 0], keys[1][4]) and torch.equal(gathered[2, 2, 1], values[2][5])
    compiled = torch.compile(lambda k, v, b: torch.ops.hetero.kv_gather(k, v, b) * 2, backend="eager", fullgraph=True)
    assert torch.equal(compiled(keys, values, blocks), gathered * 2)
    new_keys, new_values = caches(6, dtype=torch.float32)
    torch.ops.hetero.kv_scatter(new_keys, new_values, blocks, gathered)
    assert torch.equal(new_keys[1][4], keys[1][4]) and torch.equal(new_values[2][5], values[2][5])


@pytest.mark.parametrize("number", (0, 1))
def test_the_examples_of_the_page_run(number: int, tmp_path: Path) -> None:
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "kv_store.md").read_text(), re.DOTALL)
    code = examples[number].replace("/tmp/kv-example", str(tmp_path))
    out = run_python_ok(code)
    promised = re.findall(r"print\(.*?\)\s+# (.*)", code)
    assert promised and out.splitlines() == promised


def test_the_trace_command_prints_hit_rates(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = ['{"timestamp": %d, "input_length": 1536, "output_length": 5, "hash_ids": [%d, %d, %d]}' % (i, 0, 1, i % 9 + 2)
             for i in range(50)]
    trace.write_text("\n".join(lines) + "\n")
    command = [sys.executable, "-m", "torch_hetero.kv", "trace", str(trace), "--blocks", "4", "100"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "50 requests, 150 blocks" in done.stdout and "arc" in done.stdout
    trace.write_text("nonsense\n")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "1" in done.stderr and done.stderr.count("\n") == 1
