"""PyTorch's operator database as programs: saved and loaded again, and through torch.compile.

Each entry's first samples of float32, int64 and bool become the forward of a module whose tensors are its arguments. What the
program gives is compared with eager CPU by PyTorch's kind of tolerance, since programs are fused.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from harness import ENTRIES, UNINITIALIZED, attempt
from torch.utils._pytree import tree_flatten, tree_unflatten
from ways import Case, Rules, Tally

DTYPES = (torch.float32, torch.int64, torch.bool)
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
    "to an operand that is": "the CPU's kernel resizes the tensor that it writes in place",
}


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


class Programs(NamedTuple):
    """A way to run an entry of op_db as a program."""

    title: str
    run_program: Callable[[Entry], Any]
    samples: int

    def names(self) -> list[str]:
        return [f"{name} {str(d)[6:]}" for name, op in ENTRIES.items() for d in DTYPES if d in op.supported_dtypes("cpu")]

    def cases(self, op: Any, dtype: torch.dtype, most: int) -> Iterator[Case]:
        """The first samples of dense tensors that the CPU accepts and that give tensors."""
        for _, sample in zip(range(most), op.sample_inputs("cpu", dtype), strict=False):
            entry = Entry(op, sample)
            if not entry.tensors or any(tensor.layout != torch.strided for tensor in entry.tensors):
                continue
            expected, error = attempt(lambda entry=entry: tensors_of(entry(*entry.copies())))
            if expected and error is None:
                yield Case("", lambda device, entry=entry: tensors_of(self._result(entry, device)))

    def _result(self, entry: Entry, device: str) -> Any:
        return entry(*entry.copies()) if device == "cpu" else self.run_program(entry)

    def run(self, task: str, device: str, most: int) -> Tally:
        name, dtype = task.split(" ")
        op, tally = ENTRIES[name], Tally()
        tolerance = {"rtol": 1e-3, "atol": 1e-3}
        rules = Rules(op.name not in UNINITIALIZED, exactly=False, fused=True, tolerance=tolerance, results_on="cpu")
        try:
            for case in self.cases(op, getattr(torch, dtype), most or self.samples):
                tally.judge(case, task, device, rules)
        except Exception:  # some entries make no samples on this machine
            return tally
        tally.counts.pop("strides", None)
        tally.notes = [note for note in tally.notes if note[0] != "strides"]
        return tally


PROGRAMS = {
    "saved": Programs("`torch.hetero.compile`, saved and loaded", saved, 4),
    "compiled": Programs('`torch.compile(backend="hetero")`', compiled, 1),
}
