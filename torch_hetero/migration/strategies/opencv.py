"""cv2: what its strategies share. Images are numpy arrays [height, width] or [height, width, channels].

The strategies stand in modules by idea: `opencv_geometry`, `opencv_color`, `opencv_arithmetic`, `opencv_filters`,
`opencv_warps`. cv2 rounds to the nearest even integer and saturates. Results with one channel lose that dimension.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils._pytree import tree_map_only

from torch_hetero.migration.spec import Spec
from torch_hetero.migration.strategies.pillow_sampling import has_kernels
from torch_hetero.migration.strategy import Call, Strategy

__all__ = [
    "BYTES",
    "BYTES_AND_FLOATS",
    "DEPTHS",
    "NUMBERS",
    "Arguments",
    "OpenCV",
    "border_indices",
    "by_operator",
    "dtype_name",
    "example_image",
    "is_number",
    "is_whole",
    "known_border",
    "differs",
    "is_flag",
    "no_single_channel",
    "padded",
    "per_sample",
    "result",
    "saturated",
    "scalar_of",
    "squeezed",
]

Arguments = tuple[tuple[Any, ...], dict[str, Any]]

BYTES = (torch.uint8,)
BYTES_AND_FLOATS = (torch.uint8, torch.float32)
NUMBERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.float32, torch.float64)

# cv2's numbers of element types.
DEPTHS = {0: torch.uint8, 1: torch.int8, 3: torch.int16, 4: torch.int32, 5: torch.float32, 6: torch.float64}

CONSTANT, REPLICATE, REFLECT, WRAP, REFLECT_101, ISOLATED = 0, 1, 2, 3, 4, 16
LIMITS = {
    torch.uint8: (0, 255),
    torch.int8: (-128, 127),
    torch.int16: (-32768, 32767),
    torch.int32: (-(2**31), 2**31 - 1),
}


class OpenCV(Strategy):
    """A function of cv2 on images.

    Attributes:
        dtypes: The elements that it covers.
        channels: The numbers of channels that it covers.
        lists: Whether it takes lists of images.
    """

    family = "vision"
    library = "opencv-python-headless"
    versions = ("4.14.",)
    data = ("src",)
    dtypes: Sequence[torch.dtype] = BYTES
    channels: Sequence[int] = range(1, 513)
    lists: ClassVar[bool] = False

    def supports(self, call: Call) -> str | None:
        for name in self.data:
            images = call[name] if self.lists and isinstance(call[name], (list, tuple)) else [call[name]]
            for entry in images:
                reason = self.unsupported(entry) if isinstance(entry, Spec) else self.no_image(name, entry)
                if reason is not None:
                    return reason
        try:
            return (call.given("dst") if "dst" in call.arguments else None) or self.limits(call)
        except (TypeError, ValueError, OverflowError, AttributeError):  # such as an array in place of a number
            return "an argument has an unusual type"

    def unsupported(self, spec: Spec) -> str | None:
        """Returns a reason not to take an image."""
        if spec.kind != "array":
            return f"cv2 takes arrays, and this is {'an image of PIL' if spec.kind == 'image' else 'a tensor'}"
        if spec.dtype not in self.dtypes:
            return f"{dtype_name(spec.dtype)} images stay on the CPU"
        if len(spec.shape) not in (2, 3) or 0 in spec.shape:
            return "it is no image"
        if spec.channels not in self.channels:
            return f"images with {spec.channels} channels stay on the CPU"
        return None

    def no_image(self, name: str, argument: Any) -> str | None:
        """Returns a reason not to take something else in an image's place."""
        return f"{name}= is no array"

    def limits(self, call: Call) -> str | None:
        """Returns a reason not to migrate a call whose images are covered."""
        return None

    def examples(self, random: np.random.Generator) -> Iterator[Arguments]:
        while True:
            # Runs of calls that differ in what is drawn from `random` only, so that they share a batch.
            seed = int(random.integers(2**32))
            for _ in range(3):
                yield self.example(np.random.default_rng(seed), random)

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        """Returns a call. What calls of a batch have in common is drawn from `fixed`."""
        raise NotImplementedError


def dtype_name(dtype: torch.dtype) -> str:
    """Returns "uint8" for torch.uint8."""
    return str(dtype).removeprefix("torch.")


def is_whole(argument: Any) -> bool:
    """Whether an argument is what cv2 takes for an int."""
    return isinstance(argument, (int, np.integer)) and not isinstance(argument, bool)


def is_number(argument: Any) -> bool:
    """Whether an argument is a finite number."""
    whole_or_real = isinstance(argument, (int, float, np.integer, np.floating)) and not isinstance(argument, bool)
    return whole_or_real and bool(np.isfinite(argument))


def is_flag(argument: Any) -> bool:
    """Whether an argument is what cv2 takes for a bool."""
    return isinstance(argument, (bool, int))


def differs(call: Call, **defaults: float) -> str | None:
    """Returns a reason not to migrate if one of these parameters has another value."""
    for name, default in defaults.items():
        if not is_number(call[name]) or call[name] != default:
            return f"{name}= is given"
    return None


def scalar_of(argument: Any, fill: bool = False) -> np.ndarray | None:
    """Returns a number or a sequence of up to four as cv2's Scalar, None if it is neither.

    Args:
        argument: What was passed.
        fill: Whether a number stands for all channels, as in arithmetic, else for the first.
    """

    def plain(number: Any) -> bool:
        return isinstance(number, (int, float)) and is_number(number)

    if plain(argument):
        return np.array([argument] * 4 if fill else [argument, 0, 0, 0], dtype=np.float64)
    if isinstance(argument, (list, tuple)) and 1 <= len(argument) <= 4 and all(map(plain, argument)):
        return np.array([*argument, *[0] * (4 - len(argument))], dtype=np.float64)
    return None


def no_single_channel(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns an image's sizes without the dimension of a single channel, which cv2's results lack."""
    return tuple(shape[:2]) if len(shape) == 3 and shape[2] == 1 else tuple(shape)


def result(
    spec: Spec, size: tuple[int, int] | None = None, dtype: torch.dtype | None = None, channels: int = 0
) -> Spec:
    """Returns the spec of a result like an image, where `size` is (height, width)."""
    shape = (*(size or spec.shape[:2]), channels or spec.channels)
    return Spec("array", no_single_channel(shape), dtype or spec.dtype)


def squeezed(images: torch.Tensor) -> torch.Tensor:
    """Returns a batch of images without the dimension of a single channel."""
    return images.squeeze(3) if images.dim() == 4 and images.shape[3] == 1 else images


def by_operator(name: str, images: torch.Tensor | Sequence[torch.Tensor], *settings: Any) -> torch.Tensor:
    """Returns what an operator of `torch.ops.hetero` makes of images; the host computes it where there is no kernel.

    Args:
        name: Such as "cv_color".
        images: A batch [batch, height, width, ...], or a list of images of different sizes.
        settings: The operator's other arguments.
    """
    operator, device = getattr(torch.ops.hetero, name), images[0].device
    if isinstance(images, torch.Tensor):
        images = images.unsqueeze(3) if images.dim() == 3 else images
    else:
        images = [image.unsqueeze(2) if image.dim() == 2 else image for image in images]
    if has_kernels(images[0].device):
        return squeezed(operator(images, *settings))
    images, settings = tree_map_only(torch.Tensor, torch.Tensor.cpu, (images, settings))
    return squeezed(operator(images, *settings)).to(device)


def per_sample(setting: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """Returns numbers [batch], or numbers of four channels [batch, 4], in a shape to compute with a batch of images."""
    if setting.dim() == 1:
        return setting.view(-1, *[1] * (images.dim() - 1))
    if images.dim() == 3:
        return setting[:, :1].unsqueeze(2)
    return setting[:, : images.shape[3]].view(len(setting), 1, 1, -1)


def saturated(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns numbers as elements of another type: rounded, and clamped to its range."""
    if dtype.is_floating_point:
        return values.to(dtype)
    low, high = LIMITS[dtype]
    if values.dtype.is_floating_point:
        # Values that do not fit an int of 32 bits become the least one, NaN too.
        values = torch.where(values < 2.0**31, values.round(), -(2.0**31))
    return values.clamp(low, high).to(dtype)


def known_border(border: Any, constant: bool = True, wrap: bool = True) -> str | None:
    """Returns a reason not to extrapolate by a border type."""
    if not is_whole(border) or int(border) & ~ISOLATED not in range(5):
        return f"border type {border} is none that is extrapolated"
    kind = int(border) & ~ISOLATED
    if kind == CONSTANT and not constant or kind == WRAP and not wrap:
        return f"border type {border} stays on the CPU"
    return None


def border_indices(size: int, before: int, after: int, border: int) -> np.ndarray:
    """Returns for each position from -before to size + after - 1 the one whose pixel is there; -1 for a constant."""
    positions = np.arange(-before, size + after)
    if border == REPLICATE:
        return positions.clip(0, size - 1)
    if border == WRAP:
        return positions % size
    if border == CONSTANT:
        return np.where((positions < 0) | (positions >= size), -1, positions)
    if size == 1:
        return np.zeros_like(positions)
    period = 2 * size if border == REFLECT else 2 * size - 2
    positions = positions % period
    return np.where(positions < size, positions, period - positions - (border == REFLECT))


def padded(
    images: torch.Tensor,
    sizes: tuple[int, int, int, int],
    border: int,
    value: torch.Tensor | float = 0,
) -> torch.Tensor:
    """Returns a batch of images [batch, height, width, ...] with pixels around.

    Args:
        images: The images.
        sizes: Rows above and below, columns to the left and to the right.
        border: cv2's border type.
        value: Of a constant border; a number, or a tensor that broadcasts with the images.
    """
    for dimension, (before, after) in ((1, sizes[:2]), (2, sizes[2:])):
        if before or after:
            size = images.shape[dimension]
            indices = torch.from_numpy(border_indices(size, before, after, border & ~ISOLATED))
            outside = indices < 0
            images = images.index_select(dimension, indices.clamp(min=0).to(images.device))
            if bool(outside.any()):
                mask = outside.to(images.device).view(
                    [-1 if entry == dimension else 1 for entry in range(images.dim())]
                )
                if not isinstance(value, torch.Tensor):
                    value = torch.tensor(value, dtype=images.dtype).to(images.device)
                images = torch.where(mask, value.to(images.dtype), images)
    return images


def example_image(
    fixed: np.random.Generator,
    random: np.random.Generator,
    channels: Sequence[int] = (0, 1, 2, 3, 4),
    dtypes: Sequence[str] = ("uint8",),
    size: tuple[int, int] | None = None,
    largest: int = 24,
) -> np.ndarray:
    """Returns an image [height, width, channels], or [height, width] for 0 channels: noise, few values, or one.

    Bytes and integers have all of their values, floats those of a normal distribution times 100.
    """
    height, width = size or (int(entry) for entry in fixed.integers(1, largest + 1, 2))
    count = int(fixed.choice(np.asarray(channels)))
    dtype = np.dtype(str(fixed.choice(np.asarray(dtypes))))
    shape = (height, width, count) if count else (height, width)
    if dtype.kind == "f":
        return (random.standard_normal(shape) * 100).astype(dtype)
    limits = np.iinfo(dtype)
    kind = random.integers(6)
    if kind == 0:
        return np.full(shape, random.integers(limits.min, limits.max + 1), dtype)
    if kind == 1:
        return random.choice(np.array([limits.min, limits.max, 1, 127], dtype), shape)
    return random.integers(limits.min, limits.max + 1, shape, dtype=dtype)
