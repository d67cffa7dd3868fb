"""Random images for tests that compare bytes with cv2's and Pillow's: odd sizes, one pixel, whole ratios, noise.

HETERO_IMAGE_CASES says how many cases each test tries; 1000 is the full sweep.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

CASES = int(os.environ.get("HETERO_IMAGE_CASES", "80"))
MOST = 4  # images in a batch


@dataclass(frozen=True)
class Case:
    """Images of any sizes, and the height and width that results have."""

    images: list[np.ndarray]
    height: int
    width: int

    @property
    def size(self) -> list[int]:
        return [self.height, self.width]

    @property
    def tensors(self) -> list[Tensor]:
        return [torch.from_numpy(image) for image in self.images]


def pixels(generator: np.random.Generator, height: int, width: int, channels: int) -> np.ndarray:
    """Noise, black and white noise, or a gradient with noise."""
    shape = (height, width, channels)
    kind = generator.integers(4)
    if kind == 0:
        return generator.integers(0, 2, shape, dtype=np.uint8) * np.uint8(255)
    if kind == 1:
        ramp = np.linspace(0, 255, height * width).reshape(height, width, 1)
        return np.clip(ramp + generator.normal(0, 8, shape), 0, 255).astype(np.uint8)
    return generator.integers(0, 256, shape, dtype=np.uint8)


def cases(seed: int, channels: tuple[int, ...] = (1, 3, 4), count: int = CASES) -> Iterator[Case]:
    """Yields `count` images altogether, in batches that share the result's size and the number of channels."""
    generator = np.random.default_rng(seed)
    made = 0
    while made < count:
        most = int(generator.choice([4, 30, 90, 200]))
        height, width = (int(n) for n in generator.integers(1, most + 1, 2))
        if made % 9 == 0:
            height = width = 1
        images = []
        for _ in range(int(generator.integers(1, MOST + 1))):
            rows, columns = (int(n) for n in generator.integers(1, most + 1, 2))
            ratio = generator.integers(1, 6, 2)
            relation = generator.integers(6)
            if relation == 0:
                rows, columns = height * int(ratio[0]), width * int(ratio[1])
            elif relation == 1:
                rows, columns = max(1, height // int(ratio[0])), max(1, width // int(ratio[1]))
            elif relation == 2:
                rows, columns = 2 * height, 2 * width
            elif relation == 3 and made % 5 == 0:
                rows = columns = 1
            if made == 0:
                rows, columns = 480, 640
            images.append((rows, columns))
        made += len(images)
        count_of_channels = int(generator.choice(channels))
        yield Case([pixels(generator, *size, count_of_channels) for size in images], height, width)
