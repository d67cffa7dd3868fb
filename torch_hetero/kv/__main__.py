"""``python -m torch_hetero.kv``: what a folder of blocks holds, how fast its disk is, which eviction policy fits.

    python -m torch_hetero.kv inspect DIR [--verify] [--repair]
    python -m torch_hetero.kv bench DIR [--gib 1]
    python -m torch_hetero.kv trace [FILE] [--blocks 1000 10000]
    python -m torch_hetero.kv demo [DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import torch  # noqa: F401  loads the device

from torch_hetero import _C
from torch_hetero.kv import bench, demo


def size_text(size: float) -> str:
    """Returns "1.5 GiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def age_text(seconds: float) -> str:
    """Returns "3 h"; a clock that went back counts as now."""
    seconds = max(0.0, seconds)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def folders_of(path: Path) -> list[Path]:
    """Returns the folders of blocks in a folder, or the folder itself."""
    if (path / "index").exists():
        return [path]
    return sorted(child for child in path.iterdir() if (child / "index").exists())


def show_progress(done: int, total: int) -> None:
    """Draws a bar on stderr, if that is a terminal."""
    if sys.stderr.isatty():
        width = 40 * done // max(1, total)
        end = "\n" if done == total else ""
        print(f"\r  [{'#' * width}{'.' * (40 - width)}] {done} of {total} blocks", end=end, file=sys.stderr, flush=True)


def inspect(arguments: argparse.Namespace) -> int:
    """`inspect`: each folder's contents; with --verify every block is read."""
    path = Path(arguments.folder)
    if not path.is_dir():
        print(f"{path} is no folder", file=sys.stderr)
        return 1
    found = folders_of(path)
    if not found:
        print(f"{path} has no blocks")
    status = 0
    for folder in found:
        try:
            known = _C.kv_inspect(str(folder))
        except RuntimeError as error:
            print(f"{folder}: {str(error).splitlines()[0]}", file=sys.stderr)
            status = 1
            continue
        now = time.time()
        fields = dict(line.split(" ", 2)[::2] for line in known["description"].splitlines()[1:] if line.count(" ") >= 2)
        print(f"{folder.name}: {fields.get('model', '')}  {known['blocks']} blocks of {known['block_tokens']} tokens, "
              f"{size_text(known['blocks'] * known['block_bytes'])}")
        names = ("revision", "dtype", "layers", "kv_heads", "head_size", "adapter", "namespace")
        print("  " + ", ".join(f"{name} {fields[name]}" for name in names if fields.get(name)))
        if known["blocks"]:
            print(f"  {known['prompts']} beginnings of prompts; written {age_text(now - known['oldest'])} to "
                  f"{age_text(now - known['newest'])} ago")
        if known["damaged_bytes"]:
            print(f"  the index has a damaged end of {known['damaged_bytes']} bytes, which is dropped when it is opened")
        if arguments.verify or arguments.repair:
            try:
                bad = _C.kv_verify(str(folder), arguments.repair, show_progress)
            except RuntimeError as error:
                print(f"  {str(error).splitlines()[0]}", file=sys.stderr)
                status = 1
                continue
            what = "erased" if arguments.repair else "reads will take them for missing"
            print("  all blocks are what was written" if not bad else f"  {len(bad)} damaged blocks: {what}")
            status |= bool(bad) and not arguments.repair
    return status


def trace(arguments: argparse.Namespace) -> int:
    """`trace`: the hit rates of the policies."""
    policies = ["lru", "lfu", "slru", "s3fifo", "arc", "optimum"]
    try:
        rows = _C.kv_simulate(arguments.file or "", arguments.blocks, policies)
    except RuntimeError as error:
        print(str(error).splitlines()[0], file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(rows))
        return 0
    print(f"{rows[0]['requests']:,} requests, {rows[0]['blocks']:,} blocks" + ("" if arguments.file else "; a synthetic trace"))
    print("blocks of a tier".ljust(18) + "".join(policy.rjust(10) for policy in policies))
    for i in range(0, len(rows), len(policies)):
        print(f"{rows[i]['capacity']:<18,}" + "".join(f"{row['hit_rate']:10.1%}" for row in rows[i : i + len(policies)]))
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m torch_hetero.kv", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("inspect", help="what a store's folder holds")
    command.add_argument("folder")
    command.add_argument("--verify", action="store_true", help="read every block and check its checksums")
    command.add_argument("--repair", action="store_true", help="the same, and erase what is damaged")
    command.set_defaults(run=inspect)
    command = commands.add_parser("bench", help="what a folder's disk attains, against fio")
    command.add_argument("folder")
    command.add_argument("--gib", type=float, default=1.0, help="size of the file")
    command.set_defaults(run=lambda chosen: bench.run(Path(chosen.folder), chosen.gib))
    command = commands.add_parser("trace", help="hit rates of eviction policies on a trace")
    command.add_argument("file", nargs="?", help="a trace in Mooncake's format; without it, a synthetic one")
    command.add_argument("--blocks", type=int, nargs="+", default=[1000, 5000, 20000], help="sizes of a tier")
    command.add_argument("--json", action="store_true")
    command.set_defaults(run=trace)
    command = commands.add_parser("demo", help="a long prompt, cold, warm, and after a restart")
    command.add_argument("folder", nargs="?", help="for blocks; a temporary one by default")
    command.add_argument("--tokens", type=int, default=1024, help="of the prompt")
    command.add_argument("--layers", type=int, default=28, help="of the model, which has Qwen3-0.6B's shape")
    command.add_argument("--device", default="hetero")
    command.set_defaults(run=demo.run)
    chosen = parser.parse_args(arguments)
    try:
        return chosen.run(chosen)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(main())
