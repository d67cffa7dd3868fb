"""cv2: conversions between color spaces, and tables of colors.

Most conversions are `torch.ops.hetero.cv_color`. The formulas here are for the others, in cv2's own arithmetic.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from torch_hetero.migration.strategies.opencv import (
    Arguments,
    OpenCV,
    by_operator,
    differs,
    example_image,
    is_whole,
    result,
    saturated,
    squeezed,
)
from torch_hetero.migration.strategy import Call, Mapped, register

Planes = tuple[torch.Tensor, ...]


def shifted(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Divides integers by a power of two, and rounds halves up."""
    return (values + (1 << (bits - 1))) >> bits


def table(entries: np.ndarray, indices: torch.Tensor) -> torch.Tensor:
    """Returns entries of a table of integers by indices of any shape."""
    values = torch.from_numpy(np.ascontiguousarray(entries, dtype=np.int32)).to(indices.device)
    return values.index_select(0, indices.reshape(-1)).view(indices.shape)


# From red, green and blue in int32, each [batch, height, width], to the three planes of a space, and back.


def to_yuv(red: torch.Tensor, green: torch.Tensor, blue: torch.Tensor) -> Planes:
    """Returns Y, U and V."""
    y, middle = shifted(4899 * red + 9617 * green + 1868 * blue, 14), 128 << 14
    return y, shifted((blue - y) * 8061 + middle, 14), shifted((red - y) * 14369 + middle, 14)


def from_yuv(y: torch.Tensor, u: torch.Tensor, v: torch.Tensor) -> Planes:
    """Returns red, green and blue."""
    u, v = u - 128, v - 128
    return y + shifted(v * 18678, 14), y + shifted(u * -6472 + v * -9519, 14), y + shifted(u * 33292, 14)


# In units of 1/4096, by rows.
RGB_TO_XYZ = ((1689, 1465, 739), (871, 2929, 296), (79, 488, 3892))
XYZ_TO_RGB = ((13273, -6296, -2042), (-3970, 7684, 170), (228, -836, 4331))


def by_matrix(
    matrix: Sequence[Sequence[int]], first: torch.Tensor, second: torch.Tensor, third: torch.Tensor
) -> Planes:
    """Returns three planes, the products with a matrix of 4096ths."""
    return tuple(shifted(a * first + b * second + c * third, 12) for a, b, c in matrix)


def from_hls(hue: torch.Tensor, light: torch.Tensor, saturation: torch.Tensor, hues: int) -> Planes:
    """Returns red, green and blue."""
    unit = float(np.float32(1.0 / 255.0))
    hue = hue.float() * float(np.float32(6.0) / np.float32(hues))
    light, saturation = light.float() * unit, saturation.float() * unit
    whole = hue.trunc()
    part = hue - whole
    sector = torch.where(whole >= 6, whole - 6, whole)
    both = light * saturation
    half = torch.where(light <= 0.5, both, saturation - both)
    most, least, twice = light + half, light - half, part + part
    falling, rising = most - half * twice, least + half * twice
    planes = []
    for plane, *others in (
        (most, falling, least, least, rising, most),
        (rising, most, most, falling, least, least),
        (least, least, rising, most, most, falling),
    ):
        for number, other in enumerate(others, 1):
            plane = torch.where(sector == number, other, plane)
        planes.append(plane * 255)
    return tuple(planes)


D65 = (0.950456, 1.0, 1.088754)


@functools.cache
def lab_tables() -> dict[str, np.ndarray]:
    """Returns cv2's tables for L*a*b*: the inverse of gamma, cube roots, and back from L*, a* and b*."""
    rgb_to_xyz = np.array(
        [[0.412453, 0.357580, 0.180423], [0.212671, 0.715160, 0.072169], [0.019334, 0.119193, 0.950227]]
    )
    xyz_to_rgb = np.array(
        [[3.240479, -1.53715, -0.498535], [-0.969256, 1.875991, 0.041556], [0.055648, -0.204043, 1.057311]]
    )
    single, white = np.float32, np.array(D65)
    steps = np.arange(4096) / 4096
    inverse = np.where(steps <= 7827 / 2500000, steps * (323 / 25), steps ** (1 / 2.4) * (1 + 11 / 200) - 11 / 200)
    steps = (np.arange(3072, dtype=single) * single(1 / single(255 * 8))).astype(np.float64)
    line = steps * float(single(841) / single(108)) + float(single(16) / single(116))
    roots = np.where(steps < float(single(216) / single(24389)), line, np.cbrt(steps))
    rounded = roots.astype(single)  # cv2 does not round cube roots, it drops bits
    lights = np.arange(256)
    places = (lights * 100 * 16384) / (255 * 116) + (16 * 16384) / 116
    y = np.where(lights <= 20, lights * 16384 * 20 * 9 / (17 * 29**3), places**3 / 16384**2)
    root_y = np.where(lights <= 20, 16384 * (16 / 116 + lights * 5 / (3 * 17 * 29)), places)
    numbers = np.arange(-8145, 16384 * 9 // 4 - 8145)
    below = np.array([int(entry * 108 / 841) for entry in numbers]) - 16384 * 16 // 116 * 108 // 841
    above = numbers * numbers // 16384 * numbers // 16384
    return {
        "inverse": np.rint(single(255) * inverse.astype(single)),
        "roots": np.rint((1 << 15) * np.where(rounded > roots, np.nextafter(rounded, single(0)), rounded)),
        "y": np.rint(y.astype(single)),
        "root_y": np.rint(root_y.astype(single)),
        "xz": np.where(numbers <= 3390, below, above),
        "to": np.rint(4096 * rgb_to_xyz / white[:, None]),
        "from": np.rint(4096 * xyz_to_rgb * white[None, :]),
    }


def to_lab(red: torch.Tensor, green: torch.Tensor, blue: torch.Tensor) -> Planes:
    """Returns L*, a* and b* of linear colors."""
    tables = lab_tables()
    planes = by_matrix(tables["to"].astype(int).tolist(), 8 * red, 8 * green, 8 * blue)
    x, y, z = (table(tables["roots"], plane) for plane in planes)
    middle = 128 << 15
    light = shifted((116 * 255 + 50) // 100 * y - (16 * 255 * (1 << 15) + 50) // 100, 15)
    return light, shifted(500 * (x - y) + middle, 15), shifted(200 * (y - z) + middle, 15)


def from_lab(light: torch.Tensor, a: torch.Tensor, b: torch.Tensor, linear: bool) -> Planes:
    """Returns red, green and blue."""
    tables = lab_tables()
    y, root = table(tables["y"], light), table(tables["root_y"], light)
    x = root + ((5 * a * 53687 + (1 << 7)) >> 13) - 128 * 16384 // 500
    z = root - (((b * 41943 + (1 << 4)) >> 9) - 128 * 16384 // 200 + 1)
    x, z = (table(tables["xz"], entry + 8145) for entry in (x, z))
    planes = [
        shifted(first * x + second * y + third * z, 14).clamp(0, 4095)
        for first, second, third in tables["from"].astype(int).tolist()
    ]
    if linear:
        return tuple((plane * 255) >> 12 for plane in planes)
    return tuple(table(tables["inverse"], plane) for plane in planes)


To = Callable[..., Planes]
RGB, BGR = (0, 1, 2), (2, 1, 0)

# By code: channels that are taken, None for one that is 255.
REORDERED = {0: (0, 1, 2, None), 1: (0, 1, 2), 2: (2, 1, 0, None), 3: (2, 1, 0), 4: (2, 1, 0), 5: (2, 1, 0, 3),
             8: (0, 0, 0), 9: (0, 0, 0, None)}  # fmt: skip
TAKEN = {0: (3,), 1: (4,), 2: (3,), 3: (4,), 4: (3,), 5: (4,), 8: (1,), 9: (1,)}

# By code: that of `cv_color`, which has no channel for alpha.
OPERATED = {code: code for code in (6, 7, 36, 37, 38, 39, 40, 41, 44, 45, 52, 53, 54, 55, 66, 67)} | {10: 6, 11: 7}

# By code: the function, and where red, green and blue are.
TO: dict[int, tuple[To, tuple[int, int, int]]] = {}
FROM: dict[int, tuple[To, tuple[int, int, int]]] = {}
CONVERSIONS_TO = ((32, functools.partial(by_matrix, RGB_TO_XYZ)), (82, to_yuv), (74, to_lab))
CONVERSIONS_FROM = (
    (34, functools.partial(by_matrix, XYZ_TO_RGB)), (84, from_yuv), (60, functools.partial(from_hls, hues=180)),
    (56, functools.partial(from_lab, linear=False)), (78, functools.partial(from_lab, linear=True)),
)  # fmt: skip
for first, function in CONVERSIONS_TO:
    TO[first], TO[first + 1] = (function, BGR), (function, RGB)
for first, function in CONVERSIONS_FROM:
    FROM[first], FROM[first + 1] = (function, BGR), (function, RGB)


def taken_channels(code: int) -> Sequence[int]:
    """Returns the numbers of channels that cv2 takes for a code."""
    takes_alpha = code in TO or code in OPERATED and code not in (6, 7, 38, 39, 54, 55)
    return TAKEN.get(code) or ((4,) if code in (10, 11) else (3, 4) if takes_alpha else (3,))


@register
class CvtColor(OpenCV):
    target = "cv2.cvtColor"
    parameters = "src, code, dst=None, dstCn=0, hint=0"
    dtypes = (torch.uint8, torch.float32)

    def limits(self, call: Call) -> str | None:
        code, source = call["code"], call["src"]
        if not is_whole(code) or code not in {**REORDERED, **OPERATED, **TO, **FROM}:
            return f"code={code} stays on the CPU"
        if source.dtype != torch.uint8 and (code not in REORDERED or None in REORDERED[code]):
            return f"float32 images with code={code} stay on the CPU"
        if source.channels not in taken_channels(code):
            return f"code={code} does not take {source.channels} channels"
        return differs(call, dstCn=0, hint=0)

    def map(self, call: Call) -> Mapped:
        code = int(call["code"])
        channels = len(REORDERED[code]) if code in REORDERED else 1 if code in (6, 7, 10, 11) else 3
        return Mapped(result(call["src"], channels=channels), static=code)

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        (images,), code = inputs, static
        if code in REORDERED:
            images = images.unsqueeze(3) if images.dim() == 3 else images
            white = torch.full_like(images[..., :1], 255)
            channels = [white if entry is None else images[..., entry : entry + 1] for entry in REORDERED[code]]
            return torch.cat(channels, 3)
        if code in OPERATED:
            return by_operator("cv_color", images[..., :3], OPERATED[code])
        function, places = TO.get(code) or FROM[code]
        planes = images.unbind(3)
        if code in TO:
            planes = function(*[planes[place].to(torch.int32) for place in places])
        else:
            colors = function(*[plane.to(torch.int32) for plane in planes])
            planes = [colors[place] for place in places]
        return torch.stack([saturated(plane, torch.uint8) for plane in planes], 3)

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        code = int(fixed.choice([*REORDERED, *OPERATED, *TO, *FROM]))
        taken = taken_channels(code)
        dtypes = ["uint8", "float32"] if code in REORDERED and None not in REORDERED[code] else ["uint8"]
        return (example_image(fixed, random, [0, 1] if taken == (1,) else taken, dtypes, largest=90), code), {}


@register
class ApplyColorMap(OpenCV):
    target = "cv2.applyColorMap"
    parameters = "src, colormap, dst=None"
    channels = (1, 3)

    def limits(self, call: Call) -> str | None:
        return None if is_whole(call["colormap"]) and 0 <= call["colormap"] <= 21 else "colormap= is none of cv2's"

    def map(self, call: Call) -> Mapped:
        return Mapped(result(call["src"], channels=3), sample=(color_map(int(call["colormap"])),))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        images = squeezed(inputs[0])
        if images.dim() == 4:
            images = by_operator("cv_color", images, 6)
        indices = images.reshape(len(images), -1, 1).expand(-1, -1, 3).to(torch.int64)
        return sample[0].gather(1, indices).view(*images.shape, 3).to(torch.uint8)

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        return (example_image(fixed, random, (0, 1, 3)), int(random.integers(22))), {}


@functools.cache
def color_map(number: int) -> np.ndarray:
    """Returns one of cv2's maps: [256, 3], int64."""
    import cv2

    return cv2.applyColorMap(np.arange(256, dtype=np.uint8), number).reshape(256, 3).astype(np.int64)
