"""Products with weights in 8 and 4 bits, in the shapes of Qwen3-0.6B: one row, 64 and 256.

A program does the products of all layers and of the vocabulary, one after the other, so that the weights come from
memory and not from a cache. It is compared with the same program in bfloat16, which reads its weights by
`backend/cpu/kernels/matvec.h`, and with one read of the weights' bytes. With many rows it has a few layers, and is
also compared with float32. `--depth N` takes N layers instead of 28.
"""

from __future__ import annotations

import copy
import os
import statistics
from collections.abc import Callable

import torch
from torch import nn

from tests.perf.measure import DEPTH, DEVICE, Row, Times, alternate, main, missing, timed_row

HIDDEN, HEADS, KV_HEADS, HEAD, INNER, VOCABULARY = 1024, 16, 8, 128, 3072, 151936
ONE_ROW_BARS = {8: 0.58, 4: 0.33}
READ_BAR = 1.25
MANY_ROWS = (64, 256)
MANY_ROWS_DEPTH = 2
MANY_ROWS_BAR = 1.0
PLAIN = "one read of the weights"


class Layer(nn.Module):
    """The products of a decoder's layer. What lies between them is as little as keeps all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.o = linear(HIDDEN, HEADS * HEAD), linear(HEADS * HEAD, HIDDEN)
        self.k, self.v = linear(HIDDEN, KV_HEADS * HEAD), linear(HIDDEN, KV_HEADS * HEAD)
        self.gate, self.up, self.down = linear(HIDDEN, INNER), linear(HIDDEN, INNER), linear(INNER, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.o(self.q(x)) + self.k(x) + self.v(x)
        return self.down(self.gate(x) * self.up(x))


class Products(nn.Module):
    """The products of a decoder."""

    def __init__(self, depth: int, head: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Layer() for _ in range(depth)))
        self.head = linear(HIDDEN, VOCABULARY) if head else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x))


def linear(columns: int, rows: int) -> nn.Linear:
    """A layer whose results are about as large as its input."""
    made = nn.Linear(columns, rows, bias=False, device="meta", dtype=torch.bfloat16).to_empty(device="cpu")
    tile = torch.randn(2**16).mul_(columns**-0.5).to(torch.bfloat16)
    with torch.no_grad():
        made.weight.view(-1, 2**10).copy_(tile.view(-1, 2**10).repeat(made.weight.numel() // 2**16, 1))
    return made


def weight_bytes(model: nn.Module) -> int:
    """What a call reads."""
    return sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())


def reader(model: nn.Module) -> Callable[[], object]:
    """One read of the bytes of all weights: a sum as float32, which is as fast as PyTorch reads memory."""
    parts = [tensor.view(-1).view(torch.float32) for tensor in model.state_dict().values()]
    return lambda: [part.sum() for part in parts]


def measure() -> list[Row]:
    """One row, then many."""
    if DEVICE == "cpu":
        return [missing("products in 8 and 4 bits", 1.0, "ms", "needs the device")]
    depth = int(os.environ.get(DEPTH, "28"))
    exact = Products(depth, head=True).eval()
    rows = []
    x = torch.randn(1, HIDDEN, dtype=torch.bfloat16)
    for bits, bar in ONE_ROW_BARS.items():
        quantized = torch.hetero.quantize(copy.deepcopy(exact), bits=bits)
        subjects = {"hetero": program(quantized, x), "bfloat16": program(exact, x), PLAIN: reader(quantized),
                    "read of bfloat16": reader(exact)}
        with torch.inference_mode():
            times = alternate(subjects, seconds=20.0, rounds=41)
        what = f"products of Qwen3-0.6B's shape, {depth} layers, one row, int{bits}"
        rows.append(timed_row(what, times, bar, "ms", peer="bfloat16", note=speeds(times, quantized, exact)))
        rows.append(timed_row(what, times, READ_BAR, "ms", peer=PLAIN))
        del subjects, quantized
    return rows + many_rows()


def speeds(times: Times, quantized: nn.Module, exact: nn.Module) -> str:
    """GB/s of the subjects, by their medians."""
    of = {"hetero": quantized, PLAIN: quantized, "bfloat16": exact, "read of bfloat16": exact}
    return ", ".join(f"{name} {weight_bytes(model) / statistics.median(times[name]) * 1e-9:.1f} GB/s"
                     for name, model in of.items())


def many_rows() -> list[Row]:
    """Some layers, with many rows."""
    exact = Products(MANY_ROWS_DEPTH, head=False).eval()
    floats = copy.deepcopy(exact).float()
    rows = []
    for count in MANY_ROWS:
        x = torch.randn(count, HIDDEN, dtype=torch.bfloat16)
        subjects = {"bfloat16": program(exact, x), "float32": program(floats, x.float())}
        for bits in ONE_ROW_BARS:
            for activation_bits in (16, 8):
                model = torch.hetero.quantize(copy.deepcopy(exact), bits=bits, activation_bits=activation_bits)
                subjects[f"int{bits}, inputs in {activation_bits} bits"] = program(model, x)
        with torch.inference_mode():
            times = alternate(subjects, seconds=12.0)
        for name in subjects:
            if name.startswith("int"):
                what = f"the same, {MANY_ROWS_DEPTH} layers, {count} rows, {name}"
                for peer in ("bfloat16", "float32"):
                    rows.append(timed_row(what, times, MANY_ROWS_BAR, "ms", peer=peer, ours=name))
    return rows


def program(model: nn.Module, x: torch.Tensor) -> Callable[[], object]:
    """A call of the model as a program."""
    made = torch.hetero.compile(model, (x,))
    return lambda: made(x)


if __name__ == "__main__":
    main(measure)
