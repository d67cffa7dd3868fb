"""Softmax, norms, GELU spelled out and cross entropy on (4096, 1024) floats: rows that fusion should make one pass."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from tests.perf.measure import DEVICE, Row, alternate, flush, main, timed_row

ROWS, COLUMNS = 4096, 1024
# Where eager has one kernel for the whole, and where it runs several.
FUSED_BAR, SPELLED_BAR = 1.0, 0.5


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """As LlamaRMSNorm of transformers spells it."""
    dtype = x.dtype
    x = x.to(torch.float32)
    variance = x.pow(2).mean(-1, keepdim=True)
    x = x * torch.rsqrt(variance + 1e-6)
    return weight * x.to(dtype)


def gelu(x: torch.Tensor) -> torch.Tensor:
    """The approximation by tanh, as many models spell it."""
    return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3.0))))


def cases(device: str) -> dict[str, tuple[float, Callable[[], torch.Tensor]]]:
    """The bar and the work of each case, on inputs that are the same on every device."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, COLUMNS, generator=generator).to(device)
    weight = torch.randn(COLUMNS, generator=generator).to(device)
    bias = torch.randn(COLUMNS, generator=generator).to(device)
    targets = torch.randint(COLUMNS, (ROWS,), generator=generator).to(device)
    return {
        "softmax": (FUSED_BAR, lambda: torch.softmax(x, -1)),
        "layer norm": (FUSED_BAR, lambda: functional.layer_norm(x, (COLUMNS,), weight, bias)),
        "RMS norm, primitive operators": (SPELLED_BAR, lambda: rms_norm(x, weight)),
        "GELU, primitive operators": (SPELLED_BAR, lambda: gelu(x)),
        "cross entropy": (SPELLED_BAR, lambda: functional.cross_entropy(x, targets)),
    }


def until_done(run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """`run`, and then what it recorded is run as well."""

    def whole() -> torch.Tensor:
        result = run()
        flush()
        return result

    return whole


def measure() -> list[Row]:
    """A row for each case against eager."""
    rows = []
    here = cases("cpu")
    with torch.no_grad():
        for name, (bar, run) in cases(DEVICE).items():
            times = alternate({"hetero": until_done(run), "eager": here[name][1]}, seconds=2.0)
            rows.append(timed_row(f"{name} at ({ROWS}, {COLUMNS})", times, bar, "ms"))
    return rows


if __name__ == "__main__":
    main(measure)
