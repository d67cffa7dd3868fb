"""torchvision's arithmetic on tensors, for batches [batch, channels, height, width] whose samples differ in settings.

Version 1 (`torchvision.transforms.functional`) and version 2 (`torchvision.transforms.v2.functional`) differ in the
order of operations, and so in bits. Each function here makes the operations of the version that it is asked for, in the
same order, with settings as 32-bit floats, which is what PyTorch makes of a Python number.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from torch_hetero.migration.strategies import pillow_pixels as pixels
from torch_hetero.migration.strategies import pillow_sampling as sampling

__all__ = [
    "autocontrast", "blend", "blur", "brightness", "contrast", "gamma", "grey", "grid_affine", "grid_identity",
    "grid_perspective", "hue", "invert", "largest", "over", "resample_bytes", "resample_floats", "resize", "saturation",
    "sharpness", "transform", "window",
]  # fmt: skip


def largest(dtype: torch.dtype) -> int:
    """Returns the value of white: 255 for bytes, 1 for floats."""
    return 255 if dtype == torch.uint8 else 1


def scalar(setting: torch.Tensor) -> torch.Tensor:
    """Returns settings [batch] as floats that broadcast over a batch of images."""
    return setting.to(torch.float32).reshape(-1, 1, 1, 1)


def over(values: torch.Tensor, divisor: float) -> torch.Tensor:
    """Divides; a GPU multiplies by the reciprocal of a Python number."""
    return values / torch.full((1,), divisor, dtype=values.dtype, device=values.device)


def grey(images: torch.Tensor, version: int) -> torch.Tensor:
    """Returns the luminance as floats that are not rounded yet."""
    red, green, blue = images.unbind(1)
    if version == 1:
        return (0.2989 * red + 0.587 * green + 0.114 * blue)[:, None]
    return red.mul(0.2989).add(green, alpha=0.587).add(blue, alpha=0.114)[:, None]


def blend(left: torch.Tensor, right: torch.Tensor, ratio: torch.Tensor, version: int) -> torch.Tensor:
    """Returns ratio x left + (1 - ratio) x right, within black and white."""
    share, rest = scalar(ratio), scalar(1.0 - ratio.to(torch.float64))
    if version == 1:
        mixed = share * left + rest * right
    else:
        mixed = torch.addcmul(left.to(torch.float32) * share, right.to(torch.float32), rest)
    return mixed.clamp(0, largest(left.dtype)).to(left.dtype)


def brightness(images: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Multiplies images by factors [batch]."""
    return (images * scalar(factor)).clamp(0, largest(images.dtype)).to(images.dtype)


def contrast(images: torch.Tensor, factor: torch.Tensor, version: int) -> torch.Tensor:
    """Mixes images with their mean."""
    level = images.to(torch.float32) if images.shape[1] == 1 else grey(images, version)
    if images.dtype == torch.uint8:
        level = level.floor()
    return blend(images, level.mean((1, 2, 3), keepdim=True), factor, version)


def saturation(images: torch.Tensor, factor: torch.Tensor, version: int) -> torch.Tensor:
    """Mixes RGB images with their luminance."""
    level = grey(images, version)
    return blend(images, level.floor() if images.dtype == torch.uint8 else level, factor, version)


def hue(images: torch.Tensor, factor: torch.Tensor, version: int) -> torch.Tensor:
    """Turns the hue of RGB images by a part of a turn."""
    shift = factor.to(torch.float32).reshape(-1, 1, 1)
    wide = images.to(torch.float32)
    if version == 1:
        wide = over(wide, 255.0) if images.dtype == torch.uint8 else wide
        result = turned_1(wide, shift)
    else:
        wide = wide.mul(1.0 / 255) if images.dtype == torch.uint8 else wide
        result = turned_2(wide, shift)
    return result.mul(255 + 1.0 - 1e-3).to(torch.uint8) if images.dtype == torch.uint8 else result


def turned_1(images: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    red, green, blue = images.unbind(1)
    high, low = images.amax(1), images.amin(1)
    flat = high == low
    spread = high - low
    strength = spread / torch.where(flat, 1.0, high)
    divisor = torch.where(flat, 1.0, spread)
    of_red, of_green, of_blue = ((high - band) / divisor for band in (red, green, blue))
    by_red, by_green = high == red, (high == green) & (high != red)
    by_blue = (high != green) & (high != red)
    turns = by_red * (of_blue - of_green) + by_green * (2.0 + of_red - of_blue) + by_blue * (4.0 + of_green - of_red)
    turns = torch.fmod(turns / 6.0 + 1.0, 1.0)
    turns = (turns + shift) % 1.0
    sector = torch.floor(turns * 6.0)
    part = turns * 6.0 - sector
    p = (high * (1.0 - strength)).clamp(0.0, 1.0)
    q = (high * (1.0 - strength * part)).clamp(0.0, 1.0)
    t = (high * (1.0 - strength * (1.0 - part))).clamp(0.0, 1.0)
    return by_sector(sector, high, p, q, t)


def turned_2(images: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    red, green, blue = images.unbind(1)
    high, low = images.amax(1), images.amin(1)
    flat = high == low
    spread = high - low
    strength = spread / torch.where(flat, 1.0, high)
    divisor = torch.where(flat, 1.0, spread)
    of_red, of_green, of_blue = ((high - band) / divisor for band in (red, green, blue))
    not_red, is_green = high != red, high == green
    by_green = (of_red + 2.0 - of_blue) * (is_green & not_red)
    by_red = (of_blue - of_green) * ~not_red
    by_blue = (of_green + 4.0 - of_red) * (not_red & ~is_green)
    turns = (by_red + by_green + by_blue).mul(1.0 / 6.0).add(1.0).fmod(1.0)
    turns = turns.add(shift).remainder(1.0)
    sixths = turns.mul(6)
    sector = torch.floor(sixths)
    product, rest = strength * (sixths - sector), 1.0 - strength
    q = ((1.0 - product) * high).clamp(0.0, 1.0)
    t = ((product + rest) * high).clamp(0.0, 1.0)
    p = (rest * high).clamp(0.0, 1.0)
    return by_sector(sector, high, p, q, t)


def by_sector(sector: torch.Tensor, v: torch.Tensor, p: torch.Tensor, q: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """Returns red, green and blue by the sixth of the circle of hues."""
    sector = sector.to(torch.int32) % 6

    def chosen(*bands: torch.Tensor) -> torch.Tensor:
        result = bands[5]
        for number in range(5):
            result = torch.where(sector == number, bands[number], result)
        return result

    return torch.stack([chosen(v, q, p, p, t, v), chosen(t, v, v, q, p, p), chosen(p, p, t, v, v, q)], 1)


def gamma(images: torch.Tensor, exponent: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    """Corrects images of floats."""
    return (scalar(gain) * images ** scalar(exponent)).clamp(0, 1)


def invert(images: torch.Tensor) -> torch.Tensor:
    """Returns white minus images."""
    return largest(images.dtype) - images


def autocontrast(images: torch.Tensor, version: int) -> torch.Tensor:
    """Maps the smallest and largest value of each channel to black and white."""
    bound = largest(images.dtype)
    low = images.amin((2, 3), keepdim=True).to(torch.float32)
    high = images.amax((2, 3), keepdim=True).to(torch.float32)
    flat = low == high
    if version == 1:
        # A small span of floats has an infinite scale.
        scale = bound / (high - low)
        flat = ~torch.isfinite(scale)
        stretched = (images - torch.where(flat, 0.0, low)) * torch.where(flat, 1.0, scale)
    else:
        inverse = torch.where(flat, 1.0, (high - low) * (1.0 / bound))
        stretched = (images.to(torch.float32) - torch.where(flat, 0.0, low)) / inverse
    return stretched.clamp(0, bound).to(images.dtype)


def sharpness(images: torch.Tensor, factor: torch.Tensor, version: int) -> torch.Tensor:
    """Mixes images with smoothed ones; the border is not smoothed."""
    height, width = images.shape[2:]
    whole = images.dtype == torch.uint8
    wide = images.to(torch.int32 if whole else torch.float32)
    total = None
    for row in range(3):
        for column in range(3):
            part = wide[..., row : row + height - 2, column : column + width - 2]
            part = part * 5 if row == column == 1 else part
            total = part if total is None else total + part
    if whole:  # (2 x total + 13) // 26 is total / 13, rounded; it is never half-way
        smooth = torch.div(total * 2 + 13, 26, rounding_mode="floor").to(torch.uint8)
    else:
        smooth = over(total, 13.0)
    if version == 1:
        return blend(images, framed(images, smooth), factor, 1)
    inner = images[..., 1:-1, 1:-1].to(torch.float32)
    rest = scalar(1.0 - factor.to(torch.float64))
    mixed = torch.addcmul(inner, smooth.to(torch.float32) - inner, rest)
    return framed(images, mixed).clamp(0, largest(images.dtype)).to(images.dtype)


def framed(images: torch.Tensor, inner: torch.Tensor) -> torch.Tensor:
    """Returns images with all but a border of one pixel replaced."""
    images = images.to(inner.dtype)
    rows = torch.cat([images[..., 1:-1, :1], inner, images[..., 1:-1, -1:]], 3)
    return torch.cat([images[..., :1, :], rows, images[..., -1:, :]], 2)


def blur(images: torch.Tensor, size: tuple[int, int], deviation: torch.Tensor, version: int) -> torch.Tensor:
    """Blurs with a Gaussian.

    Args:
        images: Bytes or floats.
        size: Width and height of the kernel, odd.
        deviation: Across and down, [batch, 2].
        version: 1 or 2.
    """

    def kernel(length: int, sigma: torch.Tensor) -> torch.Tensor:
        sigma = sigma.to(torch.float32)[:, None]
        half = (length - 1) * 0.5 if version == 1 else (length - 1) / (2.0 * math.sqrt(2.0))
        x = torch.linspace(-half, half, length, dtype=torch.float32, device=images.device)
        if version == 2:
            return torch.softmax((x / sigma).pow(2).neg(), 1)
        density = torch.exp(-0.5 * (x / sigma).pow(2))
        return density / density.sum(1, keepdim=True)

    batch, channels, height, width = images.shape
    across, down = kernel(size[0], deviation[:, 0]), kernel(size[1], deviation[:, 1])
    kernels = (down[:, :, None] * across[:, None, :])[:, None, None]
    kernels = kernels.expand(batch, channels, 1, *kernels.shape[3:]).reshape(batch * channels, 1, *kernels.shape[3:])
    wide = images.to(torch.float32).reshape(1, batch * channels, height, width)
    wide = functional.pad(wide, (size[0] // 2, size[0] // 2, size[1] // 2, size[1] // 2), mode="reflect")
    result = functional.conv2d(wide, kernels, groups=batch * channels).reshape(images.shape)
    return result.round().to(torch.uint8) if images.dtype == torch.uint8 else result


# Sizes.


def resize(images: torch.Tensor, size: tuple[int, int], mode: str, antialias: bool, whole: bool) -> torch.Tensor:
    """Resizes as torchvision does.

    Args:
        images: Bytes or floats.
        size: Height and width.
        mode: What `torch.nn.functional.interpolate` calls it.
        antialias: Whether pixels that are left out count; for "bilinear" and "bicubic".
        whole: Whether bytes are resized as integers, as version 2 does on CPUs with AVX2.
    """
    smooth = mode in ("bilinear", "bicubic")
    integers = images.dtype == torch.uint8 and (whole or not smooth)
    wide = images if integers or images.dtype != torch.uint8 else images.to(torch.float32)
    result = functional.interpolate(
        wide, size, mode=mode, align_corners=False if smooth else None, antialias=antialias and smooth
    )
    if wide.dtype == images.dtype:
        return result
    return (result.clamp(0, 255) if mode == "bicubic" else result).round().to(images.dtype)


def rows_and_columns(images: torch.Tensor, across: sampling.Axis | None, down: sampling.Axis | None) -> torch.Tensor:
    """Applies functions of [batch, n, m] along n to the width and the height of [batch, channels, height, width]."""
    return sampling.along_axes(images.permute(0, 2, 3, 1), across, down).permute(0, 3, 1, 2)


def resize_parts(
    images: torch.Tensor, parts: torch.Tensor, size: tuple[int, int], counts: tuple[int, int], mode: str, whole: bool
) -> torch.Tensor:
    """Resizes parts of images with antialiasing.

    Args:
        images: Bytes or floats.
        parts: Top, left, height and width of each part, int64 [batch, 4].
        size: Height and width of the results.
        counts: `pillow_sampling.taps` along the height and the width, for the whole image.
        mode: "bilinear" or "bicubic".
        whole: As for `resize`.
    """
    if sampling.has_kernels(images.device):
        places = parts.tolist()  # settings of samples come from the host: nothing is waited for
        views = [images[n : n + 1, :, top : top + h, left : left + w] for n, (top, left, h, w) in enumerate(places)]
        return torch.cat([resize(view, size, mode, True, whole) for view in views])
    kind = {"bilinear": 2, "bicubic": 3}[mode]
    resample = resample_bytes if whole and images.dtype == torch.uint8 else resample_floats
    return resample(images, kind, size, counts, sampling.spans_of(parts))


def resample_bytes(
    images: torch.Tensor, kind: int, size: tuple[int, int], counts: tuple[int, int], spans: tuple[sampling.Span, ...]
) -> torch.Tensor:
    """Resizes parts of images of bytes with weights of 16 bits, as PyTorch does on CPUs with AVX2.

    Its arguments are those of `pillow_sampling.resample`.
    """

    def axis(number: int) -> sampling.Axis:
        first, parts = sampling.weights(kind, spans[number], size[number], counts[number])
        # The precision is the largest whose weights fit 16 bits.
        top = parts.amax((1, 2))
        precision = sum(((top * (1 << (bits + 1)) + 0.5) < 1 << 15).to(torch.int32) for bits in range(22))
        scale = torch.exp2(precision.to(torch.float64))[:, None, None]
        wide = parts * scale
        parts = torch.where(parts < 0, wide - 0.5, wide + 0.5).to(torch.int32)
        bits = precision[:, None, None]
        half = (scale / 2).to(torch.int32)
        return lambda rows: pixels.clip(sampling.weighted_rows(rows, first, parts, half) >> bits)

    return rows_and_columns(images, axis(1), axis(0))


def single_weights(kind: int, span: sampling.Span, out: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns what `pillow_sampling.weights` does, in the 32-bit floats of PyTorch's antialiased interpolation."""
    function, reach = sampling.FILTERS[kind]
    single, double = torch.float32, torch.float64
    limit = span.limit[:, None]
    scale = (span.length.to(single) / torch.full_like(span.length, out, dtype=single))[:, None]
    support = reach * scale.clamp(min=1.0)
    middles = torch.arange(out, dtype=double, device=scale.device) + 0.5
    center = (scale.to(double) * middles).to(single)
    low = ((center - support).to(double) + 0.5).trunc().clamp(min=0.0)
    size = torch.minimum(((center + support).to(double) + 0.5).trunc(), limit) - low
    inverse = 1.0 / scale.clamp(min=1.0)
    columns: list[torch.Tensor] = []
    total = torch.zeros_like(center)
    for tap in range(count):
        distance = (((tap + low).to(single) - center).to(double) + 0.5) * inverse.to(double)
        weight = torch.where(tap < size, function(distance.to(single)), 0.0)
        total = total + weight
        columns.append(weight)
    first = (low + span.offset[:, None]).to(torch.int64)
    return first, torch.stack(columns, 2) / torch.where(total != 0.0, total, 1.0)[..., None]


def resample_floats(
    images: torch.Tensor, kind: int, size: tuple[int, int], counts: tuple[int, int], spans: tuple[sampling.Span, ...]
) -> torch.Tensor:
    """Resizes parts of images as floats; bytes are rounded at the end."""

    def axis(number: int) -> sampling.Axis:
        first, parts = single_weights(kind, spans[number], size[number], counts[number])
        return lambda rows: sampling.weighted_rows(rows, first, parts, None)

    result = rows_and_columns(images.to(torch.float32), axis(1), axis(0))
    return result.round().clamp(0, 255).to(torch.uint8) if images.dtype == torch.uint8 else result


def window(images: torch.Tensor, place: tuple[int, int, int, int], dimension: int) -> torch.Tensor:
    """Cuts out the same part of all images; pixels outside of them are 0.

    Args:
        images: With height and width at `dimension` and the next.
        place: Top, left, height and width.
        dimension: Where the height is.
    """
    result = images
    for axis, start, length in ((dimension, place[0], place[2]), (dimension + 1, place[1], place[3])):
        low, high = max(start, 0), min(start + length, images.shape[axis])
        result = result.narrow(axis, low, high - low)
        before, after = low - start, start + length - high
        if before or after:
            edges = [0, 0] * (result.dim() - axis - 1) + [before, after]
            result = functional.pad(result, edges)
    return result


# Transforms by grids.


def grid_affine(matrix: torch.Tensor, source: tuple[int, int], size: tuple[int, int]) -> torch.Tensor:
    """Returns where pixels come from, [batch, height, width, 2] from -1 to 1, for matrices [batch, 6]."""
    theta = matrix.to(torch.float32).reshape(-1, 2, 3).transpose(1, 2)
    divisor = torch.tensor([0.5 * source[1], 0.5 * source[0]], device=matrix.device)
    base = places(
        torch.linspace((1.0 - size[1]) * 0.5, (size[1] - 1.0) * 0.5, size[1], device=matrix.device),
        torch.linspace((1.0 - size[0]) * 0.5, (size[0] - 1.0) * 0.5, size[0], device=matrix.device),
    )
    return base.expand(len(theta), -1, -1).bmm(theta / divisor).reshape(-1, *size, 2)


def places(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Returns (x, y, 1) for each pixel, [1, height x width, 3]."""
    grid = torch.stack([x.expand(len(y), -1), y[:, None].expand(-1, len(x)), torch.ones_like(x).expand(len(y), -1)], 2)
    return grid.reshape(1, -1, 3)


def grid_perspective(coefficients: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Returns where pixels come from, for coefficients [batch, 8]."""
    a = coefficients.to(torch.float32)
    one = torch.ones_like(a[:, :1])
    upper = a[:, :6].reshape(-1, 2, 3).transpose(1, 2)
    lower = torch.cat([a[:, 6:], one, a[:, 6:], one], 1).reshape(-1, 2, 3).transpose(1, 2)
    divisor = torch.tensor([0.5 * size[1], 0.5 * size[0]], device=a.device)
    base = places(
        torch.linspace(0.5, size[1] + 0.5 - 1.0, size[1], device=a.device),
        torch.linspace(0.5, size[0] + 0.5 - 1.0, size[0], device=a.device),
    ).expand(len(a), -1, -1)
    return (base.bmm(upper / divisor) / base.bmm(lower) - 1.0).reshape(-1, *size, 2)


def grid_identity(size: tuple[int, int], device: torch.device) -> torch.Tensor:
    """Returns where pixels are, [1, height, width, 2] from -1 to 1."""
    y, x = (torch.linspace((1 - length) / length, (length - 1) / length, length, device=device) for length in size)
    return torch.stack([x.expand(len(y), -1), y[:, None].expand(-1, len(x))], 2)[None]


def transform(
    images: torch.Tensor, grid: torch.Tensor, mode: str, fill: torch.Tensor | None, version: int
) -> torch.Tensor:
    """Samples images at a grid, a colour [batch, channels or 1] outside."""
    wide = images.to(torch.float32)
    if fill is not None:
        wide = torch.cat([wide, torch.ones_like(wide[:, :1])], 1)
    result = functional.grid_sample(wide, grid, mode=mode, padding_mode="zeros", align_corners=False)
    if fill is not None:
        colour = fill.to(torch.float32)[:, :, None, None]
        result, mask = result[:, :-1], result[:, -1:]
        if mode == "nearest":
            result = torch.where(mask < 0.5, colour, result)
        elif version == 1:
            result = result * mask + (1.0 - mask) * colour
        else:
            result = (result - colour) * mask + colour
    return result.round().to(images.dtype) if images.dtype == torch.uint8 else result
