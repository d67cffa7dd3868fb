"""Random programs in Python, as lines of source, and what they compute.

A program is drawn from its seed while it runs on the CPU, so that each line is valid there. Its lines name tensors v0,
v1, ... and arrays of numpy that share a tensor's bytes, h0, h1, ... A line that raises logs the error's kind. So
programs stay programs when lines are taken out, and the shortest one that still shows a difference is a script to read.

Numbers are small integers wherever something is summed, in whatever dtype: then no order of additions rounds, and
results are equal to the last bit under every configuration. What functions such as tanh make goes through pointwise
operators only.
"""

from __future__ import annotations

import copy
import io
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

INEXACT = ("tanh", "sigmoid", "sin", "exp")
UNARY = ("neg", "abs", "relu", "sign", "square")
BINARY = ("add", "sub", "mul", "maximum", "minimum")
UNARY_IN_PLACE = ("neg_", "abs_", "relu_", "zero_", "sign_")
BINARY_IN_PLACE = ("add_", "sub_", "mul_", "copy_")
DTYPES = ("float32", "float64", "int64", "int32", "bfloat16", "float16", "uint8", "bool")
# A small integer again, of whatever came.
SMALL = "{}.float().nan_to_num(1, 1, 1).clamp(-9, 9).round()"


def in_thread(call: Callable[[], Any]) -> Any:
    """What `call` returns on another thread, which ends before this one goes on."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def pickled(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, saved and loaded."""
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return torch.load(file)


def gradient(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """The gradient of a small function with a hook, with respect to a copy of the tensor."""
    leaf = tensor.detach().float().clone().requires_grad_()
    value = leaf * factor
    value.register_hook(lambda grad: grad * 2)
    (value.t() * value.t()).sum().backward()
    assert leaf.grad is not None
    return leaf.grad.clamp(-9, 9)


@torch.compile(backend="hetero")
def compiled_pure(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """A part of a program that is compiled."""
    return (one * 2 - other).clamp(-9, 9)


@torch.compile(backend="hetero")
def compiled_in_place(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """A part that is compiled, and writes."""
    one.add_(other).clamp_(-9, 9)
    return one + 1


def namespace(device: str) -> dict[str, Any]:
    """What the lines of a program may name."""
    on_cpu = device == "cpu"
    return {
        "torch": torch, "np": np, "copy": copy, "D": device, "log": [], "in_thread": in_thread, "pickled": pickled,
        "gradient": gradient,
        # The oracle is eager.
        "compiled_pure": (lambda a, b: (a * 2 - b).clamp(-9, 9)) if on_cpu else compiled_pure,
        "compiled_in_place": (lambda a, b: a.add_(b).clamp_(-9, 9) + 1) if on_cpu else compiled_in_place,
    }  # fmt: skip


def execute(line: str, names: dict[str, Any]) -> bool:
    """Runs a line; false where it raises, which is logged."""
    try:
        exec(line, names)
    except Exception as error:
        names["log"].append(type(error).__name__)
        return False
    return True


def value_of(thing: Any) -> Any:
    """A value that can be kept and compared."""
    if isinstance(thing, torch.Tensor):
        return thing.detach().cpu().clone()
    return torch.from_numpy(thing.copy()) if isinstance(thing, np.ndarray) else thing


def run(lines: list[str], device: str) -> list[tuple[str, Any]]:
    """What a program logs and leaves, by name."""
    names = namespace(device)
    torch.manual_seed(0)
    for line in lines:
        execute(line, names)
    seen = [(f"log[{i}]", value_of(entry)) for i, entry in enumerate(names["log"])]
    left = sorted(name for name in names if name[0] in "vh" and name[1:].isdigit())
    return seen + [(name, value_of(names[name])) for name in left]


def same(one: Any, other: Any) -> bool:
    """Equal to the last bit; not-a-number equals itself."""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return bool(one == other) or (one != one and other != other)
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    if one.is_floating_point():
        one, other = one.nan_to_num(77.0, torch.inf, -torch.inf), other.nan_to_num(77.0, torch.inf, -torch.inf)
    return torch.equal(one, other)


def differences(lines: list[str], device: str) -> list[str]:
    """The names of what differs from the CPU."""
    ours, theirs = run(lines, device), run(lines, "cpu")
    if [name for name, _ in ours] != [name for name, _ in theirs]:
        return ["the names of what is left"]
    return [name for (name, one), (_, other) in zip(ours, theirs, strict=True) if not same(one, other)]


class Writer:
    """Draws the lines of a program."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.names = namespace("cpu")
        self.lines: list[str] = []
        self.made = 0
        self.inexact: set[str] = set()

    def write(self) -> list[str]:
        """The lines of a program of 2 to 60 operators."""
        for k in range(3):
            self.keep(f"v{k} = torch.arange(12, device=D).view(3, 4).float() - {self.draw.randint(0, 9)}")
        self.made = 3
        for _ in range(self.draw.randint(2, 60)):
            self.step()
        return self.lines

    def keep(self, line: str) -> bool:
        """Adds the line if it is valid, and keeps the names that it makes."""
        state = torch.get_rng_state()
        if not execute(line, self.names):
            self.names["log"].pop()
            torch.set_rng_state(state)
            return False
        self.lines.append(line)
        return True

    def new(self, expression: str, inexact: bool = False) -> None:
        name = f"v{self.made}"
        if not self.keep(f"{name} = {expression}"):
            return
        self.made += 1
        value = self.names[name]
        if not isinstance(value, torch.Tensor) or not 0 < value.numel() <= 400 or value.dim() > 3:
            self.lines.pop()
            del self.names[name]
        elif inexact:
            self.inexact.add(name)

    def tensors(self) -> list[str]:
        return [name for name in self.names if name[0] == "v" and name[1:].isdigit()]

    def arrays(self) -> list[str]:
        return [name for name in self.names if name[0] == "h" and name[1:].isdigit()]

    def shares_with_inexact(self, name: str) -> bool:
        """Whether the tensor, or one with the same memory, has numbers that are not small integers."""
        return any(self.overlap(name, other) for other in self.inexact if other in self.names)

    def exact(self, name: str) -> str:
        """An expression of small integers."""
        return SMALL.format(name)

    def step(self) -> None:
        draw = self.draw
        a, b = draw.choice(self.tensors()), draw.choice(self.tensors())
        k = draw.randint(0, 5)
        inexact = self.shares_with_inexact(a) or self.shares_with_inexact(b)
        kinds: dict[str, Callable[[], Any]] = {
            "unary": lambda: self.new(f"torch.{draw.choice(UNARY)}({a})", inexact),
            "inexact": lambda: self.new(f"torch.{draw.choice(INEXACT)}({self.exact(a)})", True),
            "binary": lambda: self.new(f"torch.{draw.choice(BINARY)}({a}, {b})", inexact),
            "small": lambda: self.new(self.exact(a)),
            "number": lambda: self.new(f"{a} * {draw.choice((2, 3, 0, 0.5, True))} + {k}", True),
            "dtype": lambda: self.new(f"{self.exact(a)}.to(torch.{draw.choice(DTYPES)})"),
            "view": lambda: self.new(self.view_of(a, k), inexact),
            "view again": lambda: self.new(self.view_of(a, k), inexact),
            "reduce": lambda: self.new(self.reduction_of(self.exact(a), k)),
            "shape": lambda: self.new(self.reshaped(a, b, k), inexact),
            "product": lambda: self.new(f"({self.exact(a)} @ {self.exact(b)}.t()).clamp(-9, 9)"),
            "write": lambda: self.keep(f"{a}.{draw.choice(UNARY_IN_PLACE)}()"),
            "write from": lambda: self.write_into(a, f"{a}.{draw.choice(BINARY_IN_PLACE)}({b})", inexact),
            "write through": lambda: self.write_into(
                a, f"{self.view_of(a, k)}.{draw.choice(BINARY_IN_PLACE)}({k})", True
            ),
            "index write": lambda: self.write_into(a, f"{a}[{k % 3}] = {draw.choice((b, str(k)))}", inexact),
            "masked write": lambda: self.keep(f"{a}[{a} > {k}] = {k}"),
            "out": lambda: self.write_into(a, f"torch.add({a}, {b}, out={draw.choice(self.tensors())})", True),
            "read": lambda: self.keep(f"log.append({self.exact(a)}.sum().item())"),
            "branch": lambda: self.keep(f"if {self.exact(a)}.sum() > {k}: {b}.add_(1)"),
            "copy": lambda: self.new(self.copy_of(a), inexact),
            "drop": lambda: self.drop(),
            "random": lambda: self.new(f"(torch.rand_like({a}, dtype=torch.float32) < 2).float() * {k}"),
            "seeded": lambda: self.seeded(),
            "thread": lambda: self.new(f"in_thread(lambda: {a} + {b})", inexact),
            "gradient": lambda: self.new(f"gradient({self.exact(a)}, {k})"),
            "compiled": lambda: self.new(f"compiled_pure({self.exact(a)}, {self.exact(b)})"),
            "compiled write": lambda: self.new(f"compiled_in_place({self.exact(a)}.clone(), {self.exact(b)})"),
            "share": lambda: self.share(a),
            "host write": lambda: self.host(f"[...] = {k}"),
            "host add": lambda: self.host(f"[..., 0] += {k}"),
            "host read": lambda: self.host_read(),
            "sparse": lambda: self.new(f"{self.exact(a)}.to_sparse().to_dense()"),
            "resize": lambda: self.resize(a),
            "many": lambda: self.overlap(a, b) or self.keep(f"torch._foreach_add_([{a}, {b}], {k})"),
        }  # fmt: skip
        kinds[draw.choice(list(kinds))]()
        # Whatever shares memory with what was written has its numbers.
        for name in self.tensors():
            if self.shares_with_inexact(name):
                self.inexact.add(name)
        while len(self.tensors()) > 12:
            self.drop()

    def write_into(self, name: str, line: str, inexact: bool) -> None:
        if self.keep(line) and inexact:
            self.inexact |= {other for other in self.tensors() if self.overlap(name, other)} | {name}
            if "out=" in line:
                self.inexact.add(line.split("out=")[1].rstrip(")"))

    def overlap(self, a: str, b: str) -> bool:
        one, other = self.names[a], self.names[b]
        return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()

    def resize(self, name: str) -> None:
        """To fewer elements, so that it shows no memory that nobody wrote; where no array sees it."""
        tensor = self.names[name]
        if tensor.numel() >= 12 and tensor.is_contiguous() and not self.arrays():
            self.keep(f"{name}.resize_({self.draw.randint(1, 4)}, {self.draw.randint(1, 3)})")

    def copy_of(self, a: str) -> str:
        return self.draw.choice((f"{a}.cpu().to(D, copy=True)", f"{a}.clone()", f"copy.deepcopy({a})", f"pickled({a})"))

    def view_of(self, a: str, k: int) -> str:
        return self.draw.choice((
            f"{a}.t()", f"{a}[{k % 3}:]", f"{a}[..., ::2]", f"{a}[{k % 3}]", f"{a}.reshape(-1)",
            f"{a}.flatten()[{k}:]", f"{a}.unsqueeze(0)", f"{a}.detach()", f"{a}.narrow(0, {k % 2}, 1)",
            f"{a}.diagonal()[None]", f"{a}.view(-1, 2)", f"{a}.expand(2, *{a}.shape)[{k % 2}]", f"{a}.transpose(0, 1)",
            f"{a}.squeeze()", f"{a}.chunk(2)[0]",
        ))  # fmt: skip

    def reduction_of(self, a: str, k: int) -> str:
        return self.draw.choice((
            f"{a}.sum({k % 2}, keepdim=True)", f"{a}.amax(-1, keepdim=True)", f"{a}.sum(-1)", f"{a}.any(0)",
            f"{a}.cumsum(0).clamp(-9, 9)", f"{a}.argmax(-1)", f"{a}.min(0).values", f"{a}.count_nonzero(0)",
            f"{a}.norm(float('inf'))[None]",
        ))  # fmt: skip

    def reshaped(self, a: str, b: str, k: int) -> str:
        return self.draw.choice((
            f"torch.cat([{a}, {b}])", f"torch.cat([{a}, {a}], -1)", f"torch.stack([{a}, {a}])[0]", f"{a}.flip(0)",
            f"{a}.roll({k}, 0)", f"{a}.repeat(2, 1)", f"torch.where({a} > {k}, {a}, {b})", f"{a}.unique()",
            f"{a}.masked_fill({a} > {k}, {k})", f"{a}.index_select(0, torch.tensor([0, 0], device=D))", f"{a}.nonzero()",
            f"{a}.sort(-1).values", f"{a}.contiguous()", f"torch.nn.functional.pad({a}, (1, 0))", f"{a}.tril()",
            f"{a}.gather(0, torch.zeros_like({a}, dtype=torch.int64))", f"{a}[{a} > {k}]",
        ))  # fmt: skip

    def drop(self) -> None:
        names = self.tensors()
        if len(names) > 3:
            name = self.draw.choice(names)
            self.keep(f"del {name}")
            self.inexact.discard(name)

    def seeded(self) -> None:
        seed = self.draw.randint(0, 99)
        self.keep(f"torch.manual_seed({seed}); r0 = torch.randn(3, 4, device=D)")
        self.new(f"(torch.manual_seed({seed}), (torch.randn(3, 4, device=D) == r0).float())[1]")

    def share(self, a: str) -> None:
        how = self.draw.choice((f"{a}.detach().numpy()", f"torch.from_dlpack({a}).numpy()", f"np.asarray({a})"))
        name = f"h{len(self.lines)}"
        # numpy has no bfloat16, and other arrays of fewer dimensions no [..., 0].
        if self.names[a].dim() > 0 and self.names[a].dtype == torch.float32:
            self.keep(f"{name} = {how}")

    def host(self, change: str) -> None:
        if self.arrays():
            self.keep(f"{self.draw.choice(self.arrays())}{change}")
            # An array may see anything.
            self.inexact |= set(self.tensors()) if "+=" in change else set()

    def host_read(self) -> None:
        if not self.arrays():
            return
        name = self.draw.choice(self.arrays())
        self.keep(f"log.append({name}.copy())")
        if self.draw.random() < 0.5:
            self.keep(f"del {name}")


def draw_program(seed: int) -> list[str]:
    """The lines of the program of this seed."""
    return Writer(seed).write()


def minimize(lines: list[str], device: str) -> list[str]:
    """The shortest program found by taking lines out that still differs from the CPU."""
    size = max(1, len(lines) // 2)
    while True:
        at = 0
        shorter = False
        while at < len(lines):
            fewer = lines[:at] + lines[at + size :]
            if differences(fewer, device):
                lines, shorter = fewer, True
            else:
                at += size
        if size == 1 and not shorter:
            return lines
        size = max(1, size // 2)
