"""Trains a small classifier on sounds: an ordinary script of PyTorch and torchaudio.

    python examples/migration/sounds.py --sounds 256 --epochs 2

It knows nothing of hetero. Sounds are generated, as a folder of files would be read.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time

import numpy as np
import torch
import torchaudio
from torch import nn
from torch.utils.data import DataLoader, Dataset

RATE = 16000


class Sounds(Dataset):
    """One second of a tone in noise; its class is whether the tone rises."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.mel = torchaudio.transforms.MelSpectrogram(RATE, n_fft=512, hop_length=160, n_mels=64)
        self.decibels = torchaudio.transforms.AmplitudeToDB(top_db=80)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        random = np.random.default_rng(index)
        time_ = np.arange(RATE, dtype=np.float32) / RATE
        tone = np.sin(2 * np.pi * (random.uniform(200, 800) + (index % 2) * 400 * time_) * time_)
        wave = torch.from_numpy((tone + 0.1 * random.standard_normal(RATE)).astype(np.float32))
        wave = torchaudio.functional.preemphasis(wave)
        features = self.decibels(self.mel(wave))
        return (features + 40) / 40, index % 2


def main() -> None:
    """Trains, and prints the rate and a digest of all features, rounded to what float32 gives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sounds", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64 * 101, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    loader = DataLoader(Sounds(options.sounds), options.batch, num_workers=options.workers, drop_last=True)
    digest = hashlib.sha256()
    for epoch in range(options.epochs):
        begin, count = time.perf_counter(), 0
        for features, labels in loader:
            loss = nn.functional.cross_entropy(model(features), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            count += len(labels)
            digest.update(features.double().mean().mul(100).round().numpy().tobytes())
        seconds = time.perf_counter() - begin
        print(
            f"epoch {epoch}: {count / seconds:.1f} sounds/s, loss {loss.item():.3f}, features {digest.hexdigest()[:16]}",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
