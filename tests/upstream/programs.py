"""PyTorch's operator database as programs: saved and loaded again, and through torch.compile; writes docs/coverage.md.

    python -m tests.upstream.programs             prints the page
    python -m tests.upstream.programs --write     writes it, some ten minutes

Each entry's first samples of float32, int64 and bool become the forward of a module whose tensors are its arguments. What
the program gives is compared with eager CPU. Entries that draw random numbers or make memory that nobody writes are run, and
compared by shape. A difference makes the command fail; a refusal is a row of the page, with the reason.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from tests.upstream.harness import ENTRIES

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "coverage.md"
DTYPES = (torch.float32, torch.int64, torch.bool)
SAMPLES = {"saved": 4, "compiled": 1}
# Words of an error, and the reason that they mean.
REASONS = {
    "data-dependent shape": "the shape of a result depends on values",
    "data-dependent control flow": "the Python code asks for a value",
    "copy to another device": "the Python code copies to another device",
    "read scalar": "the Python code, or PyTorch's own, asks for a value",
    "operator without meta kernel": "PyTorch has no Meta kernel for an operator",
    "operator that cannot be recorded": "an operator cannot be recorded",
    "is never made": "the result is memory that nobody writes",
    "to be on cpu": "PyTorch wants an argument on the CPU",
    "is not compiled yet": "TorchDynamo does not trace it",
}
RANDOM = (
    "bernoulli", "cauchy", "dropout", "empty", "exponential", "fractional_max_pool", "geometric", "log_normal",
    "multi_head_attention_forward", "multinomial", "normal", "poisson", "rand", "rrelu", "scaled_dot_product_attention",
    "uniform",
)  # fmt: skip


class Entry(torch.nn.Module):
    """A sample of an entry, as a module of its tensors."""

    def __init__(self, op: Any, sample: Any) -> None:
        super().__init__()
        self.op = op
        self.leaves, self.spec = tree_flatten((sample.input, sample.args, sample.kwargs))
        self.tensors = [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]

    def copies(self) -> list[torch.Tensor]:
        return [tensor.detach().clone() for tensor in self.tensors]

    def forward(self, *tensors: torch.Tensor) -> Any:
        given = iter(tensors)
        leaves = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves]
        first, args, kwargs = tree_unflatten(leaves, self.spec)
        return self.op(first, *args, **kwargs)


def saved(entry: Entry) -> Any:
    """What the entry gives as a program that was saved and loaded."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "entry.hetero")
        torch.hetero.compile(entry, tuple(entry.copies())).save(path)
        return torch.hetero.load(path)(*entry.copies())


def compiled(entry: Entry) -> Any:
    """What the entry gives through torch.compile."""
    torch._dynamo.reset()
    return torch.compile(entry, backend="hetero")(*[tensor.to("hetero") for tensor in entry.copies()])


def tensors_of(result: Any) -> list[torch.Tensor]:
    return [leaf.detach().cpu() for leaf in tree_flatten(result)[0] if isinstance(leaf, torch.Tensor)]


def entries(samples: int) -> Iterator[tuple[str, Entry, list[torch.Tensor]]]:
    """Names, entries and what they give on the CPU; of dense tensors."""
    for name, op in ENTRIES.items():
        for dtype in DTYPES:
            if dtype not in op.supported_dtypes("cpu"):
                continue
            try:
                drawn = [sample for _, sample in zip(range(samples), op.sample_inputs("cpu", dtype), strict=False)]
            except Exception:  # some entries make none on this machine
                continue
            for sample in drawn:
                entry = Entry(op, sample)
                if not entry.tensors or any(tensor.layout != torch.strided for tensor in entry.tensors):
                    continue
                try:
                    expected = tensors_of(entry(*entry.copies()))
                except Exception:  # some samples are errors
                    continue
                if expected:
                    yield name, entry, expected


def reason_of(error: Exception) -> str:
    text = str(error)
    return next((reason for words, reason in REASONS.items() if words in text), text.splitlines()[0][:100])


def sweep(way: str) -> tuple[Counter[str], dict[str, set[str]], set[str]]:
    """Counts of samples, the refused entries by reason, and the entries that differ."""
    run: Callable[[Entry], Any] = {"saved": saved, "compiled": compiled}[way]
    counts: Counter[str] = Counter()
    refused: dict[str, set[str]] = defaultdict(set)
    wrong: set[str] = set()
    for name, entry, expected in entries(SAMPLES[way]):
        try:
            found = tensors_of(run(entry))
        except Exception as error:
            counts["refused"] += 1
            refused[reason_of(error)].add(name)
            continue
        by_shape = any(word in name for word in RANDOM)
        try:
            assert [tensor.shape for tensor in found] == [tensor.shape for tensor in expected]
            for one, other in zip(found, expected, strict=True):
                if not by_shape:
                    torch.testing.assert_close(one, other, equal_nan=True, rtol=1e-3, atol=1e-3)
            counts["equal"] += 1
        except AssertionError:
            wrong.add(name)
            counts["differ"] += 1
    return counts, refused, wrong


def page(results: dict[str, tuple[Counter[str], dict[str, set[str]], set[str]]]) -> str:
    """The text of docs/coverage.md."""
    lines = [
        "# Coverage",
        "",
        "PyTorch's operator database (`op_db`) has an entry for nearly each operator, with samples. `make",
        "test` runs all entries one by one, unfused, and compares them with eager CPU bit by bit",
        "(`tests/upstream`). This page is written by `python -m tests.upstream.programs --write`, which runs",
        f"them as programs (torch {torch.__version__.split('+')[0]}).",
        "",
        "| way | samples equal | differ | refused |",
        "|---|---|---|---|",
    ]
    titles = {"saved": "`torch.hetero.compile`, saved and loaded", "compiled": '`torch.compile(backend="hetero")`'}
    for way, (counts, _, _) in results.items():
        lines.append(f"| {titles[way]} | {counts['equal']} | {counts['differ']} | {counts['refused']} |")
    for way, (_, refused, wrong) in results.items():
        lines += ["", f"## {titles[way]}", ""]
        if wrong:
            lines += [f"Differ: {', '.join(sorted(wrong))}.", ""]
        lines += ["| refused because | entries |", "|---|---|"]
        for reason, names in sorted(refused.items(), key=lambda item: (-len(item[1]), item[0])):
            lines.append(f"| {reason.replace('|', '/')} | {', '.join(f'`{name}`' for name in sorted(names))} |")
        if not refused:
            lines[-2:] = ["Nothing is refused."]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Runs the ways that are asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", choices=SAMPLES)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    results = {way: sweep(way) for way in SAMPLES if chosen.only in (None, way)}
    text = page(results)
    if chosen.write:
        PAGE.write_text(text)
    print(text)
    return 1 if any(wrong for _, _, wrong in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
