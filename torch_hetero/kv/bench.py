"""``python -m torch_hetero.kv bench``: reads of a store from its disk, checksums on, against fio on the same file."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import time
from pathlib import Path

import torch

from torch_hetero.kv.spec import Spec
from torch_hetero.kv.store import Store

ROUNDS = 3


def spec_of(name: str, layers: int, kv_heads: int, head_size: int) -> Spec:
    """Returns a specification of the bench."""
    return Spec(model=f"bench {name}", revision="1", dtype=torch.bfloat16, layers=layers, kv_heads=kv_heads, head_size=head_size)


SPECS = {
    "1.75 MiB (Qwen3-0.6B)": (28, 8, 128),
    "128 KiB": (2, 8, 128),
}


def drop_cache(path: Path) -> None:
    """Asks the system to forget what it has of a file; reads with O_DIRECT do not need it."""
    import os

    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def fio(path: Path, block: int, size: int) -> float | None:
    """Returns bytes a second of random reads by fio, or None where there is none."""
    program = shutil.which("fio")
    if program is None:
        return None
    command = [program, "--name=read", f"--filename={path}", "--rw=randread", f"--bs={block}", "--iodepth=16",
               "--ioengine=io_uring", "--direct=1", f"--size={size}", "--readonly", "--output-format=json", "--norandommap=0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return None
    return float(json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]["read"]["bw_bytes"])


def run(folder: Path, gib: float) -> int:
    """Prints the figures; returns the exit status."""
    folder = folder / "hetero-kv-bench"
    try:
        print(f"{'block':<24}{'store, GB/s':>14}{'fio, GB/s':>12}{'ratio':>8}   reopen")
        for name, (layers, heads, size) in SPECS.items():
            row(folder, name, spec_of(name, layers, heads, size), int(gib * 2**30))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def row(folder: Path, name: str, spec: Spec, total: int) -> None:
    """Writes blocks, and reads them all in a random order, in turns with fio."""
    pages = 64
    shape = (pages, spec.kv_heads, spec.block_tokens, spec.head_size)
    keys, values = ([torch.randn(shape).to(spec.dtype) for _ in range(spec.layers)] for _ in range(2))
    options = {"dir": str(folder), "size": total + 2**20}
    with_ssd = Store(spec, cpu="256MiB", ssd=options)
    block = with_ssd.block_bytes
    prompts = []
    for number in range(max(1, total // block // pages)):
        tokens = torch.arange(pages * spec.block_tokens) + number * 100_000
        with_ssd.put(tokens, keys, values).wait_completely()
        prompts.append(tokens)
    with_ssd.sync()
    del with_ssd
    rates, peers, reopen = [], [], []
    data = next(path for path in folder.rglob("*") if path.is_file() and path.name != "index" and path.stat().st_size > block)
    for _ in range(ROUNDS):
        drop_cache(data)
        begin = time.perf_counter()
        # Room for all, so that each block is read once.
        store = Store(spec, cpu=total + 64 * block, ssd=options)
        reopen.append(time.perf_counter() - begin)
        matches = [store.match(tokens) for tokens in prompts]
        begin = time.perf_counter()
        requests = [store.prefetch(match) for match in matches]
        blocks = sum(request.wait() for request in requests) // spec.block_tokens
        rates.append(blocks * block / (time.perf_counter() - begin))
        for match in matches:
            match.close()
        del store
        peer = fio(data, block, min(total, data.stat().st_size // block * block))
        if peer is not None:
            peers.append(peer)
    rate = statistics.median(rates)
    peer_text = f"{statistics.median(peers) / 1e9:12.2f}{rate / statistics.median(peers):8.2f}" if peers else f"{'none':>12}{'':>8}"
    print(f"{name:<24}{rate / 1e9:14.2f}{peer_text}   {statistics.median(reopen) * 1e3:.0f} ms")
