"""Trains a small classifier on a folder of photographs: an ordinary script of PyTorch, torchvision and OpenCV.

    python examples/migration/photos.py --photos 256 --epochs 2 --device cpu

It knows nothing of hetero. `python -m torch_hetero.migration run --plan examples/migration/photos.json` runs it with its
preprocessing moved. Where there is no folder of JPEG files, one is generated.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
import time
from pathlib import Path

import cv2
import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

SIDE = 128


def generate(folder: Path, count: int) -> None:
    """Writes photographs that are none: gradients, shapes and noise, of several sizes, in two classes."""
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(count):
        path = folder / f"{index % 2}-{index:05}.jpg"
        if path.exists():
            continue
        random = np.random.default_rng(index)
        height, width = random.integers(300, 480), random.integers(400, 640)
        image = np.empty((height, width, 3), np.uint8)
        image[..., :2] = np.linspace(0, 255, width)[None, :, None]
        image[..., 2] = np.linspace(0, 255, height)[:, None]
        center = (int(random.integers(width)), int(random.integers(height)))
        color = tuple(map(int, random.integers(0, 256, 3)))
        if index % 2:
            cv2.circle(image, center, 90, color, -1)
        else:
            cv2.rectangle(image, center, (center[0] + 150, center[1] + 150), color, -1)
        cv2.imwrite(str(path), cv2.add(image, random.integers(0, 20, image.shape, dtype=np.uint8)))


class Photos(Dataset):
    """JPEG files whose names begin with their class."""

    def __init__(self, folder: Path, count: int) -> None:
        self.paths = sorted(folder.glob("*.jpg"))[:count]
        self.augment = transforms.Compose(
            [
                transforms.RandomResizedCrop(SIDE, scale=(0.5, 1.0)),
                transforms.RandomHorizontalFlip(),
                transforms.ColorJitter(brightness=0.3, contrast=0.3, saturation=0.3),
                transforms.ToTensor(),
                transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
            ]
        )

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = cv2.imread(str(self.paths[index]))
        image = cv2.GaussianBlur(image, (5, 5), 0)
        image = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
        return self.augment(Image.fromarray(image)), int(self.paths[index].name[0])


def main() -> None:
    """Trains, and prints the rate and a digest of all pixels and losses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "hetero-photos")
    parser.add_argument("--photos", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    generate(options.folder, options.photos)
    if options.device == "hetero":
        import torch_hetero  # noqa: F401
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 8, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 2)
    ).to(options.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(
        Photos(options.folder, options.photos), options.batch, num_workers=options.workers, drop_last=True
    )
    digest = hashlib.sha256()
    for epoch in range(options.epochs):
        torch.manual_seed(epoch)
        begin, count = time.perf_counter(), 0
        for pixels, labels in loader:
            pixels, labels = pixels.to(options.device), labels.to(options.device)
            loss = nn.functional.cross_entropy(model(pixels), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            count += len(labels)
            digest.update(pixels.cpu().numpy().tobytes())
        seconds = time.perf_counter() - begin
        print(
            f"epoch {epoch}: {count / seconds:.1f} images/s, loss {loss.item():.4f}, pixels {digest.hexdigest()[:16]}",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
