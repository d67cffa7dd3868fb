"""Models that are saved as programs, and how a test reads and changes a file."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import models
import torch
from torch import nn

from torch_hetero import _C


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)).eval()


def nodes_recorded() -> int:
    nodes = _C.counters()["nodes"]
    return nodes["typed"] + nodes["boxed"] + nodes["straight"]


def tokens(*sizes: int) -> torch.Tensor:
    return torch.randint(0, 40, sizes, generator=torch.Generator().manual_seed(2))


MODELS = {
    "resnet18": lambda: (models.resnet18(), (torch.randn(2, 3, 64, 64),)),
    "vit": lambda: (models.vit(), (torch.randn(2, 3, 32, 32),)),
    "transformer": lambda: (models.transformer(), (tokens(2, 12),)),
    "language_model": lambda: (models.language_model(), (tokens(2, 7),)),
    "minilm": lambda: (models.minilm()[0], (tokens(2, 9) + 1000, torch.ones(2, 9, dtype=torch.long))),
    **{name: lambda name=name: (models.causal_lm(name), (tokens(1, 6),)) for name in ("gpt2", "llama", "qwen3")},
}


def example(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...], dict[str, bool]]:
    """A model and the arguments of a call."""
    torch.manual_seed(0)
    model, args = MODELS[name]()
    kwargs = {"use_cache": False} if hasattr(model, "generate") and name != "minilm" else {}
    return model.eval(), args, kwargs


# Layers whose Meta kernels describe CUDA's kernels, or do not look at their arguments.
LAYERS = {
    "embedding_bag": lambda: (nn.EmbeddingBag(20, 6, mode="mean"), torch.randint(20, (5, 7))),
    "largest embedding": lambda: (nn.EmbeddingBag(20, 6, mode="max"), torch.randint(20, (5, 7))),
    "lstm": lambda: (nn.LSTM(4, 5), torch.randn(3, 2, 4)),
    "gru": lambda: (nn.GRU(4, 5), torch.randn(3, 2, 4)),
    "convolution": lambda: (nn.Conv2d(3, 4, 3, stride=2, padding=1), torch.randn(2, 3, 9, 9)),
    "batch_norm": lambda: (nn.BatchNorm2d(3), torch.randn(2, 3, 4, 4)),
    "batch_norm in training": lambda: (nn.BatchNorm2d(3).train(), torch.randn(2, 3, 4, 4)),
    **{
        f"{name}, {half}": lambda make=make, half=half: (make().to(half), torch.randn(2, 4, 4).to(half))
        for half in (torch.bfloat16, torch.float16)
        for name, make in {
            "layer_norm": lambda: nn.LayerNorm(4),
            "group_norm": lambda: nn.GroupNorm(2, 4),
            "batch_norm": lambda: nn.BatchNorm1d(4),
            "batch_norm without weights": lambda: nn.BatchNorm1d(4, affine=False),
            "instance_norm": lambda: nn.InstanceNorm1d(4),
        }.items()
    },
}


def rewrite(path: Path, changes: dict[str, bytes]) -> None:
    """Replaces entries of a saved file, checksums included."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {**entries, **changes}.items():
            entry = zipfile.ZipInfo(name)
            # Tensors are mapped, so they lie at multiples of 64 bytes.
            missing = -(archive.fp.tell() + 30 + len(name) + 4) % 64
            entry.extra = struct.pack("<HH", 0xBEEF, missing) + bytes(missing)
            archive.writestr(entry, data)


def graph_of(path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        return archive.read("graph.txt").decode()
