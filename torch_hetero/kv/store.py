"""The store: what is known of a prompt comes back, and what was computed is kept."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import weakref
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torch_hetero import _C
from torch_hetero.kv.spec import HEADS_FIRST, Spec
from torch_hetero.report import Transfer, write_report
from torch_hetero.report.log import add_transfers

if TYPE_CHECKING:
    from transformers import DynamicCache, PreTrainedConfig

_UNITS = {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "b": 1, "": 1}


def size_of(value: int | str) -> int:
    """Returns bytes: a number, or text such as "8GiB"."""
    if isinstance(value, int):
        return value
    text = value.strip().lower().replace(" ", "")
    number = text.rstrip("kmgtib")
    try:
        return int(float(number) * _UNITS[text[len(number) :]])
    except (ValueError, KeyError, OverflowError):
        raise ValueError(f"{value!r} is no size; write bytes, or 512MiB, 8GiB") from None


def _disk_of(ssd: str | os.PathLike[str] | dict[str, Any]) -> tuple[Path, int]:
    """The folder and its bytes: of "dir=/cache,size=64GiB", a dictionary with these names, or a path."""
    if isinstance(ssd, str) and ssd.startswith("dir="):
        parts = dict(part.partition("=")[::2] for part in ssd.split(","))
        ssd = parts
    if not isinstance(ssd, dict):
        ssd = {"dir": ssd}
    unknown = set(ssd) - {"dir", "size"}
    if unknown or "dir" not in ssd:
        raise ValueError(f"ssd must be a folder or dir=…,size=…, not {ssd!r}")
    return Path(ssd["dir"]), size_of(ssd.get("size", "16GiB"))


def _tokens_of(tokens: Sequence[int] | torch.Tensor) -> torch.Tensor:
    if not isinstance(tokens, torch.Tensor):
        tokens = torch.as_tensor(tokens if len(tokens) else (), dtype=None if len(tokens) else torch.long)
    ids = tokens.detach()
    if ids.dim() == 2 and ids.shape[0] == 1:
        ids = ids[0]
    if ids.dtype.is_floating_point or ids.dtype.is_complex or ids.dtype is torch.bool:
        raise TypeError(f"tokens must be integers, not {ids.dtype}")
    return ids.to("cpu", torch.long)


def _list_of(blocks: Sequence[int] | torch.Tensor) -> list[int]:
    return blocks.tolist() if isinstance(blocks, torch.Tensor) else [int(block) for block in blocks]


def _on_host(tensor: torch.Tensor) -> bool:
    return tensor.device.type in ("cpu", "hetero")


def _host_view(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes in host memory: those of the tensor itself, on the CPU and on hetero."""
    return tensor.detach() if tensor.device.type == "cpu" else torch.from_dlpack(tensor.detach())


class _Staging:
    """Memory of the host for the blocks of a request whose tensors are on another device.

    Only these blocks pass: the tensors may be all pages of a serving engine, and other pages are not touched.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], blocks: list[int], block_tokens: int) -> None:
        self._views = [self._blocks_of(tensor.detach(), block_tokens) for tensor in tensors]
        self._blocks = torch.tensor(blocks, dtype=torch.long)
        for view in self._views:
            wrong = next((block for block in blocks if not 0 <= block < view.shape[0]), None)
            if wrong is not None:
                raise ValueError(f"block {wrong} is not in the memory, which has {view.shape[0]}")
        self.count = len(blocks)
        self.host: list[torch.Tensor] = []

    def allocate(self) -> None:
        """Makes memory to receive blocks."""
        if self._blocks.unique().numel() != self._blocks.numel():
            raise ValueError("two blocks have the same place")
        self.host = [torch.empty((max(1, self.count), *view.shape[1:]), dtype=view.dtype) for view in self._views]

    def read(self) -> None:
        """Makes memory with the tensors' blocks."""
        if self.count == 0:
            return self.allocate()
        self.host = [view.index_select(0, self._blocks.to(view.device)).cpu().contiguous() for view in self._views]

    def write(self, number: int, count: int) -> None:
        """Copies the first `count` blocks into a tensor."""
        view = self._views[number]
        view.index_copy_(0, self._blocks[:count].to(view.device), self.host[number][:count].to(view.device))

    @staticmethod
    def _blocks_of(tensor: torch.Tensor, tokens: int) -> torch.Tensor:
        if tensor.dim() == 4:
            return tensor
        count = tensor.shape[1] // tokens
        return tensor[:, : count * tokens].unflatten(1, (count, tokens)).transpose(0, 1)


class Match:
    """The beginning of a prompt that a store has. Its blocks are not evicted until `close()`, or its end.

    Attributes:
        tokens: how many tokens, in whole blocks.
        by_tier: blocks by where they would come from: "cpu", "ssd", "remote".
    """

    def __init__(self, core: Any) -> None:
        self._core = core
        self.tokens: int = core.tokens
        self.by_tier: dict[str, int] = dict(zip(("cpu", "ssd", "remote"), core.blocks, strict=True))

    @property
    def blocks(self) -> int:
        """How many blocks."""
        return sum(self.by_tier.values())

    def close(self) -> None:
        """Lets the blocks go."""
        self._core = None

    def __enter__(self) -> Match:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Match(tokens={self.tokens}, by_tier={self.by_tier})"


class Request:
    """A transfer of blocks that goes on. `await request` is `request.wait()`."""

    def __init__(self, core: Any, staging: _Staging | None = None, first_block: int = 0, block_tokens: int = 1) -> None:
        self._core = core
        self._staging = staging  # what is still to be copied to where the caller wants it
        self._first_block = first_block
        self._block_tokens = block_tokens
        self._copied: set[int] = set()
        self._lock = threading.Lock()  # of the copies

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._core.done

    def wait(self) -> int:
        """Waits for its end.

        Returns:
            The tokens at the beginning of the request that arrived, in whole blocks. Where a tier failed, or the
            request was cancelled, that is less than was asked for; what arrived is right.
        """
        tokens = self._core.wait()
        if self._staging is not None:
            for layer in range(len(self._staging.host) // 2):
                self._copy(layer, tokens // self._block_tokens - self._first_block)
        return tokens

    def wait_layer(self, layer: int) -> None:
        """Waits until a layer of all blocks has arrived.

        Raises:
            RuntimeError: if it did not.
        """
        self._core.wait_layer(layer)
        if self._staging is not None:
            self._copy(layer, self._staging.count)

    def wait_completely(self) -> None:
        """Waits until what is written behind it, to the disk and the remote store, is there.

        Raises:
            RuntimeError: the first error.
        """
        self._core.wait_completely()

    def check(self) -> None:
        """Raises the error of a request that did not deliver all."""
        self._core.check()

    def cancel(self) -> None:
        """Keeps transfers from beginning that have not, unless other requests wait for them."""
        self._core.cancel()

    def dump_graph(self) -> str:
        """Returns the graph of its transfers, with their states, in the language of Graphviz."""
        return self._core.dump()

    def timeline(self) -> list[Transfer]:
        """Returns a row for each transfer that has completed: type, blocks, layers, bytes, and when it began and ended.

        Times are seconds of `time.monotonic()`.
        """
        return self._core.timeline()

    def __await__(self) -> Generator[Any, None, int]:
        return asyncio.get_running_loop().run_in_executor(None, self.wait).__await__()

    def _copy(self, layer: int, blocks: int) -> None:
        assert self._staging is not None
        with self._lock:
            if layer in self._copied:
                return
            for number in (layer, layer + len(self._staging.host) // 2):
                self._staging.write(number, blocks)
            self._copied.add(layer)


def save_trace(sources: Sequence[Request | Store], path: str | os.PathLike[str]) -> None:
    """Writes transfers as a trace for Perfetto (ui.perfetto.dev): a track for each type of transfer.

    Args:
        sources: requests, or stores for the latest transfers of all their requests.
        path: of the JSON file.
    """
    events: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = [dict(row) for source in sources for row in source.timeline()]
    types = sorted({row["type"] for row in rows})
    for number, name in enumerate(types):
        events.append({"ph": "M", "name": "thread_name", "pid": 1, "tid": number, "args": {"name": name}})
    for row in rows:
        events.append({
            "ph": "X", "pid": 1, "tid": types.index(row["type"]), "ts": row["started"] * 1e6,
            "dur": (row["ended"] - row["started"]) * 1e6, "name": f"request {row['graph']}: blocks {row['position']} on",
            "args": {name: row[name] for name in ("blocks", "first_layer", "layers", "bytes")},
        })  # fmt: skip
    Path(path).write_text(json.dumps({"traceEvents": events}))


class Store:
    """Blocks of keys and values in tiers, for prompts whose beginnings are equal.

    Each process has stores of its own; two of them share blocks through `remote`, or one after the other through
    `ssd`. All methods may be called by any thread.
    """

    def __init__(
        self,
        spec: Spec,
        cpu: int | str = "1GiB",
        ssd: str | os.PathLike[str] | dict[str, Any] | None = None,
        remote: str | None = None,
        *,
        durability: str = "none",
        policy: str = "arc",
        ssd_after_hits: int = 0,
        prefill_rate: float | None = None,
        engine: str = "auto",
        remote_timeout: float = 2.0,
        remote_codec: str = "none",
        copy_threads: int = 1,
    ) -> None:
        """Opens a store.

        Args:
            spec: what computed the keys and values.
            cpu: bytes of host memory.
            ssd: a folder, or "dir=/cache,size=64GiB". Blocks lie in a folder in it for each specification, with mode
                0700, and are there again when the store is next opened. One process at a time.
            remote: "redis://host:port", "unix:///socket", "file:///shared/folder", or "memory:name" for tests.
            durability: what a crash of the *system* may lose of blocks on the disk. "none": what the system had not
                written. "group": the last second. "strict": nothing. A crash of the process loses nothing.
            policy: of eviction: "lru", "lfu", "slru", "s3fifo" or "arc".
            ssd_after_hits: a block is written to the disk when it was used so often again; 0: when it is put.
            prefill_rate: tokens a second that the model computes. Blocks that would be loaded more slowly are not.
            engine: of the disk: "auto", "io_uring" or "threads".
            remote_timeout: seconds, of each call.
            remote_codec: "none", "zstd" or "lz4".
            copy_threads: of copies between tensors and host memory.

        Raises:
            ValueError: for an argument that is not one of these.
            RuntimeError: if the folder cannot be used: another process has it, no permission, no space.
        """
        choices = {"durability": (durability, ("none", "group", "strict")),
                   "policy": (policy, ("lru", "lfu", "slru", "s3fifo", "arc")),
                   "engine": (engine, ("auto", "io_uring", "threads")),
                   "remote_codec": (remote_codec, ("none", "zstd", "lz4"))}
        for name, (value, known) in choices.items():
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, not {value!r}")
        self.spec = spec
        options: dict[str, Any] = {
            "host_bytes": size_of(cpu),
            "durability": durability,
            "policy": policy,
            "disk_after_hits": ssd_after_hits,
            "prefill_rate": prefill_rate,
            "engine": engine,
            "remote": remote,
            "remote_timeout": remote_timeout,
            "remote_codec": remote_codec,
            "copy_threads": copy_threads,
        }
        if ssd is not None:
            folder, size = _disk_of(ssd)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            options |= {"disk_folder": str(folder / _C.kv_fingerprint(spec.fields())), "disk_bytes": size}
        self._core = _C.KvStore(spec.fields(), options)
        self._process = os.getpid()
        _stores.add(self)

    # ---- blocks

    def match(self, tokens: Sequence[int] | torch.Tensor, *, remote: bool = True) -> Match:
        """Looks for the longest beginning of `tokens` that is known.

        Args:
            tokens: ids; a list, or a tensor of shape [tokens] or [1, tokens].
            remote: also asks the remote store, in at most `remote_timeout`.

        Raises:
            ValueError: for an id that is negative or not below 2^31.
        """
        return Match(self._core.match(_tokens_of(tokens), remote))

    def get(
        self,
        match: Match,
        keys: Sequence[torch.Tensor],
        values: Sequence[torch.Tensor],
        blocks: Sequence[int] | torch.Tensor | None = None,
        *,
        first_block: int = 0,
        layer_granularity: int = 0,
        past_host: bool = False,
    ) -> Request:
        """Brings blocks of a match into tensors, which must not be used before the request's end.

        Args:
            match: what to bring.
            keys: a tensor for each layer: [blocks, heads, tokens of a block, size], or, for one sequence, [heads,
                tokens, size] or [1, heads, tokens, size].
            values: likewise.
            blocks: where each block goes: numbers in the first dimension, or multiples of a block in the sequence. By
                default in order, from `first_block` on.
            first_block: the first block of the match to bring.
            layer_granularity: layers of a transfer, so that `wait_layer()` can be used; 0: all.
            past_host: blocks of the disk are read into the tensors themselves, and host memory keeps no copy. This
                takes tensors on the CPU in which a block's keys, and its values, of a layer are whole pages, on page
                borders. For others it changes nothing.

        Raises:
            ValueError: for tensors or numbers that do not fit.
        """
        where = _list_of(range(first_block, match.blocks) if blocks is None else blocks)
        if match._core is None:
            raise ValueError("the match is closed")
        host, where, staging = self._memory_of(keys, values, where, reads=False)
        middle = len(keys)
        core = self._core.get(match._core, host[:middle], host[middle:], self._paged(host), where, first_block,
                              layer_granularity, past_host)
        return Request(core, staging, first_block, self.spec.block_tokens)

    def put(
        self,
        tokens: Sequence[int] | torch.Tensor,
        keys: Sequence[torch.Tensor],
        values: Sequence[torch.Tensor],
        blocks: Sequence[int] | torch.Tensor | None = None,
    ) -> Request:
        """Keeps the keys and values of whole blocks of `tokens`.

        When `wait()` returns, they are in host memory, and the tensors may change; the disk and the remote store get
        them behind that (`Request.wait_completely`).

        Args:
            tokens: ids, as for `match`.
            keys: as for `get`.
            values: as for `get`.
            blocks: where each block is; by default in order.

        Raises:
            ValueError: for tensors or numbers that do not fit.
        """
        ids = _tokens_of(tokens)
        where = _list_of(range(len(ids) // self.spec.block_tokens) if blocks is None else blocks)
        host, where, _ = self._memory_of(keys, values, where, reads=True)
        middle = len(keys)
        core = self._core.put(ids, host[:middle], host[middle:], self._paged(host), where)
        return Request(core)

    def prefetch(self, match: Match) -> Request:
        """Brings a match's blocks to host memory."""
        if match._core is None:
            raise ValueError("the match is closed")
        return Request(self._core.prefetch(match._core))

    # ---- caches of transformers

    def load(self, input_ids: torch.Tensor, config: PreTrainedConfig | None = None) -> DynamicCache:
        """Returns a cache of transformers with what is known of a prompt.

        At least one token of the prompt is left to be computed, as `generate` needs.

        Args:
            input_ids: [tokens] or [1, tokens].
            config: the model's.

        Raises:
            ValueError: if the model has layers that do not keep all keys, such as sliding windows.
        """
        from torch_hetero.kv import cache

        return cache.load(self, input_ids, config)

    def save(self, tokens: Sequence[int] | torch.Tensor, cache: DynamicCache) -> Request:
        """Keeps what a cache of transformers has of `tokens`: the prompt and what was generated.

        Raises:
            ValueError: as `load`.
        """
        from torch_hetero.kv import cache as caches

        return caches.save(self, tokens, cache)

    # ---- the store

    def reset(self) -> None:
        """Forgets all blocks here, as after new weights. The remote store's are left alone.

        Raises:
            RuntimeError: while there are matches.
        """
        self._core.reset()

    def sync(self) -> None:
        """Waits until what was put is on the disk as durably as it can be."""
        self._core.sync()

    def wait_idle(self) -> None:
        """Waits until no transfer runs."""
        self._core.wait_idle()

    def stats(self) -> dict[str, Any]:
        """Returns the counters: blocks by tier, evictions, transfers, bandwidths in bytes a second."""
        return self._core.counters()

    def metrics(self) -> str:
        """Returns the counters as Prometheus reads them."""
        lines = []
        texts = _C.kv_counter_texts()
        for name, value in self.stats().items():
            if not isinstance(value, str):
                metric = f"hetero_kv_{name}"
                lines += [f"# HELP {metric} {texts[name]}", f"# TYPE {metric} gauge", f"{metric} {float(value):g}"]
        return "\n".join(lines) + "\n"

    def timeline(self) -> list[Transfer]:
        """Returns the rows of `Request.timeline()` of requests that have ended: the latest 8,192."""
        return self._core.timeline()

    def report(self, path: str | os.PathLike[str]) -> None:
        """Writes a page that shows these transfers on their lanes over time (docs/reports.md).

        `torch.hetero.report` shows them as well, for all stores that are open, below its programs.

        Args:
            path: of the html file.

        Raises:
            OSError: when the file cannot be written.
        """
        write_report(path, [], self.timeline())

    @property
    def block_bytes(self) -> int:
        """Bytes of a block in each tier."""
        return self._core.block_bytes

    def _paged(self, tensors: Sequence[torch.Tensor]) -> bool:
        return len(tensors) > 0 and tensors[0].dim() == 4

    def _memory_of(
        self, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor], where: list[int], reads: bool
    ) -> tuple[list[torch.Tensor], list[int], _Staging | None]:
        """Tensors in host memory, and where the blocks are in them: those of the caller, or others for them."""
        tensors = [self._checked(tensor) for tensor in (*keys, *values)]
        if all(_on_host(tensor) for tensor in tensors):
            return [_host_view(tensor) for tensor in tensors], where, None
        staging = _Staging(tensors, where, self.spec.block_tokens)
        if reads:
            staging.read()
        else:
            staging.allocate()
        return staging.host, list(range(len(where))), staging

    def _checked(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype != self.spec.dtype:
            raise ValueError(f"the store keeps {self.spec.dtype}, not {tensor.dtype}")
        if tensor.dim() not in (3, 4):
            raise ValueError(f"keys and values have 3 or 4 dimensions, not {tensor.dim()}")
        if self.spec.layout != HEADS_FIRST:
            if tensor.dim() == 3:
                raise ValueError(f"with the layout {self.spec.layout!r}, keys and values must be pages, of 4 dimensions")
            return tensor
        # One sequence, which also fits a page that is a part of one.
        return tensor[0] if tensor.dim() == 4 and tensor.shape[0] == 1 else tensor


_stores: weakref.WeakSet[Store] = weakref.WeakSet()


def _transfers_of_stores() -> list[Transfer]:
    stores = [store for store in list(_stores) if store._process == os.getpid()]
    if len(stores) < 2:
        return [row for store in stores for row in store.timeline()]
    names = [f"{store.spec.model} ({number + 1})" for number, store in enumerate(stores)]
    return [{**row, "store": name} for store, name in zip(stores, names, strict=True) for row in store.timeline()]


add_transfers(_transfers_of_stores)
