"""Pillow's arithmetic on single pixels, for batches: colours, blending, tables, histograms.

Images are bytes [batch, height, width, bands]. The functions repeat libImaging's integers and roundings, operation by
operation, so results have its bits: `Convert.c`, `ConvertYCbCr.c`, `Blend.c`, `AlphaComposite.c` and `Chops.c`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

__all__ = [
    "alpha_composite", "blend", "blend_mask", "clip", "convert", "conversion", "equalize", "equalizing_tables",
    "histogram", "levels", "lookup", "mean_of", "muldiv255", "per_sample", "premultiply", "stretch", "unpremultiply",
]  # fmt: skip

Convert = Callable[[torch.Tensor], torch.Tensor]


def per_sample(setting: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Returns settings [batch] as [batch, 1, 1, ...] so that they broadcast over a batch."""
    return setting.reshape(-1, *[1] * (like.dim() - 1))


def clip(values: torch.Tensor) -> torch.Tensor:
    """Returns numbers as bytes: cut off at 0 and 255, fractions dropped."""
    return values.clamp(0, 255).to(torch.uint8)


def muldiv255(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Returns left x right / 255, rounded: libImaging's MULDIV255."""
    return div255(left * right)


def div255(values: torch.Tensor) -> torch.Tensor:
    """Returns values / 255, rounded: libImaging's DIV255."""
    values = values + 128
    return ((values >> 8) + values) >> 8


# Colours.


def luma(images: torch.Tensor) -> torch.Tensor:
    """Returns the first band of three as grey."""
    red, green, blue = (images[..., band : band + 1].to(torch.int32) for band in range(3))
    return ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16).to(torch.uint8)


def opaque(images: torch.Tensor) -> torch.Tensor:
    """Returns a band of 255."""
    return torch.full_like(images[..., :1], 255)


def constant(images: torch.Tensor, value: int) -> torch.Tensor:
    """Returns a band of one value."""
    return torch.full_like(images[..., :1], value)


def grey_to_rgb(images: torch.Tensor) -> torch.Tensor:
    """Repeats the first band."""
    return images[..., :1].expand(*images.shape[:-1], 3)


def premultiply(images: torch.Tensor) -> torch.Tensor:
    """RGBA to RGBa, LA to La."""
    alpha = images[..., -1:]
    colours = muldiv255(images[..., :-1].to(torch.int32), alpha.to(torch.int32)).to(torch.uint8)
    return torch.cat([colours, alpha], 3)


def unpremultiply(images: torch.Tensor) -> torch.Tensor:
    """RGBa to RGBA, La to LA."""
    alpha = images[..., -1:]
    colours, divisor = images[..., :-1], alpha.to(torch.int32)
    wide = torch.div(colours.to(torch.int32) * 255, divisor.clamp(min=1), rounding_mode="floor")
    return torch.cat([torch.where((alpha == 255) | (alpha == 0), colours, clip(wide)), alpha], 3)


def rgb_to_cmyk(images: torch.Tensor) -> torch.Tensor:
    return torch.cat([255 - images[..., :3], constant(images, 0)], 3)


def grey_to_cmyk(images: torch.Tensor) -> torch.Tensor:
    zero = constant(images, 0)
    return torch.cat([zero, zero, zero, 255 - images[..., :1]], 3)


def cmyk_to_rgb(images: torch.Tensor) -> torch.Tensor:
    rest = 255 - images[..., 3:].to(torch.int32)
    return clip(rest - muldiv255(images[..., :3].to(torch.int32), rest))


def scaled(band: torch.Tensor, factor: float, zero: int = 0) -> torch.Tensor:
    """Returns an entry of the tables of ConvertYCbCr.c: (band - zero) x factor in 64ths, rounded half up to zero."""
    return ((band.to(torch.float64) - zero) * (factor * 64) + 0.5).to(torch.int32)


def rgb_to_ycbcr(images: torch.Tensor) -> torch.Tensor:
    red, green, blue = (images[..., band] for band in range(3))
    bands = (
        scaled(red, 0.299) + scaled(green, 0.587) + scaled(blue, 0.114) >> 6,
        (scaled(red, -0.16874) + scaled(green, -0.33126) + scaled(blue, 0.5) >> 6) + 128,
        (scaled(red, 0.5) + scaled(green, -0.41869) + scaled(blue, -0.08131) >> 6) + 128,
    )
    return torch.stack([band.to(torch.uint8) for band in bands], 3)


def ycbcr_to_rgb(images: torch.Tensor) -> torch.Tensor:
    luminance, blue, red = (images[..., band] for band in range(3))
    luminance = luminance.to(torch.int32)
    bands = (
        luminance + (scaled(red, 1.402, 128) >> 6),
        luminance + (scaled(blue, -0.34414, 128) + scaled(red, -0.71414, 128) >> 6),
        luminance + (scaled(blue, 1.772, 128) >> 6),
    )
    return torch.stack([clip(band) for band in bands], 3)


def grey_to_ycbcr(images: torch.Tensor) -> torch.Tensor:
    middle = constant(images, 128)
    return torch.cat([images[..., :1], middle, middle], 3)


def grey_to_hsv(images: torch.Tensor) -> torch.Tensor:
    zero = constant(images, 0)
    return torch.cat([zero, zero, images[..., :1]], 3)


def rgb_to_hsv(images: torch.Tensor) -> torch.Tensor:
    red, green, blue = (images[..., band].to(torch.float32) for band in range(3))
    largest = torch.maximum(red, torch.maximum(green, blue))
    smallest = torch.minimum(red, torch.minimum(green, blue))
    grey = largest == smallest
    spread = torch.where(grey, 1.0, largest - smallest)
    saturation = spread / torch.where(grey, 1.0, largest)
    of_red, of_green, of_blue = ((largest - band) / spread for band in (red, green, blue))
    # libImaging adds 2 and 4 as doubles and keeps the hue as a float.
    by_green = ((of_red.to(torch.float64) + 2.0) - of_blue).to(torch.float32)
    by_blue = ((of_green.to(torch.float64) + 4.0) - of_red).to(torch.float32)
    hue = torch.where(red == largest, of_blue - of_green, torch.where(green == largest, by_green, by_blue))
    turns = hue.to(torch.float64) / 6.0 + 1.0
    turns = (turns - turns.floor()).to(torch.float32).to(torch.float64)
    bands = (
        torch.where(grey, 0, clip(turns * 255.0)),
        torch.where(grey, 0, clip(saturation.to(torch.float64) * 255.0)),
        largest.to(torch.uint8),
    )
    return torch.stack(bands, 3)


def hsv_to_rgb(images: torch.Tensor) -> torch.Tensor:
    hue, saturation, value = (images[..., band].to(torch.float64) for band in range(3))
    turns = hue * 6.0 / 255.0
    sector = turns.floor()
    fraction = (turns - sector).to(torch.float32)
    strength = (saturation / 255.0).to(torch.float32)

    def byte(share: torch.Tensor) -> torch.Tensor:
        return clip((value * share + 0.5).floor())

    wide = strength.to(torch.float64)
    low = byte(1.0 - wide)
    falling = byte(1.0 - (strength * fraction).to(torch.float64))
    rising = byte(1.0 - wide * (1.0 - fraction.to(torch.float64)))
    top = images[..., 2]
    sector = sector.to(torch.int32) % 6

    def by_sector(*bands: torch.Tensor) -> torch.Tensor:
        chosen = bands[5]
        for number in range(5):
            chosen = torch.where(sector == number, bands[number], chosen)
        return torch.where(images[..., 1] == 0, top, chosen)

    return torch.stack(
        [
            by_sector(top, falling, low, low, rising, top),
            by_sector(rising, top, top, falling, low, low),
            by_sector(low, low, rising, top, top, falling),
        ],
        3,
    )


def first(count: int) -> Convert:
    """Returns a conversion that keeps the first bands."""
    return lambda images: images[..., :count]


def with_alpha(conversion: Convert, alpha: Convert = opaque) -> Convert:
    """Returns a conversion and a band of alpha."""
    return lambda images: torch.cat([conversion(images), alpha(images)], 3)


def last(images: torch.Tensor) -> torch.Tensor:
    """Keeps the last band."""
    return images[..., -1:]


CONVERSIONS: dict[tuple[str, str], Convert] = {
    ("L", "LA"): with_alpha(first(1)), ("L", "RGB"): grey_to_rgb, ("L", "RGBA"): with_alpha(grey_to_rgb),
    ("L", "RGBX"): with_alpha(grey_to_rgb), ("L", "CMYK"): grey_to_cmyk, ("L", "YCbCr"): grey_to_ycbcr,
    ("L", "HSV"): grey_to_hsv,
    ("LA", "L"): first(1), ("LA", "La"): premultiply, ("LA", "RGB"): grey_to_rgb,
    ("LA", "RGBA"): with_alpha(grey_to_rgb, last), ("LA", "RGBX"): with_alpha(grey_to_rgb, last),
    ("LA", "CMYK"): grey_to_cmyk, ("LA", "YCbCr"): grey_to_ycbcr, ("LA", "HSV"): grey_to_hsv,
    ("La", "LA"): unpremultiply,
    ("RGB", "L"): luma, ("RGB", "LA"): with_alpha(luma), ("RGB", "La"): with_alpha(luma),
    ("RGB", "RGBA"): with_alpha(first(3)), ("RGB", "RGBa"): with_alpha(first(3)), ("RGB", "RGBX"): with_alpha(first(3)),
    ("RGB", "CMYK"): rgb_to_cmyk, ("RGB", "YCbCr"): rgb_to_ycbcr, ("RGB", "HSV"): rgb_to_hsv,
    ("RGBA", "L"): luma, ("RGBA", "LA"): with_alpha(luma, last), ("RGBA", "RGB"): first(3),
    ("RGBA", "RGBa"): premultiply, ("RGBA", "RGBX"): with_alpha(first(3)), ("RGBA", "CMYK"): rgb_to_cmyk,
    ("RGBA", "YCbCr"): rgb_to_ycbcr, ("RGBA", "HSV"): rgb_to_hsv,
    ("RGBa", "RGBA"): unpremultiply, ("RGBa", "RGB"): lambda images: unpremultiply(images)[..., :3],
    ("RGBX", "L"): luma, ("RGBX", "LA"): with_alpha(luma), ("RGBX", "RGB"): first(3), ("RGBX", "CMYK"): rgb_to_cmyk,
    ("RGBX", "YCbCr"): rgb_to_ycbcr, ("RGBX", "HSV"): rgb_to_hsv,
    ("CMYK", "RGB"): cmyk_to_rgb, ("CMYK", "RGBA"): with_alpha(cmyk_to_rgb), ("CMYK", "RGBX"): with_alpha(cmyk_to_rgb),
    ("CMYK", "HSV"): lambda images: rgb_to_hsv(cmyk_to_rgb(images)),
    ("YCbCr", "L"): first(1), ("YCbCr", "LA"): with_alpha(first(1)), ("YCbCr", "RGB"): ycbcr_to_rgb,
    ("HSV", "RGB"): hsv_to_rgb,
}  # fmt: skip
# The mode by way of which Pillow converts when it has no direct way.
BASES = {"CMYK": "RGB", "YCbCr": "RGB", "HSV": "RGB", "RGBX": "RGB", "RGBA": "RGB", "RGBa": "RGB", "LA": "L", "La": "L"}


def conversion(source: str, target: str) -> tuple[str, ...] | None:
    """Returns the modes of the way from a mode to another, (source, ..., target); None if Pillow has none."""
    if (source, target) in CONVERSIONS:
        return source, target
    base = BASES.get(source)
    if base is not None and (source, base) in CONVERSIONS and (base, target) in CONVERSIONS:
        return source, base, target
    return None


def convert(images: torch.Tensor, way: tuple[str, ...]) -> torch.Tensor:
    """Converts along a way that `conversion` found."""
    for step in zip(way, way[1:], strict=False):
        images = CONVERSIONS[step](images)
    return images


def mean_of(grey: torch.Tensor) -> torch.Tensor:
    """Returns the mean of each grey image [batch, height, width, 1] as a byte [batch, 1, 1, 1], rounded half up."""
    total = grey.to(torch.int64).sum((1, 2, 3), keepdim=True).to(torch.float64)
    count = torch.full_like(total, grey.shape[1] * grey.shape[2])  # a division by a number is a reciprocal's product
    return (total / count + 0.5).to(torch.uint8)


# Two images.


def blend(left: torch.Tensor, right: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
    """Returns left + alpha x (right - left), for alpha [batch] of any size."""
    wide = left.to(torch.float32)
    return clip(wide + per_sample(alpha.to(torch.float32), left) * (right.to(torch.float32) - wide))


def blend_mask(left: torch.Tensor, right: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Returns the right image where a mask of one band is 255, the left one where it is 0."""
    mask = mask.to(torch.int32)
    return div255(left.to(torch.int32) * (255 - mask) + right.to(torch.int32) * mask).to(torch.uint8)


def alpha_composite(below: torch.Tensor, above: torch.Tensor) -> torch.Tensor:
    """Lays images with alpha over others."""
    low, high = below.to(torch.int64), above.to(torch.int64)
    low_alpha, high_alpha = low[..., -1:], high[..., -1:]
    alpha = high_alpha * 255 + low_alpha * (255 - high_alpha)
    share = torch.div(high_alpha * (255 * 255 * 128), alpha.clamp(min=1), rounding_mode="floor")
    colours = high[..., :-1] * share + low[..., :-1] * (255 * 128 - share) + (0x80 << 7)
    colours = (((colours >> 8) + colours) >> 8) >> 7
    result = torch.cat([colours, div255(alpha)], 3).to(torch.uint8)
    return torch.where(high_alpha == 0, below, result)


# Tables and histograms.


def lookup(images: torch.Tensor, tables: torch.Tensor) -> torch.Tensor:
    """Returns pixels by a table [batch, bands, 256] for each image and band."""
    batch, bands = tables.shape[:2]
    starts = torch.arange(batch * bands, device=images.device).reshape(batch, 1, 1, bands) * 256
    return tables.reshape(-1).index_select(0, (images.to(torch.int64) + starts).reshape(-1)).reshape(images.shape)


def histogram(images: torch.Tensor) -> torch.Tensor:
    """Returns [batch, bands, 256]: how many pixels have each value."""
    batch, bands = images.shape[0], images.shape[3]
    starts = torch.arange(batch * bands, device=images.device).reshape(batch, 1, 1, bands) * 256
    places = (images.to(torch.int64) + starts).reshape(-1)
    counts = torch.zeros(batch * bands * 256, dtype=torch.int64, device=images.device)
    ones = torch.ones(1, dtype=torch.int64, device=images.device).expand(places.shape)
    return counts.scatter_add(0, places, ones).reshape(batch, bands, 256)


def equalizing_tables(counts: torch.Tensor) -> torch.Tensor:
    """Returns the tables [batch, bands, 256] that make histograms even."""
    values = torch.arange(256, device=counts.device)
    last_value = torch.where(counts > 0, values, 0).amax(2, keepdim=True)
    step = torch.div(counts.sum(2, keepdim=True) - counts.gather(2, last_value), 255, rounding_mode="floor")
    below = counts.cumsum(2) - counts
    table = torch.div((step >> 1) + below, step.clamp(min=1), rounding_mode="floor").clamp(max=255)
    return torch.where(step == 0, values, table).to(torch.uint8)


def equalize(images: torch.Tensor) -> torch.Tensor:
    """Makes the histogram of each band even."""
    return lookup(images, equalizing_tables(histogram(images)))


def levels(images: torch.Tensor, cut: tuple[int, int] = (0, 0)) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the smallest and largest value [batch, 1, 1, bands] of each band without `cut` pixels at either end.

    Where nothing is left they are 255 and 0.
    """
    if cut == (0, 0):
        return images.amin((1, 2), keepdim=True), images.amax((1, 2), keepdim=True)
    counts = histogram(images)
    from_low, total = counts.cumsum(2), counts.sum(2, keepdim=True)
    from_high = total - from_low + counts
    values = torch.arange(256, device=images.device)
    lowest = torch.where(from_low > cut[0], values, 255).amin(2)
    highest = torch.where(from_high > cut[1], values, 0).amax(2)
    left = total[..., 0] > cut[0] + cut[1]
    lowest, highest = torch.where(left, lowest, 255), torch.where(left, highest, 0)
    return tuple(level.to(torch.uint8)[:, None, None, :] for level in (lowest, highest))


def stretch(images: torch.Tensor, lowest: torch.Tensor, highest: torch.Tensor) -> torch.Tensor:
    """Maps lowest..highest to 0..255, bands where lowest is not below highest to themselves."""
    low = lowest.to(torch.float64)
    span = highest.to(torch.float64) - low
    scale = torch.full_like(low, 255.0) / torch.where(span > 0, span, 1.0)  # 255.0 / span is a reciprocal's product
    stretched = clip(images.to(torch.float64) * scale + -low * scale)
    return torch.where(span > 0, stretched, images)
