"""Layers in the layouts of GPTQ and AWQ, from random numbers."""

from __future__ import annotations

import torch

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def pack(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    """Neighbours of the last dimension in an int32, the first in the lowest bits."""
    words = numbers.long().view(*numbers.shape[:-1], -1, 32 // bits)
    shifts = torch.arange(0, 32, bits)
    return (words << shifts).sum(-1).to(torch.uint32).view(torch.int32)


def random_checkpoint(
    layout: str, bits: int, group: int, *, sorts: bool = False, rows: int = 48, columns: int = 256,
    largest: float = 0.051
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """A layer's tensors, with scales up to `largest`, and the weight that they mean."""
    size = columns if group <= 0 else group
    groups = columns // size
    q = torch.randint(2**bits, (rows, columns))
    zeros = torch.randint(2**bits, (groups, rows))
    scales = (torch.rand(groups, rows) * (largest - 0.001) + 0.001).half()
    of = torch.arange(columns) // size
    if sorts:
        of = of[torch.randperm(columns)]
    weight = (q - zeros[of].T).float() * scales[of].T.float()
    if layout == "awq":
        order = [8 * word + place for word in range(rows // 8) for place in AWQ_ORDER]
        return {"qweight": pack(q.T[:, order], 4), "qzeros": pack(zeros[:, order], 4), "scales": scales}, weight
    stored = (zeros - 1) % 2**bits if layout == "gptq" else zeros
    return {"qweight": pack(q, bits).T.contiguous(), "qzeros": pack(stored, bits), "scales": scales,
            "g_idx": of.int()}, weight
