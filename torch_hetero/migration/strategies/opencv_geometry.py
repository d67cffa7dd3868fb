"""cv2: where pixels and channels go. No arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from torch_hetero.migration.spec import Spec
from torch_hetero.migration.strategies.opencv import (
    NUMBERS,
    Arguments,
    OpenCV,
    example_image,
    is_whole,
    known_border,
    no_single_channel,
    padded,
    per_sample,
    result,
    saturated,
    scalar_of,
    squeezed,
)
from torch_hetero.migration.strategy import Call, Mapped, register

DTYPES = ("uint8", "int8", "int16", "int32", "float32", "float64")


class Moved(OpenCV):
    """Moves elements of any type."""

    dtypes = NUMBERS


@register
class Flip(Moved):
    target = "cv2.flip"
    parameters = "src, flipCode, dst=None"

    def limits(self, call: Call) -> str | None:
        return None if is_whole(call["flipCode"]) else "flipCode= is no integer"

    def map(self, call: Call) -> Mapped:
        code = call["flipCode"]
        return Mapped(result(call["src"]), static=int(code > 0) - int(code < 0))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return squeezed(inputs[0]).flip({0: [1], 1: [2], -1: [1, 2]}[static])

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        return (example_image(fixed, random, dtypes=DTYPES), int(fixed.integers(-2, 3))), {}


@register
class Rotate(Moved):
    target = "cv2.rotate"
    parameters = "src, rotateCode, dst=None"

    def limits(self, call: Call) -> str | None:
        code = call["rotateCode"]
        return None if is_whole(code) and code in (0, 1, 2) else f"rotateCode={code} is unknown"

    def map(self, call: Call) -> Mapped:
        code, (height, width) = int(call["rotateCode"]), call["src"].shape[:2]
        return Mapped(result(call["src"], (height, width) if code == 1 else (width, height)), static=code)

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        images = squeezed(inputs[0])
        return images.flip([1, 2]) if static == 1 else images.transpose(1, 2).flip([2 if static == 0 else 1])

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        return (example_image(fixed, random, dtypes=DTYPES), int(fixed.integers(3))), {}


@register
class Transpose(Moved):
    target = "cv2.transpose"
    parameters = "src, dst=None"

    def map(self, call: Call) -> Mapped:
        height, width = call["src"].shape[:2]
        return Mapped(result(call["src"], (width, height)))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return squeezed(inputs[0]).transpose(1, 2)

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        return (example_image(fixed, random, dtypes=DTYPES),), {}


@register
class CopyMakeBorder(Moved):
    target = "cv2.copyMakeBorder"
    parameters = "src, top, bottom, left, right, borderType, dst=None, value=None"
    channels = range(1, 5)

    def limits(self, call: Call) -> str | None:
        sizes = [call[name] for name in ("top", "bottom", "left", "right")]
        if not all(map(is_whole, sizes)) or min(sizes) < 0 or max(sizes) >= 2**15:
            return "the border's sizes are no integers from 0 to 32767"
        if call["value"] is not None and scalar_of(call["value"]) is None:
            return "value= is neither a number nor up to four"
        return known_border(call["borderType"])

    def map(self, call: Call) -> Mapped:
        top, bottom, left, right = (int(call[name]) for name in ("top", "bottom", "left", "right"))
        height, width = call["src"].shape[:2]
        size = (height + top + bottom, width + left + right)
        value = np.zeros(4) if call["value"] is None else scalar_of(call["value"])
        return Mapped(
            result(call["src"], size), static=(top, bottom, left, right, int(call["borderType"])), sample=(value,)
        )

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        images = squeezed(inputs[0])
        return padded(images, static[:4], static[4], saturated(per_sample(sample[0], images), images.dtype))

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        image = example_image(fixed, random, dtypes=DTYPES)
        sizes = [int(entry) for entry in fixed.integers(0, 9, 4)]
        value = [None, float(random.normal() * 100), tuple(random.integers(-9, 300, 4).tolist())][random.integers(3)]
        keywords = {} if value is None else {"value": value}
        return (image, *sizes, int(fixed.integers(5)) + 16 * int(fixed.integers(2))), keywords


@register
class Split(Moved):
    target = "cv2.split"
    parameters = "m, mv=None"
    data = ("m",)

    def limits(self, call: Call) -> str | None:
        return call.given("mv")

    def map(self, call: Call) -> Mapped:
        source = call["m"]
        return Mapped((result(source, channels=1),) * source.channels, build=lambda *planes: planes)

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        (images,) = inputs
        return images.unbind(3) if images.dim() == 4 else (images,)

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        return (example_image(fixed, random, dtypes=DTYPES),), {}


class Joined(Moved):
    """Makes one image of several.

    Attributes:
        dimension: In which they are joined, in a batch.
    """

    dimension: int
    lists = True

    def images(self, call: Call) -> Sequence[Spec]:
        """Returns the specs of the images."""
        return call[self.data[0]]

    def limits(self, call: Call) -> str | None:
        images = self.images(call)
        if not isinstance(images, (list, tuple)) or not images:
            return f"{self.data[0]}= is no list of images"
        kept = [{entry.dtype for entry in images}]
        kept += [{(*entry.shape[:2], entry.channels)[size] for entry in images} for size in range(3)
                 if size + 1 != self.dimension]  # fmt: skip
        return "the images differ in size or dtype" if any(len(entries) > 1 for entries in kept) else None

    def map(self, call: Call) -> Mapped:
        images = self.images(call)
        shape = [*images[0].shape[:2], images[0].channels]
        shape[self.dimension - 1] = sum((*entry.shape[:2], entry.channels)[self.dimension - 1] for entry in images)
        return Mapped(Spec("array", no_single_channel(shape), images[0].dtype))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        images = [entry.unsqueeze(3) if entry.dim() == 3 else entry for entry in inputs]
        return squeezed(torch.cat(images, self.dimension))

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        count, dtype, shape = int(fixed.integers(1, 4)), str(fixed.choice(DTYPES)), fixed.integers(1, 13, 3).tolist()
        images = []
        for _ in range(count):
            shape[self.dimension - 1] = int(fixed.integers(1, 4 if self.dimension == 3 else 13))
            channels = shape[2] % 4 + 1
            images.append(example_image(fixed, random, [channels] if channels > 1 else [0, 1], [dtype], shape[:2]))
        return (images if fixed.integers(2) else tuple(images),), {}


@register
class Merge(Joined):
    target = "cv2.merge"
    parameters = "mv, dst=None"
    data = ("mv",)
    dimension = 3


@register
class HConcat(Joined):
    target = "cv2.hconcat"
    parameters = "src, dst=None"
    dimension = 2


@register
class VConcat(Joined):
    target = "cv2.vconcat"
    parameters = "src, dst=None"
    dimension = 1


@register
class ExtractChannel(Moved):
    target = "cv2.extractChannel"
    parameters = "src, coi, dst=None"

    def limits(self, call: Call) -> str | None:
        index = call["coi"]
        return None if is_whole(index) and 0 <= index < call["src"].channels else f"there is no channel {index}"

    def map(self, call: Call) -> Mapped:
        return Mapped(result(call["src"], channels=1), sample=(int(call["coi"]),))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        (images,) = inputs
        if images.dim() == 3:
            return images
        indices = sample[0].view(-1, 1, 1, 1).expand(*images.shape[:3], 1)
        return images.gather(3, indices).squeeze(3)

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        image = example_image(fixed, random, dtypes=DTYPES)
        return (image, int(random.integers(image.shape[2] if image.ndim == 3 else 1))), {}


@register
class Repeat(Moved):
    target = "cv2.repeat"
    parameters = "src, ny, nx, dst=None"

    def limits(self, call: Call) -> str | None:
        counts = (call["ny"], call["nx"])
        known = all(map(is_whole, counts)) and 0 < min(counts) and max(counts) < 2**15
        return None if known else "ny= or nx= is no integer from 1 to 32767"

    def map(self, call: Call) -> Mapped:
        (height, width), rows, columns = call["src"].shape[:2], int(call["ny"]), int(call["nx"])
        return Mapped(result(call["src"], (height * rows, width * columns)), static=(rows, columns))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        images = squeezed(inputs[0])
        return images.repeat(1, *static, *[1] * (images.dim() - 3))

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        return (example_image(fixed, random, dtypes=DTYPES), *fixed.integers(1, 4, 2).tolist()), {}
