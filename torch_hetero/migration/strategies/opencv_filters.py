"""cv2: filters, morphology and pyramids, whose pixels are computed from a neighborhood.

Bytes are filtered in integers, with cv2's own fixed-point kernels, so that results are exact. Loops are over the taps
of a kernel: each tap is a shifted view of the padded images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from torch_hetero.migration.strategies.opencv import (
    BYTES_AND_FLOATS,
    DEPTHS,
    ISOLATED,
    LIMITS,
    Arguments,
    OpenCV,
    by_operator,
    differs,
    example_image,
    is_flag,
    is_number,
    is_whole,
    known_border,
    padded,
    result,
    saturated,
    squeezed,
)
from torch_hetero.migration.strategy import Call, Mapped, Tolerance, Unsupported, register

REFLECT_101 = 4
# What `torch.ops.hetero` takes.
LARGEST_KERNEL = 1023


def is_pair(argument: Any) -> bool:
    """Whether an argument is what cv2 takes for a size or a point."""
    return isinstance(argument, (list, tuple)) and len(argument) == 2 and all(map(is_whole, argument))


def known_anchor(anchor: Any, width: int, height: int) -> str | None:
    """Returns a reason not to migrate if an anchor (x, y) is not within a kernel."""
    if not is_pair(anchor) or not (-1 <= anchor[0] < width and -1 <= anchor[1] < height):
        return "anchor= is not within the kernel"
    return None


def around(size: int, anchor: int) -> tuple[int, int]:
    """Returns how many pixels a kernel reads before and after its own; -1 is the middle."""
    before = size // 2 if anchor < 0 else anchor
    return before, size - 1 - before


def tap_of(taps: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """Returns a kernel's element for each sample, [batch], to multiply with a batch of images."""
    return taps.view(-1, *[1] * (images.dim() - 1))


def along(images: torch.Tensor, kernel: Sequence[int] | torch.Tensor, dimension: int) -> torch.Tensor:
    """Correlates padded images with a kernel along a dimension.

    Args:
        images: [batch, height, width, ...].
        kernel: Numbers, or [batch, taps].
        dimension: 1 for columns, 2 for rows.
    """
    count = kernel.shape[1] if isinstance(kernel, torch.Tensor) else len(kernel)
    size = images.shape[dimension] - count + 1
    total = None
    for index in range(count):
        tap = tap_of(kernel[:, index], images) if isinstance(kernel, torch.Tensor) else kernel[index]
        if isinstance(tap, int) and tap == 0:
            continue
        values = images.narrow(dimension, index, size)
        values = values if isinstance(tap, int) and tap == 1 else values * tap
        total = values if total is None else total + values
    return torch.zeros_like(images.narrow(dimension, 0, size)) if total is None else total


def accumulated(images: torch.Tensor, size: int, dimension: int) -> torch.Tensor:
    """Returns the sums of `size` neighbors in padded images. The number of additions grows with the logarithm."""
    length = images.shape[dimension] - size + 1
    total, offset, power = None, 0, 1
    while True:
        if size & power:
            part = images.narrow(dimension, offset, length)
            total = part if total is None else total + part
            offset += power
        power *= 2
        if power > size:
            return total
        reach = images.shape[dimension] - power // 2
        images = images.narrow(dimension, 0, reach) + images.narrow(dimension, power // 2, reach)


class Filter(OpenCV):
    """A filter whose result has the image's size.

    `depths` are the result's elements that it covers for images of bytes, as cv2's numbers; -1 is the image's.
    """

    depths: Sequence[int] = (-1, 0)

    def depth_of(self, call: Call) -> torch.dtype:
        """Returns the result's elements."""
        depth = call["ddepth"]
        return call["src"].dtype if depth == -1 else DEPTHS[depth]

    def known_depth(self, call: Call) -> str | None:
        """Returns a reason not to migrate if the result has unusual elements."""
        depth = call["ddepth"]
        depths = self.depths if call["src"].dtype == torch.uint8 else (-1, 5)
        return None if is_whole(depth) and depth in depths else f"ddepth={depth} stays on the CPU"


class Box(Filter):
    """Sums of a rectangle, or their mean. Means of bytes as bytes are `torch.ops.hetero.cv_box_blur`."""

    dtypes = BYTES_AND_FLOATS
    channels = range(1, 65)

    def limits(self, call: Call) -> str | None:
        size = call["ksize"]
        if not is_pair(size) or min(size) < 1 or max(size) > LARGEST_KERNEL:
            return f"ksize= is no pair of integers from 1 to {LARGEST_KERNEL}"
        reason = None
        if "ddepth" in call.arguments:
            reason = self.known_depth(call)
            if not is_flag(call["normalize"]):
                return "normalize= is no bool"
            if reason is None and call["ddepth"] == 4 and call["normalize"]:
                reason = "means of integers stay on the CPU"
        reason = reason or known_anchor(call["anchor"], *size) or known_border(call["borderType"], wrap=False)
        if reason is None and any(at not in (-1, side // 2) for at, side in zip(call["anchor"], size, strict=True)):
            reason = "anchor= is not the middle of the kernel"
        return reason

    def map(self, call: Call) -> Mapped:
        width, height = map(int, call["ksize"])
        dtype = self.depth_of(call) if "ddepth" in call.arguments else call["src"].dtype
        normalize = bool(call["normalize"]) if "normalize" in call.arguments else True
        static = ((width, height), int(call["borderType"]) & ~ISOLATED, normalize, dtype)
        return Mapped(result(call["src"], dtype=dtype), static=static)

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        images, ((width, height), border, normalize, dtype) = squeezed(inputs[0]), static
        if normalize and dtype == torch.uint8:
            return by_operator("cv_box_blur", images, (width, height), border)
        whole = images.dtype == torch.uint8
        sides = padded(images, (*around(height, -1), *around(width, -1)), border)
        sums = accumulated(accumulated(sides.to(torch.int32 if whole else torch.float64), width, 2), height, 1)
        if not normalize:
            return saturated(sums, dtype)
        count = height * width
        mean = sums.double() * (1.0 / count)
        if whole and count > 1:
            # Vectors have single precision. The last elements of a row do not fill one.
            vectors = sums.float() * torch.full_like(sums, 1.0 / count, dtype=torch.float32)
            last = last_elements(images, 4)
            mean = vectors if last is None else torch.where(last, mean, vectors.double())
        return saturated(mean, dtype)


def last_elements(images: torch.Tensor, size: int) -> torch.Tensor | None:
    """Returns a mask of the elements of a row that do not fill a vector of `size`; None if all do."""
    count = images[0, 0].numel()
    if count % size == 0:
        return None
    return (torch.arange(count) >= count - count % size).view(images.shape[2:]).to(images.device)


@register
class Blur(Box):
    target = "cv2.blur"
    parameters = "src, ksize, dst=None, anchor=(-1, -1), borderType=4"

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        size = tuple(fixed.integers(1, 9, 2).tolist())
        if fixed.integers(3) == 0:
            size = tuple(fixed.integers(3, 40, 2).tolist())
        keywords = {"borderType": int(fixed.choice([0, 1, 2, 4]))} if fixed.integers(2) else {}
        if fixed.integers(3) == 0:
            keywords["anchor"] = (-1, size[1] // 2)
        return (example_image(fixed, random, dtypes=["uint8", "float32"]), size), keywords


@register
class BoxFilter(Box):
    target = "cv2.boxFilter"
    parameters = "src, ddepth, ksize, dst=None, anchor=(-1, -1), normalize=True, borderType=4"
    depths = (-1, 0, 4, 5)

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        size = tuple(fixed.integers(1, 9, 2).tolist())
        depth = int(fixed.choice(self.depths))
        image = example_image(fixed, random, dtypes=["uint8", "float32"] if depth in (-1, 5) else ["uint8"])
        keywords = {"normalize": depth != 4 and bool(fixed.integers(2)), "borderType": int(fixed.choice([0, 1, 2, 4]))}
        return (image, depth, size), keywords


@register
class GaussianBlur(Filter):
    """Bytes are `torch.ops.hetero.cv_gaussian_blur`."""

    target = "cv2.GaussianBlur"
    parameters = "src, ksize, sigmaX, dst=None, sigmaY=0, borderType=4, hint=0"
    dtypes = BYTES_AND_FLOATS
    channels = range(1, 65)
    tolerance = Tolerance(1e-3, 1e-6, note="bytes are exact; floats are summed in another order")
    exact_bytes = True

    def limits(self, call: Call) -> str | None:
        size = call["ksize"]
        if not is_pair(size) or any(entry and (entry < 0 or entry % 2 == 0) for entry in size):
            return "ksize= is no pair of odd integers or zeros"
        if not is_number(call["sigmaX"]) or not is_number(call["sigmaY"]):
            return "sigmaX= or sigmaY= is no finite number"
        sigmas = (call["sigmaX"], call["sigmaY"] if call["sigmaY"] > 0 else call["sigmaX"])
        if any(entry == 0 and sigma <= 0 for entry, sigma in zip(size, sigmas, strict=True)):
            return "neither the kernel's size nor sigma is given"
        return known_border(call["borderType"], wrap=False) or differs(call, hint=0)

    def map(self, call: Call) -> Mapped:
        import cv2

        source, border = call["src"], int(call["borderType"]) & ~ISOLATED
        sigma_x = float(call["sigmaX"])
        sigmas = (sigma_x, float(call["sigmaY"]) if call["sigmaY"] > 0 else sigma_x)
        sizes = tuple(
            int(size) or round(sigma * (3 if source.dtype == torch.uint8 else 4) * 2 + 1) | 1
            for size, sigma in zip(call["ksize"], sigmas, strict=True)
        )
        if max(sizes) > LARGEST_KERNEL:
            raise Unsupported(f"kernels of more than {LARGEST_KERNEL} pixels stay on the CPU")
        if source.dtype == torch.uint8:
            return Mapped(result(source), static=(sizes, border), sample=(np.array(sigmas),))
        kernels = [
            cv2.getGaussianKernel(size, sigma, cv2.CV_32F).ravel() for size, sigma in zip(sizes, sigmas, strict=True)
        ]
        return Mapped(result(source), static=(sizes, border), sample=tuple(kernels))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        images, ((width, height), border) = squeezed(inputs[0]), static
        if images.dtype == torch.uint8:
            return by_operator("cv_gaussian_blur", images, (width, height), sample[0], border)
        rows, columns = sample
        sides = padded(images, (height // 2, height // 2, width // 2, width // 2), border)
        return along(along(sides, rows, 2), columns, 1)

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        image = example_image(fixed, random, dtypes=["uint8", "float32"])
        size = tuple((fixed.integers(0, 8, 2) * 2 + 1).tolist())
        sigmas = random.random(2) * 4 + 0.2
        kind = fixed.integers(4)
        if kind == 0:
            return (image, (0, 0), float(fixed.random() * 3 + 0.3)), {"borderType": int(fixed.choice([0, 1, 2, 4]))}
        if kind == 1:
            return (image, size, 0), {}
        keywords = {"sigmaY": float(sigmas[1])} if kind == 2 else {"borderType": int(fixed.choice([0, 1, 2, 4]))}
        return (image, size, float(sigmas[0])), keywords


@register
class MedianBlur(OpenCV):
    target = "cv2.medianBlur"
    parameters = "src, ksize, dst=None"
    channels = (1, 3, 4)

    def limits(self, call: Call) -> str | None:
        known = is_whole(call["ksize"]) and call["ksize"] in range(1, 256, 2)
        return None if known else f"ksize={call['ksize']} stays on the CPU"

    def map(self, call: Call) -> Mapped:
        return Mapped(result(call["src"]), static=int(call["ksize"]))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return by_operator("cv_median_blur", inputs[0], static)

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        return (example_image(fixed, random, (0, 1, 3, 4)), int(fixed.choice([1, 3, 3, 5, 5, 7, 9, 21]))), {}


@register
class BilateralFilter(OpenCV):
    target = "cv2.bilateralFilter"
    parameters = "src, d, sigmaColor, sigmaSpace, dst=None, borderType=4"
    channels = (1, 3)
    tolerance = Tolerance(1, note="weights are summed in another order")

    def limits(self, call: Call) -> str | None:
        if not all(is_number(call[name]) and call[name] > 0 for name in ("sigmaColor", "sigmaSpace")):
            return "sigmaColor= or sigmaSpace= is no positive number"
        if not is_whole(call["d"]) or self.radius(call) > 12:
            return "a diameter beyond 25 stays on the CPU"
        return known_border(call["borderType"], constant=False, wrap=False)

    def radius(self, call: Call) -> int:
        """Returns how far neighbors are."""
        diameter = int(call["d"])
        return max(round(float(call["sigmaSpace"]) * 1.5) if diameter <= 0 else diameter // 2, 1)

    def map(self, call: Call) -> Mapped:
        color, space = float(call["sigmaColor"]), float(call["sigmaSpace"])
        return Mapped(
            result(call["src"]), static=(self.radius(call), int(call["borderType"])),
            sample=(-0.5 / (color * color), -0.5 / (space * space)),
        )  # fmt: skip

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        images, (radius, border) = squeezed(inputs[0]), static
        around = padded(images, (radius,) * 4, border).float()
        height, width = images.shape[1:3]
        center = images.float()
        color, space = (tap_of(entry.float(), images[..., 0] if images.dim() == 4 else images) for entry in sample)
        total = weights = None
        for row in range(2 * radius + 1):
            for column in range(2 * radius + 1):
                squared = (row - radius) ** 2 + (column - radius) ** 2
                if squared > radius * radius:
                    continue
                neighbor = around[:, row : row + height, column : column + width]
                distance = (neighbor - center).abs()
                distance = distance.sum(3) if images.dim() == 4 else distance
                weight = (distance * distance * color + squared * space).exp()
                part = neighbor * (weight.unsqueeze(3) if images.dim() == 4 else weight)
                total = part if total is None else total + part
                weights = weight if weights is None else weights + weight
        return saturated(total / (weights.unsqueeze(3) if images.dim() == 4 else weights), torch.uint8)

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        image = example_image(fixed, random, (0, 1, 3))
        diameter = int(fixed.choice([-1, 3, 5, 7]))
        space = float(fixed.random() * 3 + 0.5)
        return (image, diameter, float(random.random() * 100 + 1), space), {"borderType": int(fixed.choice([1, 2, 4]))}


def kernel_of(argument: Any) -> np.ndarray | None:
    """Returns a kernel as a matrix of float32; None for anything else."""
    if (
        not isinstance(argument, np.ndarray)
        or argument.ndim > 2
        or argument.size == 0
        or argument.dtype.kind not in "iuf"
    ):
        return None
    matrix = argument.reshape(len(argument), -1).astype(np.float32)
    return matrix if np.isfinite(matrix).all() else None


def correlated(images: torch.Tensor, kernels: torch.Tensor, start: torch.Tensor, fused: bool = False) -> torch.Tensor:
    """Correlates padded images with a kernel for each sample, [batch, height, width].

    Args:
        images: Of integers or floats.
        kernels: Of the same elements.
        start: What is added, [batch].
        fused: Whether floats are multiplied and added with one rounding.
    """
    height, width = (images.shape[entry] - kernels.shape[entry] + 1 for entry in (1, 2))
    total = tap_of(start, images)
    for row in range(kernels.shape[1]):
        for column in range(kernels.shape[2]):
            tap = tap_of(kernels[:, row, column], images)
            values = images[:, row : row + height, column : column + width]
            total = (values.double() * tap.double() + total.double()).float() if fused else values * tap + total
    return total


@register
class Filter2D(Filter):
    """Kernels of integers are summed in integers, others tap by tap in the order of cv2."""

    target = "cv2.filter2D"
    parameters = "src, ddepth, kernel, dst=None, anchor=(-1, -1), delta=0, borderType=4"
    depths = (-1, 0, 3, 5)

    def limits(self, call: Call) -> str | None:
        kernel = kernel_of(call["kernel"])
        if kernel is None:
            return "kernel= is no matrix of finite numbers"
        if kernel.size >= 130:
            return "kernels of 130 elements and more stay on the CPU"
        if not is_number(call["delta"]):
            return "delta= is no finite number"
        height, width = kernel.shape
        reason = self.known_depth(call) or known_anchor(call["anchor"], width, height)
        return reason or known_border(call["borderType"], wrap=False)

    def map(self, call: Call) -> Mapped:
        kernel, delta = kernel_of(call["kernel"]), float(call["delta"])
        height, width = kernel.shape
        x, y = map(int, call["anchor"])
        sums = float(np.abs(kernel).sum()) * 255 + abs(delta)
        integers = bool((kernel == kernel.round()).all()) and delta.is_integer() and sums < 2**24
        dtype = self.depth_of(call)
        sizes = (*around(height, y), *around(width, x))
        return Mapped(
            result(call["src"], dtype=dtype), static=(sizes, int(call["borderType"]), integers, dtype),
            sample=(kernel.astype(np.float64), delta),
        )  # fmt: skip

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        images, (kernels, delta), (sizes, border, integers, dtype) = squeezed(inputs[0]), sample, static
        around = padded(images, sizes, border)
        if integers:
            return saturated(correlated(around.to(torch.int32), kernels.to(torch.int32), delta.to(torch.int32)), dtype)
        around, kernels, delta = around.float(), kernels.float(), delta.float()
        if dtype == torch.float32:
            return correlated(around, kernels, delta)
        total = correlated(around, kernels, delta, fused=True)
        last = last_elements(images, 4)
        if last is not None:  # products and sums are rounded there
            total = torch.where(last, correlated(around, kernels, delta), total)
        return saturated(total, dtype)

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        height, width = fixed.integers(1, 6, 2).tolist()
        kernel = random.normal(size=(height, width))
        if fixed.integers(2):
            kernel = (kernel * 4).round()
        else:
            kernel = kernel.round(1) if fixed.integers(2) else kernel / max(abs(kernel).sum(), 1e-3)
        keywords = {"borderType": int(fixed.choice([0, 1, 2, 4])), "delta": float(random.choice([0.0, 3.0, 2.5]))}
        if fixed.integers(3) == 0:
            keywords["anchor"] = (int(fixed.integers(-1, width)), int(fixed.integers(-1, height)))
        dtype = str(fixed.choice(["float32", "float64"]))
        return (example_image(fixed, random), int(fixed.choice(self.depths)), kernel.astype(dtype)), keywords


def multiplied(images: torch.Tensor, taps: torch.Tensor, start: torch.Tensor | None, fused: bool) -> torch.Tensor:
    """Returns start + images x taps in single precision, with one rounding if `fused`, else with two.

    Args:
        images: [batch, height, width, ...].
        taps: [batch].
        start: Like images; None for 0.
        fused: Whether there is one rounding.
    """
    taps = tap_of(taps, images)
    if start is None:
        return images * taps
    return (images.double() * taps.double() + start.double()).float() if fused else images * taps + start


def summed(images: torch.Tensor, kernel: torch.Tensor, dimension: int, fused: bool) -> torch.Tensor:
    """Correlates padded floats with a kernel along a dimension, from the first tap to the last."""
    size = images.shape[dimension] - kernel.shape[1] + 1
    total = None
    for index in range(kernel.shape[1]):
        total = multiplied(images.narrow(dimension, index, size), kernel[:, index], total, fused)
    return total


def summed_in_pairs(images: torch.Tensor, kernel: torch.Tensor, dimension: int, fused: bool) -> torch.Tensor:
    """Correlates padded floats with a symmetric kernel, from the middle to the ends: two pixels for each tap."""
    middle = kernel.shape[1] // 2
    size = images.shape[dimension] - 2 * middle
    total = multiplied(images.narrow(dimension, middle, size), kernel[:, middle], None, fused)
    for index in range(1, middle + 1):
        pair = images.narrow(dimension, middle - index, size) + images.narrow(dimension, middle + index, size)
        total = multiplied(pair, kernel[:, middle + index], total, fused)
    return total


@register
class SepFilter2D(Filter):
    """Rows, then columns, in single precision and in the order of cv2, whose vectors round once for each tap."""

    target = "cv2.sepFilter2D"
    parameters = "src, ddepth, kernelX, kernelY, dst=None, anchor=(-1, -1), delta=0, borderType=4"
    depths = (-1, 0, 3, 5)

    def limits(self, call: Call) -> str | None:
        kernels = [kernel_of(call[name]) for name in ("kernelX", "kernelY")]
        if any(kernel is None or min(kernel.shape) > 1 for kernel in kernels):
            return "kernelX= or kernelY= is no vector of finite numbers"
        if call["kernelX"].dtype != call["kernelY"].dtype or call["kernelX"].dtype.kind != "f":
            return "kernelX= and kernelY= are not floats of one type"
        reason = differs(call, delta=0) or self.known_depth(call)
        reason = reason or known_anchor(call["anchor"], kernels[0].size, kernels[1].size)
        reason = reason or known_border(call["borderType"], wrap=False)
        if reason is not None:
            return reason
        (x, y), columns = call["anchor"], kernels[1].ravel()
        if is_middle(y, columns.size) and columns.size > 1 and (columns == -columns[::-1]).all():
            return "derivatives stay on the CPU"
        middles = is_middle(x, kernels[0].size) and is_middle(y, columns.size)
        if middles and all(kernel.size > 1 and has_8_bits(kernel.ravel()) for kernel in kernels):
            return "smooth kernels of 8 bits stay on the CPU"
        return None

    def map(self, call: Call) -> Mapped:
        rows, columns = (call[name].ravel().astype(np.float64) for name in ("kernelX", "kernelY"))
        x, y = map(int, call["anchor"])
        sizes = (*around(columns.size, y), *around(rows.size, x))
        dtype = self.depth_of(call)
        symmetric = is_middle(y, columns.size) and bool((columns == columns[::-1]).all())
        return Mapped(
            result(call["src"], dtype=dtype), static=(sizes, int(call["borderType"]), symmetric, dtype),
            sample=(rows, columns),
        )  # fmt: skip

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        images, (sizes, border, symmetric, dtype) = squeezed(inputs[0]), static
        rows, columns = (kernel.float() for kernel in sample)
        images = padded(images, sizes, border).float()
        single = dtype == torch.float32
        filtered = summed(images, rows, 2, fused=True)
        last = last_elements(filtered, 32)
        if last is not None and rows.shape[1] > 1:
            filtered = torch.where(last, summed(images, rows, 2, fused=False), filtered)
        sums = summed_in_pairs if symmetric else summed
        if single and not symmetric:  # no vectors
            return sums(filtered, columns, 1, fused=False)
        results = sums(filtered, columns, 1, fused=True)
        last = None if single and columns.shape[1] <= 3 else last_elements(filtered, 8 if single else 4)
        if last is not None and columns.shape[1] > 1:
            results = torch.where(last, sums(filtered, columns, 1, fused=False), results)
        return saturated(results, dtype)

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        kernels, smooth = [], fixed.integers(3)
        for size in fixed.integers(0, 4, 2) * 2 + 1 if fixed.integers(4) else fixed.integers(1, 6, 2):
            kernel = (random.random(size) + 0.01).round(int(random.choice([2, 9])))
            kernel = kernel + kernel[::-1] if smooth else kernel - 0.3
            kernel = kernel / kernel.sum() * 0.999 if smooth == 2 else kernel
            kernels.append(kernel.astype(np.float32))
        depth = int(fixed.choice(self.depths))
        image = example_image(fixed, random, largest=50)
        return (image, depth, *kernels), {"borderType": int(fixed.choice([0, 1, 2, 4]))}


def is_middle(anchor: int, size: int) -> bool:
    """Whether an anchor is the middle of a kernel of an odd size."""
    return size % 2 == 1 and anchor in (-1, size // 2)


def has_8_bits(kernel: np.ndarray) -> bool:
    """Whether a kernel is symmetric and not negative, and its elements are whole when multiplied by 256."""
    return bool(
        (kernel == kernel[::-1]).all() and (kernel >= 0).all() and (kernel * 256 == np.rint(kernel * 256)).all()
    )


class Derivative(Filter):
    """Derivatives of bytes by kernels of integers, which are exact in integers."""

    depths = (-1, 0, 3, 5, 6)

    def limits(self, call: Call) -> str | None:
        return (
            differs(call, scale=1, delta=0)
            or self.known_depth(call)
            or self.known_order(call)
            or known_border(call["borderType"], wrap=False)
        )

    def known_order(self, call: Call) -> str | None:
        """Returns a reason not to migrate if the derivative or the kernel's size is unusual."""
        raise NotImplementedError

    def kernels(self, call: Call) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Returns pairs of kernels along rows and along columns whose results are added."""
        raise NotImplementedError

    def map(self, call: Call) -> Mapped:
        dtype = self.depth_of(call)
        static = (tuple(self.kernels(call)), int(call["borderType"]), dtype)
        return Mapped(result(call["src"], dtype=dtype), static=static)

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        images, (kernels, border, dtype) = squeezed(inputs[0]), static
        total = None
        for rows, columns in kernels:
            height, width = len(columns) // 2, len(rows) // 2
            around = padded(images, (height, height, width, width), border).to(torch.int32)
            part = along(along(around, rows, 2), columns, 1)
            total = part if total is None else total + part
        return saturated(total, dtype)


def derivative_kernels(x: int, y: int, size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns cv2's kernels for a derivative."""
    import cv2

    rows, columns = cv2.getDerivKernels(x, y, size)
    return tuple(int(entry) for entry in rows.ravel()), tuple(int(entry) for entry in columns.ravel())


@register
class Sobel(Derivative):
    target = "cv2.Sobel"
    parameters = "src, ddepth, dx, dy, dst=None, ksize=3, scale=1, delta=0, borderType=4"

    def known_order(self, call: Call) -> str | None:
        x, y, size = call["dx"], call["dy"], call["ksize"]
        if not all(map(is_whole, (x, y, size))) or size not in (-1, 1, 3, 5, 7):
            return f"ksize={size} stays on the CPU"
        if size == -1:
            return None if (x, y) in ((0, 1), (1, 0)) else "Scharr's kernel has one first derivative"
        return (
            None
            if min(x, y) >= 0 and x + y > 0 and max(x, y) <= 2 and max(x, y) < max(size, 3)
            else "no such derivative"
        )

    def kernels(self, call: Call) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        return [derivative_kernels(int(call["dx"]), int(call["dy"]), int(call["ksize"]))]

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        x, y = [(0, 1), (1, 0), (1, 1), (2, 0), (0, 2), (2, 1)][fixed.integers(6)]
        size = int(fixed.choice([-1, 1, 3, 5, 7] if x + y == 1 else [1, 3, 5, 7]))
        keywords = {"ksize": size, "borderType": int(fixed.choice([0, 1, 2, 4]))} if fixed.integers(3) else {}
        return (example_image(fixed, random), int(fixed.choice(self.depths)), x, y), keywords


@register
class Scharr(Derivative):
    target = "cv2.Scharr"
    parameters = "src, ddepth, dx, dy, dst=None, scale=1, delta=0, borderType=4"

    def known_order(self, call: Call) -> str | None:
        order = (call["dx"], call["dy"])
        known = all(map(is_whole, order)) and order in ((0, 1), (1, 0))
        return None if known else "Scharr's kernel has one first derivative"

    def kernels(self, call: Call) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        return [derivative_kernels(int(call["dx"]), int(call["dy"]), -1)]

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        x = int(fixed.integers(2))
        keywords = {"borderType": int(fixed.choice([0, 1, 2, 4]))} if fixed.integers(3) else {}
        return (example_image(fixed, random), int(fixed.choice(self.depths)), x, 1 - x), keywords


@register
class Laplacian(Derivative):
    target = "cv2.Laplacian"
    parameters = "src, ddepth, dst=None, ksize=1, scale=1, delta=0, borderType=4"

    def known_order(self, call: Call) -> str | None:
        known = is_whole(call["ksize"]) and call["ksize"] in (1, 3, 5, 7)
        return None if known else f"ksize={call['ksize']} stays on the CPU"

    def kernels(self, call: Call) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        size = int(call["ksize"])
        if size == 1:
            return [((1, -2, 1), (1,)), ((1,), (1, -2, 1))]
        if size == 3:
            return [((2, 0, 2), (1, 0, 1)), ((-8,), (1,))]
        second, smooth = derivative_kernels(2, 0, size)
        return [(second, smooth), (smooth, second)]

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        keywords = {"ksize": int(fixed.choice([1, 3, 5, 7])), "borderType": int(fixed.choice([0, 1, 2, 4]))}
        return (example_image(fixed, random), int(fixed.choice(self.depths))), keywords if fixed.integers(3) else {}


class Morphology(OpenCV):
    """The least or the most of the pixels under a mask."""

    dtypes = (torch.uint8, torch.int16, torch.float32, torch.float64)
    parameters = "src, kernel, dst=None, anchor=(-1, -1), iterations=1, borderType=0, borderValue=None"

    def limits(self, call: Call) -> str | None:
        kernel = call["kernel"]
        if kernel is not None:
            if (
                not isinstance(kernel, np.ndarray)
                or kernel.ndim != 2
                or kernel.dtype.kind not in "iu"
                or kernel.size == 0
            ):
                return "kernel= is no matrix of integers"
            if not kernel.any() or kernel.size > 2500:
                return "kernel= is empty or has more than 2,500 elements"
        height, width = (3, 3) if kernel is None else kernel.shape
        if not is_whole(call["iterations"]) or not 1 <= call["iterations"] <= 10:
            return f"iterations={call['iterations']} stays on the CPU"
        reason = call.given("borderValue") or known_anchor(call["anchor"], width, height)
        return reason or known_border(call["borderType"], wrap=False)

    def mask(self, call: Call) -> tuple[tuple[int, int], tuple[int, int], tuple[tuple[int, int], ...], int]:
        """Returns the kernel's height and width, its anchor (y, x), its rows and columns that are set, and repetitions.

        No places mean all of the rectangle. A rectangle that is repeated is a larger rectangle.
        """
        kernel, count = call["kernel"], int(call["iterations"])
        kernel = np.ones((3, 3), np.uint8) if kernel is None else kernel
        height, width = kernel.shape
        x, y = (size // 2 if at < 0 else int(at) for at, size in zip(call["anchor"], (width, height), strict=True))
        if kernel.all():
            size = (height + (count - 1) * (height - 1), width + (count - 1) * (width - 1))
            return size, (y * count, x * count), (), 1
        return (
            (height, width),
            (y, x),
            tuple(zip(*(entry.tolist() for entry in np.nonzero(kernel)), strict=True)),
            count,
        )

    def map(self, call: Call) -> Mapped:
        return Mapped(result(call["src"]), static=(*self.mask(call), int(call["borderType"])))

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        height, width = fixed.integers(1, 6, 2).tolist()
        kernel = (
            (fixed.random((height, width)) < 0.6).astype(np.uint8)
            if fixed.integers(2)
            else np.ones((height, width), np.uint8)
        )
        kernel[fixed.integers(height), fixed.integers(width)] = 1
        keywords = {"iterations": int(fixed.integers(1, 4)), "borderType": int(fixed.choice([0, 1, 2, 4]))}
        if fixed.integers(3) == 0:
            keywords["anchor"] = (int(fixed.integers(-1, width)), int(fixed.integers(-1, height)))
        image = example_image(fixed, random, dtypes=["uint8", "int16", "float32", "float64"])
        return (image, None if "anchor" not in keywords and fixed.integers(5) == 0 else kernel), keywords


def extremes(images: torch.Tensor, static: Any, largest: bool) -> torch.Tensor:
    """Returns the most or the least of the pixels under a mask, in a batch of images."""
    (height, width), (y, x), places, count, border = static
    extreme = torch.maximum if largest else torch.minimum
    if images.dtype.is_floating_point:
        outside = float(torch.finfo(images.dtype).max) * (-1 if largest else 1)
    else:
        outside = LIMITS[images.dtype][0 if largest else 1]
    for _ in range(count):
        size = images.shape[1:3]
        around = padded(images, (y, height - 1 - y, x, width - 1 - x), border, outside)
        if places:
            parts = [around[:, row : row + size[0], column : column + size[1]] for row, column in places]
            images = parts[0]
            for part in parts[1:]:
                images = extreme(images, part)
        else:
            images = run_of(run_of(around, width, 2, extreme), height, 1, extreme)
    return images


def run_of(images: torch.Tensor, size: int, dimension: int, extreme: Any) -> torch.Tensor:
    """Returns the extremes of `size` neighbors in padded images, by windows that double."""
    length, power = images.shape[dimension] - size + 1, 1
    while power * 2 <= size:
        reach = images.shape[dimension] - power
        images = extreme(images.narrow(dimension, 0, reach), images.narrow(dimension, power, reach))
        power *= 2
    return extreme(images.narrow(dimension, 0, length), images.narrow(dimension, size - power, length))


@register
class Erode(Morphology):
    target = "cv2.erode"

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return extremes(squeezed(inputs[0]), static, largest=False)


@register
class Dilate(Morphology):
    target = "cv2.dilate"

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return extremes(squeezed(inputs[0]), static, largest=True)


@register
class MorphologyEx(Morphology):
    target = "cv2.morphologyEx"
    parameters = "src, op, kernel, dst=None, anchor=(-1, -1), iterations=1, borderType=0, borderValue=None"
    dtypes = (torch.uint8,)

    def limits(self, call: Call) -> str | None:
        if not is_whole(call["op"]) or call["op"] not in range(7):
            return f"op={call['op']} stays on the CPU"
        return super().limits(call)

    def map(self, call: Call) -> Mapped:
        return Mapped(result(call["src"]), static=(int(call["op"]), (*self.mask(call), int(call["borderType"]))))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        images, (operation, mask) = squeezed(inputs[0]), static

        def eroded(images: torch.Tensor) -> torch.Tensor:
            return extremes(images, mask, largest=False)

        def dilated(images: torch.Tensor) -> torch.Tensor:
            return extremes(images, mask, largest=True)

        def minus(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            return (left.to(torch.int32) - right.to(torch.int32)).clamp(min=0).to(torch.uint8)

        if operation < 2:
            return dilated(images) if operation else eroded(images)
        if operation == 4:
            return minus(dilated(images), eroded(images))
        if operation in (2, 5):
            opened = dilated(eroded(images))
            return opened if operation == 2 else minus(images, opened)
        closed = eroded(dilated(images))
        return closed if operation == 3 else minus(closed, images)

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        (image, kernel), keywords = super().example(fixed, random)
        image = example_image(fixed, random, size=image.shape[:2])
        return (image, int(fixed.integers(7)), kernel), keywords


class Pyramid(OpenCV):
    """A level of an image pyramid, of the kernel 1 4 6 4 1."""

    def limits(self, call: Call) -> str | None:
        return call.given("dstsize") or differs(call, borderType=REFLECT_101)

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        return (example_image(fixed, random),), {}


@register
class PyrDown(Pyramid):
    target = "cv2.pyrDown"
    parameters = "src, dst=None, dstsize=None, borderType=4"

    def map(self, call: Call) -> Mapped:
        height, width = call["src"].shape[:2]
        return Mapped(result(call["src"], ((height + 1) // 2, (width + 1) // 2)))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        around = padded(squeezed(inputs[0]), (2, 2, 2, 2), REFLECT_101).to(torch.int32)
        sums = along(along(around, (1, 4, 6, 4, 1), 2)[:, :, ::2], (1, 4, 6, 4, 1), 1)[:, ::2]
        return ((sums + 128) >> 8).to(torch.uint8)


@register
class PyrUp(Pyramid):
    target = "cv2.pyrUp"
    parameters = "src, dst=None, dstsize=None, borderType=4"

    def map(self, call: Call) -> Mapped:
        height, width = call["src"].shape[:2]
        return Mapped(result(call["src"], (2 * height, 2 * width)))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        images = squeezed(inputs[0]).to(torch.int32)
        for dimension in (2, 1):
            size = images.shape[dimension]
            before = images.narrow(dimension, min(1, size - 1), 1)
            after = images.narrow(dimension, size - 1, 1)
            around = torch.cat([before, images, after], dimension)
            even = along(around, (1, 6, 1), dimension)
            odd = (images + around.narrow(dimension, 2, size)) * 4
            images = torch.stack([even, odd], dimension + 1).flatten(dimension, dimension + 1)
        return ((images + 32) >> 6).to(torch.uint8)
