"""Pillow's filters for batches: kernels of 3x3 and 5x5, box and Gaussian blurs, ranks.

Images are bytes [batch, height, width, bands]. The functions repeat `Filter.c`, `BoxBlur.c`, `UnsharpMask.c` and
`RankFilter.c` of libImaging.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from torch_hetero.migration.strategies.pillow_pixels import clip, per_sample
from torch_hetero.migration.strategies.pillow_sampling import along_axes, has_kernels

__all__ = ["box_blur", "box_settings", "convolve", "gaussian_radius", "rank", "unsharp"]


def convolve(images: torch.Tensor, kernel: Sequence[float], offset: float) -> torch.Tensor:
    """Convolves images with a kernel of 9 or 25 numbers, as floats. Pixels at the border stay.

    Args:
        images: Bytes, at least as large as the kernel.
        kernel: Rows from the bottom up, divided by the scale, as 32-bit floats.
        offset: Added to each result.
    """
    size = math.isqrt(len(kernel))
    edge = size // 2
    height, width = images.shape[1] - 2 * edge, images.shape[2] - 2 * edge
    wide = images.to(torch.float32)
    total = torch.full((1,), float(np.float32(offset) + np.float32(0.5)), device=images.device)
    for row in range(size):
        line = None
        for column in range(size):
            part = kernel[row * size + column]
            if part == 0:
                continue
            top = size - 1 - row
            product = wide[:, top : top + height, column : column + width] * part
            line = product if line is None else line + product
        total = total if line is None else total + line
    inner = clip(total).expand(len(images), height, width, images.shape[3])
    rows = torch.cat(
        [images[:, edge : edge + height, :edge], inner, images[:, edge : edge + height, edge + width :]], 2
    )
    return torch.cat([images[:, :edge], rows, images[:, edge + height :]], 1)


def gaussian_radius(deviation: float, passes: int = 3) -> float:
    """Returns the radius of the box whose repeated blur is nearly a Gaussian's."""
    f = np.float32
    variance = f(f(deviation) * f(deviation)) / f(passes)
    length = f(math.sqrt(12.0 * float(variance) + 1.0))
    whole = f(math.floor((float(length) - 1.0) / 2.0))
    part = (f(2) * whole + f(1)) * (whole * (whole + f(1)) - f(3) * variance)
    part = part / (f(6) * (variance - (whole + f(1)) * (whole + f(1))))
    return float(whole + part)


def box_settings(radius: float) -> tuple[int, int, int]:
    """Returns (whole pixels of the radius, weight of a whole pixel, weight of the pixels at the ends)."""
    whole = int(np.float32(radius))
    weight = int(np.float32(1 << 24) / (np.float32(radius) * np.float32(2) + np.float32(1)))
    return whole, weight, (((1 << 24) - (whole * 2 + 1) * weight) & 0xFFFFFFFF) // 2


def blur_rows(rows: torch.Tensor, whole: int, weight: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
    """Blurs [batch, n, m] along n with boxes of 2 x `whole` + 1 pixels and parts of two more."""
    length = rows.shape[1]
    places = torch.arange(-whole - 1, length + whole + 1, device=rows.device).clamp(0, length - 1)
    padded = rows.index_select(1, places).to(torch.int32)
    if whole <= 4:
        total = padded[:, 1 : 1 + length]
        for shift in range(1, 2 * whole + 1):
            total = total + padded[:, 1 + shift : 1 + shift + length]
    else:
        sums = padded.cumsum(1, dtype=torch.int32)
        total = sums[:, 2 * whole + 1 : 2 * whole + 1 + length] - sums[:, :length]
    ends = padded[:, :length] + padded[:, 2 * whole + 2 :]
    # libImaging's numbers are unsigned: the product may wrap around, and its highest byte is the result.
    weight, end = (per_sample(part.to(torch.int32), rows) for part in (weight, end))
    return ((total * weight + ends * end + (1 << 23)) >> 24).to(torch.uint8)


def box_blur(
    images: torch.Tensor, wholes: tuple[int | None, int | None], weights: Sequence[torch.Tensor], passes: int
) -> torch.Tensor:
    """Blurs images with boxes.

    Args:
        images: Bytes.
        wholes: The whole pixels of the radius across and down, None for no blur.
        weights: For each direction, weights of whole pixels and of ends, [batch].
        passes: How often each direction is blurred.
    """

    def axis(rows: torch.Tensor, direction: int) -> torch.Tensor:
        for _ in range(passes):
            rows = blur_rows(rows, wholes[direction], weights[2 * direction], weights[2 * direction + 1])
        return rows

    return along_axes(
        images,
        None if wholes[0] is None else lambda rows: axis(rows, 0),
        None if wholes[1] is None else lambda rows: axis(rows, 1),
    )


def unsharp(
    images: torch.Tensor, blurred: torch.Tensor, percent: torch.Tensor, threshold: torch.Tensor
) -> torch.Tensor:
    """Adds to each pixel what the blur took, where that is more than a threshold."""
    wide = images.to(torch.int64)
    difference = wide - blurred
    added = torch.div(difference * per_sample(percent, images), 100, rounding_mode="trunc")
    return torch.where(difference.abs() > per_sample(threshold, images), clip(wide + added), images)


def rank(images: torch.Tensor, size: int, place: int) -> torch.Tensor:
    """Returns the value at a place of the sorted pixels around each pixel; pixels at the border repeat outside."""
    if place == size * size // 2 and has_kernels(images.device):
        return torch.ops.hetero.cv_median_blur(images, size)
    edge = size // 2
    height, width = images.shape[1:3]
    rows = torch.arange(-edge, height + edge, device=images.device).clamp(0, height - 1)
    columns = torch.arange(-edge, width + edge, device=images.device).clamp(0, width - 1)
    padded = images.index_select(1, rows).index_select(2, columns)
    count = size * size
    if place in (0, count - 1):
        better = torch.minimum if place == 0 else torch.maximum
        for dimension, length in ((1, height), (2, width)):
            chosen = padded.narrow(dimension, 0, length)
            for shift in range(1, size):
                chosen = better(chosen, padded.narrow(dimension, shift, length))
            padded = chosen
        return padded
    values = [padded[:, row : row + height, column : column + width] for row in range(size) for column in range(size)]
    for low, high in selection(count, place):
        values[low], values[high] = torch.minimum(values[low], values[high]), torch.maximum(values[low], values[high])
    return values[place]


def selection(count: int, place: int) -> list[tuple[int, int]]:
    """Returns the comparisons (low, high) of a sorting network that the value at one place depends on.

    It is Batcher's odd-even merge sort for the next power of two, without comparisons to places that are not there.
    """
    comparisons: list[tuple[int, int]] = []
    size = 1
    while size < count:
        step = size
        while step >= 1:
            for start in range(step % size, count - step, 2 * step):
                for low in range(start, min(start + step, count - step)):
                    if low // (2 * size) == (low + step) // (2 * size):
                        comparisons.append((low, low + step))
            step //= 2
        size *= 2
    needed, kept = {place}, []
    for low, high in reversed(comparisons):
        if low in needed or high in needed:
            needed |= {low, high}
            kept.append((low, high))
    return kept[::-1]
