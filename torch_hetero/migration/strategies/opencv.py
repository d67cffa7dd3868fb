"""cv2: images as numpy arrays [height, width] or [height, width, channels]."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from torch_hetero.migration.spec import Spec
from torch_hetero.migration.strategy import Call, Mapped, Strategy, register


class OpenCV(Strategy):
    """A function of cv2 on one image of bytes."""

    family = "vision"
    library = "opencv-python-headless"
    versions = ("4.14.",)

    def supports(self, call: Call) -> str | None:
        source = call["src"]
        if source.dtype != torch.uint8:
            return f"{str(source.dtype).removeprefix('torch.')} images stay on the CPU"
        if len(source.shape) not in (2, 3) or 0 in source.shape:
            return "it is no image"
        return call.given("dst")


def random_image(random: np.random.Generator, channels: Sequence[int] = (0, 1, 3, 4), largest: int = 24) -> np.ndarray:
    """Returns noise as an image of bytes [height, width, channels], or [height, width] for 0 channels."""
    height, width = random.integers(1, largest, 2)
    count = random.choice(channels)
    return random.integers(0, 256, (height, width, count) if count else (height, width), dtype=np.uint8)


@register
class Flip(OpenCV):
    target = "cv2.flip"
    parameters = "src, flipCode, dst=None"
    data = ("src",)

    def map(self, call: Call) -> Mapped:
        code, source = call["flipCode"], call["src"]
        shape = source.shape[:2] if source.channels == 1 else source.shape  # cv2 drops a single channel
        return Mapped(Spec("array", shape, source.dtype), static=(code > 0) - (code < 0))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        (images,) = inputs
        if images.dim() == 4 and images.shape[3] == 1:
            images = images.squeeze(3)
        return images.flip({0: [1], 1: [2], -1: [1, 2]}[static])

    def examples(self, random: np.random.Generator) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
        while True:
            yield (random_image(random), int(random.integers(-1, 2))), {}
