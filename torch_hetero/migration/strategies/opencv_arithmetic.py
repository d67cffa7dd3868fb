"""cv2: arithmetic and logic of pixels, statistics of whole images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from torch_hetero.migration.spec import Spec
from torch_hetero.migration.strategies.opencv import (
    BYTES_AND_FLOATS,
    DEPTHS,
    Arguments,
    OpenCV,
    example_image,
    is_number,
    is_whole,
    no_single_channel,
    per_sample,
    result,
    saturated,
    scalar_of,
    squeezed,
)
from torch_hetero.migration.strategy import Call, Mapped, Tolerance, register

FLOATS = ("uint8", "float32")


def multiplied_and_added(values: torch.Tensor, factor: torch.Tensor, addend: torch.Tensor) -> torch.Tensor:
    """Returns values x factor + addend in float32, rounded once, as processors with FMA compute it."""
    return (values.double() * factor.float().double() + addend.float().double()).float()


class Pointwise(OpenCV):
    """Computes each element of one image from the same element of others."""

    dtypes = BYTES_AND_FLOATS

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        images = [squeezed(entry) for entry in inputs]
        return self.compute(images, static, [per_sample(entry, images[0]) for entry in sample])

    def compute(self, images: list[torch.Tensor], static: Any, sample: list[torch.Tensor]) -> torch.Tensor:
        """Computes a batch. Settings of samples broadcast with the images."""
        raise NotImplementedError


class Binary(Pointwise):
    """Computes with two images of a size, or an image and a number for all channels, or one for each."""

    data = ("src1", "src2")
    parameters = "src1, src2, dst=None"
    scalars = True  # whether one may be a number
    fill = True  # whether a number is one for each channel, else for the first channel

    def no_image(self, name: str, argument: Any) -> str | None:
        if self.scalars and scalar_of(argument, fill=True) is not None:
            return None
        return f"{name}= is no array" + (", no number and no sequence of up to four" if self.scalars else "")

    def limits(self, call: Call) -> str | None:
        specs = [call[name] for name in self.data if isinstance(call[name], Spec)]
        if len({(no_single_channel(spec.shape), spec.dtype) for spec in specs}) > 1:
            return "the images differ in size or dtype"
        if len(specs) == 1 and specs[0].channels > 4:
            return "a number with more than four channels stays on the CPU"
        if len(specs) == 1 and specs[0].shape[1] == 1 and specs[0].shape[0] <= 4:
            return "cv2 may take the numbers for an image of this size"
        for name in self.data:
            if isinstance(call[name], (list, tuple)) and len(call[name]) not in (
                4,
                specs[0].channels if specs[0].channels > 1 else 4,
            ):
                return "a sequence of neither four numbers nor one for each channel stays on the CPU"
        if "mask" in call.arguments and call["mask"] is not None:
            return "mask= is given"
        if "dtype" in call.arguments:
            depth = call["dtype"]
            if not is_whole(depth) or (depth != -1 and DEPTHS.get(depth) != specs[0].dtype):
                return "dtype= is not the images'"
        return self.more_limits(call)

    def more_limits(self, call: Call) -> str | None:
        """Returns a reason not to migrate a call whose operands are covered."""
        return None

    def map(self, call: Call) -> Mapped:
        operands = [call[name] for name in self.data]
        spec = next(entry for entry in operands if isinstance(entry, Spec))
        scalars = tuple(scalar_of(entry, self.fill) for entry in operands if not isinstance(entry, Spec))
        numbers = tuple(isinstance(entry, Spec) for entry in operands)
        return Mapped(self.output(spec), static=(numbers, self.settings(call)), sample=scalars + self.factors(call))

    def output(self, spec: Spec) -> Spec:
        """Returns the result's spec."""
        return result(spec)

    def settings(self, call: Call) -> Any:
        """Returns settings that a batch has in common."""
        return None

    def factors(self, call: Call) -> tuple[Any, ...]:
        """Returns numbers that each sample has of its own."""
        return ()

    def compute(self, images: list[torch.Tensor], static: Any, sample: list[torch.Tensor]) -> torch.Tensor:
        are_images, settings = static
        pictures, rest = list(images), list(sample)
        operands = [pictures.pop(0) if is_image else self.scalar(rest.pop(0), images[0].dtype)
                    for is_image in are_images]  # fmt: skip
        return self.combine(*operands, images[0].dtype, settings, rest)

    def scalar(self, scalar: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Returns a number as the function takes it for images of a dtype: here as an integer with bytes."""
        return scalar.float() if dtype == torch.float32 else scalar.clamp(-1e6, 1e6).round().to(torch.int32)

    def combine(
        self, left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype, settings: Any, factors: list[torch.Tensor]
    ) -> torch.Tensor:
        """Computes a batch of images of a dtype. Numbers are as `scalar` returned them."""
        raise NotImplementedError

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        image = example_image(fixed, random, dtypes=[str(entry).removeprefix("torch.") for entry in self.dtypes])
        kind = fixed.integers(5) if self.scalars else 4
        other = example_image(
            fixed, random, [image.shape[2] if image.ndim == 3 else 0], [image.dtype.name], image.shape[:2]
        )
        if kind < 3 and (image.shape[1] > 1 or image.shape[0] > 4):
            numbers = (random.normal(size=4) * 100).round(int(random.integers(3)))
            other = float(numbers[0]) if kind else tuple(numbers.tolist())
            if kind == 0 and image.ndim == 3 and image.shape[2] > 1 and fixed.integers(2):
                other = other[: image.shape[2]]
            if kind == 2:
                image, other = other, image
        arguments, keywords = self.example_settings(fixed, random)
        return (image, other, *arguments), keywords

    def example_settings(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        """Returns the other arguments of an example."""
        return (), {}


class Integers(Binary):
    """Computes with bytes as integers, and with floats."""

    def combine(
        self, left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype, settings: Any, factors: list[torch.Tensor]
    ) -> torch.Tensor:
        if dtype == torch.uint8:
            left, right = left.to(torch.int32), right.to(torch.int32)
        return saturated(self.operation(left, right), dtype)

    def operation(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Computes with integers that do not overflow, or floats."""
        raise NotImplementedError


@register
class Add(Integers):
    target = "cv2.add"
    parameters = "src1, src2, dst=None, mask=None, dtype=-1"

    def operation(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left + right


@register
class Subtract(Integers):
    target = "cv2.subtract"
    parameters = "src1, src2, dst=None, mask=None, dtype=-1"

    def operation(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left - right


@register
class AbsDiff(Integers):
    target = "cv2.absdiff"

    def operation(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return (left - right).abs()


@register
class Min(Integers):
    target = "cv2.min"
    fill = False

    def operation(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return torch.where(left < right, left, right)


@register
class Max(Integers):
    target = "cv2.max"
    fill = False

    def operation(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return torch.where(left > right, left, right)


class Bits(Integers):
    """Logic of bits. Those of numbers are an integer's."""

    parameters = "src1, src2, dst=None, mask=None"
    dtypes = (torch.uint8,)
    fill = False

    def scalar(self, scalar: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return scalar.round().clamp(0, 255).to(torch.int32)


@register
class BitwiseAnd(Bits):
    target = "cv2.bitwise_and"

    def operation(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left & right


@register
class BitwiseOr(Bits):
    target = "cv2.bitwise_or"

    def operation(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left | right


@register
class BitwiseXor(Bits):
    target = "cv2.bitwise_xor"

    def operation(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left ^ right


@register
class BitwiseNot(Pointwise):
    target = "cv2.bitwise_not"
    parameters = "src, dst=None, mask=None"
    dtypes = (torch.uint8,)

    def limits(self, call: Call) -> str | None:
        return call.given("mask")

    def map(self, call: Call) -> Mapped:
        return Mapped(result(call["src"]))

    def compute(self, images: list[torch.Tensor], static: Any, sample: list[torch.Tensor]) -> torch.Tensor:
        return 255 - images[0]

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        return (example_image(fixed, random),), {}


@register
class Compare(Binary):
    target = "cv2.compare"
    parameters = "src1, src2, cmpop, dst=None"

    def more_limits(self, call: Call) -> str | None:
        code = call["cmpop"]
        if any(isinstance(call[name], (list, tuple)) for name in self.data):
            return "a number for each channel stays on the CPU"
        return None if is_whole(code) and 0 <= code <= 5 else f"cmpop={code} is unknown"

    def output(self, spec: Spec) -> Spec:
        return result(spec, dtype=torch.uint8)

    def settings(self, call: Call) -> Any:
        return int(call["cmpop"])

    def scalar(self, scalar: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return scalar.float() if dtype == torch.float32 else scalar

    def combine(
        self, left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype, settings: Any, factors: list[torch.Tensor]
    ) -> torch.Tensor:
        compare = (torch.eq, torch.gt, torch.ge, torch.lt, torch.le, torch.ne)[settings]
        return compare(left, right).to(torch.uint8) * 255

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        (left, right, *rest), keywords = super().example(fixed, random)
        right = right[0] if isinstance(right, tuple) else right
        return (left, right, *rest), keywords

    def example_settings(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        return (int(fixed.integers(6)),), {}


@register
class Multiply(Binary):
    target = "cv2.multiply"
    parameters = "src1, src2, dst=None, scale=1, dtype=-1"

    def more_limits(self, call: Call) -> str | None:
        return None if is_number(call["scale"]) else "scale= is no finite number"

    def settings(self, call: Call) -> Any:
        return call["scale"] == 1, not all(isinstance(call[name], Spec) for name in self.data)

    def factors(self, call: Call) -> tuple[Any, ...]:
        return (float(call["scale"]),)

    def scalar(self, scalar: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return scalar

    def combine(
        self, left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype, settings: Any, factors: list[torch.Tensor]
    ) -> torch.Tensor:
        if settings == (True, False):
            return saturated(
                left.to(torch.int32) * right.to(torch.int32) if dtype == torch.uint8 else left * right, dtype
            )
        if settings[1]:
            return saturated(left.double() * right.double() * factors[0], dtype)
        left, right = left.float(), right.float()
        return saturated(left * right if settings[0] else factors[0].float() * left * right, dtype)

    def example_settings(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        return (), {"scale": float(random.random() * 0.1)} if fixed.integers(2) else {}


@register
class Divide(Binary):
    target = "cv2.divide"
    parameters = "src1, src2, dst=None, scale=1, dtype=-1"

    def more_limits(self, call: Call) -> str | None:
        return None if is_number(call["scale"]) else "scale= is no finite number"

    def settings(self, call: Call) -> Any:
        return not all(isinstance(call[name], Spec) for name in self.data)

    def factors(self, call: Call) -> tuple[Any, ...]:
        return (float(call["scale"]),)

    def scalar(self, scalar: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return scalar

    def combine(
        self, left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype, settings: Any, factors: list[torch.Tensor]
    ) -> torch.Tensor:
        if dtype == torch.float32 and settings:
            return (left.double() * factors[0] / right.double()).float()
        left, right = left.float(), right.float()
        quotient = left * factors[0].float() / right
        return saturated(torch.where(right != 0, quotient, 0.0) if dtype == torch.uint8 else quotient, dtype)

    def example_settings(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        return (), {"scale": float(random.random() * 100)} if fixed.integers(2) else {}


@register
class ScaleAdd(Binary):
    target = "cv2.scaleAdd"
    parameters = "src1, alpha, src2, dst=None"
    scalars = False

    def more_limits(self, call: Call) -> str | None:
        return None if is_number(call["alpha"]) else "alpha= is no finite number"

    def factors(self, call: Call) -> tuple[Any, ...]:
        return (float(call["alpha"]),)

    def combine(
        self, left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype, settings: Any, factors: list[torch.Tensor]
    ) -> torch.Tensor:
        return saturated(multiplied_and_added(left, factors[0], right), dtype)

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        (left, right), _ = super().example(fixed, random)
        return (left, float(random.normal()), right), {}


@register
class AddWeighted(Binary):
    """Elements are multiplied and added in an order that depends on whether they fill a vector of 16.

    cv2 counts from the array's first element if it is contiguous, else from each row's. Here all arrays are contiguous.
    """

    target = "cv2.addWeighted"
    parameters = "src1, alpha, src2, beta, gamma, dst=None, dtype=-1"
    scalars = False
    tolerance = Tolerance(1e-4, 1e-6, note="bytes are exact; the last bits of floats depend on how vectors are filled")
    exact_bytes = True

    def more_limits(self, call: Call) -> str | None:
        numbers = all(is_number(call[name]) for name in ("alpha", "beta", "gamma"))
        return None if numbers else "alpha=, beta= or gamma= is no finite number"

    def factors(self, call: Call) -> tuple[Any, ...]:
        return float(call["alpha"]), float(call["beta"]), float(call["gamma"])

    def combine(
        self, left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype, settings: Any, factors: list[torch.Tensor]
    ) -> torch.Tensor:
        alpha, beta, gamma = factors
        sums = multiplied_and_added(left, alpha, multiplied_and_added(right, beta, gamma))
        # The last elements do not fill a vector. They are added in another order.
        count = left[0].numel()
        last = (torch.arange(count) >= count - count % 16).view(left.shape[1:]).to(left.device)
        others = multiplied_and_added(left, alpha, right.float() * beta.float()) + gamma.float()
        return saturated(torch.where(last, others, sums), dtype)

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        (left, right), _ = super().example(fixed, random)
        alpha, beta, gamma = (random.normal(size=3) * [1, 1, 50]).round(int(random.choice([1, 9]))).tolist()
        return (left, alpha, right, beta, gamma), {}


class Unary(Pointwise):
    """Computes with one image."""

    def map(self, call: Call) -> Mapped:
        return Mapped(result(call["src"]))


@register
class ConvertScaleAbs(Unary):
    target = "cv2.convertScaleAbs"
    parameters = "src, dst=None, alpha=1, beta=0"

    def limits(self, call: Call) -> str | None:
        return None if is_number(call["alpha"]) and is_number(call["beta"]) else "alpha= or beta= is no finite number"

    def map(self, call: Call) -> Mapped:
        return Mapped(result(call["src"], dtype=torch.uint8), sample=(float(call["alpha"]), float(call["beta"])))

    def compute(self, images: list[torch.Tensor], static: Any, sample: list[torch.Tensor]) -> torch.Tensor:
        return saturated(multiplied_and_added(images[0], *sample).abs(), torch.uint8)

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        image = example_image(fixed, random, dtypes=FLOATS)
        return (image,), {"alpha": float(random.normal()), "beta": float(random.normal() * 50)} if random.integers(
            4
        ) else {}


@register
class Threshold(Unary):
    target = "cv2.threshold"
    parameters = "src, thresh, maxval, type, dst=None"

    def limits(self, call: Call) -> str | None:
        if not is_whole(call["type"]) or call["type"] not in range(5):
            return f"type={call['type']} stays on the CPU"
        return None if is_number(call["thresh"]) and is_number(call["maxval"]) else "thresh= or maxval= is not finite"

    def map(self, call: Call) -> Mapped:
        threshold, largest = float(call["thresh"]), float(call["maxval"])
        if call["src"].dtype == torch.uint8:
            threshold, largest = float(np.floor(threshold)), float(np.rint(largest).clip(0, 255))
        return Mapped(
            result(call["src"]), static=int(call["type"]), sample=(threshold, largest),
            build=lambda image: (threshold, image),
        )  # fmt: skip

    def compute(self, images: list[torch.Tensor], static: Any, sample: list[torch.Tensor]) -> torch.Tensor:
        (image,) = images
        if image.dtype == torch.uint8:
            threshold, largest = (entry.clamp(-1, 256).to(torch.int32) for entry in sample)
            zero = torch.zeros_like(largest)
        else:
            threshold, largest = (entry.float() for entry in sample)
            zero = torch.zeros_like(largest)
        above, below = image > threshold, image <= threshold  # NaN is neither
        values = image.to(threshold.dtype)
        chosen = {
            0: lambda: torch.where(above, largest, zero),
            1: lambda: torch.where(below, largest, zero),
            2: lambda: torch.where(above, threshold, values),
            3: lambda: torch.where(below, zero, values),
            4: lambda: torch.where(above, zero, values),
        }[static]()
        return saturated(chosen, image.dtype)

    def data_results(self, result: Any) -> tuple[Any, ...]:
        return result[1:]

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        image = example_image(fixed, random, dtypes=FLOATS)
        return (
            image,
            float(random.normal() * 150 + 127),
            float(random.normal() * 150 + 127),
            int(fixed.integers(5)),
        ), {}


@register
class InRange(Unary):
    target = "cv2.inRange"
    parameters = "src, lowerb, upperb, dst=None"
    channels = range(1, 5)

    def limits(self, call: Call) -> str | None:
        bounds = [scalar_of(as_tuple(call[name])) for name in ("lowerb", "upperb")]
        if any(bound is None for bound in bounds):
            return "lowerb= or upperb= is no number and no sequence of up to four"
        for bound in (as_tuple(call["lowerb"]), as_tuple(call["upperb"])):
            if not is_number(bound) and len(bound) not in (4, call["src"].channels):
                return "a bound has neither four numbers nor one for each channel"
        return None

    def map(self, call: Call) -> Mapped:
        return Mapped(
            result(call["src"], dtype=torch.uint8, channels=1),
            sample=tuple(scalar_of(as_tuple(call[name])) for name in ("lowerb", "upperb")),
        )

    def compute(self, images: list[torch.Tensor], static: Any, sample: list[torch.Tensor]) -> torch.Tensor:
        (image,) = images
        low, high = (entry.round() if image.dtype == torch.uint8 else entry.float() for entry in sample)
        inside = (image >= low) & (image <= high)
        return (inside.all(3) if image.dim() == 4 else inside).to(torch.uint8) * 255

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        image = example_image(fixed, random, dtypes=FLOATS)
        center, width = random.random((2, 4)) * 255
        low, high = (center - width).round(1), (center + width).round(1)
        if random.integers(2):
            return (image, low, high), {}
        return (image, tuple(low.tolist()), tuple(high.tolist())), {}


def as_tuple(bounds: Any) -> Any:
    """Returns an array of numbers as a tuple, anything else as it is."""
    return tuple(bounds.tolist()) if isinstance(bounds, np.ndarray) and bounds.ndim == 1 else bounds


@register
class Normalize(Unary):
    target = "cv2.normalize"
    parameters = "src, dst, alpha=1, beta=0, norm_type=4, dtype=-1, mask=None"

    def limits(self, call: Call) -> str | None:
        if not is_whole(call["norm_type"]) or call["norm_type"] != 32:
            return f"norm_type={call['norm_type']} is not NORM_MINMAX"
        if not is_number(call["alpha"]) or not is_number(call["beta"]):
            return "alpha= or beta= is no finite number"
        depth = call["dtype"]
        if not is_whole(depth) or (depth != -1 and DEPTHS.get(depth) not in BYTES_AND_FLOATS):
            return f"dtype={call['dtype']} stays on the CPU"
        return call.given("mask")

    def map(self, call: Call) -> Mapped:
        bounds = sorted((float(call["alpha"]), float(call["beta"])))
        dtype = call["src"].dtype if call["dtype"] == -1 else DEPTHS[call["dtype"]]
        return Mapped(result(call["src"], dtype=dtype), static=dtype, sample=tuple(bounds))

    def compute(self, images: list[torch.Tensor], static: Any, sample: list[torch.Tensor]) -> torch.Tensor:
        (image,) = images
        dimensions = list(range(1, image.dim()))
        least, most = (
            reduced(image.to(torch.float64), dimensions, keepdim=True) for reduced in (torch.amin, torch.amax)
        )
        low, high = sample
        span = most - least
        scale = (high - low) * torch.where(span > 2.0**-52, 1.0 / span, 0.0)
        if static == torch.float32:
            scale = scale.float().double()
            shift = low.float() - (least * scale).float()
        else:
            shift = low - least * scale
        return saturated(multiplied_and_added(image, scale, shift), static)

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        image = example_image(fixed, random, dtypes=FLOATS)
        low, high = random.choice([0.0, 255.0, 1.0, 10.5, 100.0], 2, replace=False)
        return (image, None, float(low), float(high), 32), [{}, {"dtype": 0}, {"dtype": 5}][fixed.integers(3)]


@register
class LookUp(OpenCV):
    target = "cv2.LUT"
    parameters = "src, lut, dst=None"
    data = ("src", "lut")

    def supports(self, call: Call) -> str | None:
        source, table = call["src"], call["lut"]
        if not isinstance(source, Spec):
            return "src= is no array"
        reason = self.unsupported(source)
        if reason is not None:
            return reason
        if not isinstance(table, Spec) or table.kind != "array" or table.dtype not in DEPTHS.values():
            return "lut= is no array of numbers"
        if table.shape not in ((256,), (256, 1), (1, 256), (1, 256, 1), (256, 1, 1)) and (
            table.shape not in ((256, 1, source.channels), (1, 256, source.channels)) or source.channels == 1
        ):
            return "lut= is no table of 256 entries for one channel or for the image's"
        return call.given("dst")

    def map(self, call: Call) -> Mapped:
        return Mapped(result(call["src"], dtype=call["lut"].dtype))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        images, tables = squeezed(inputs[0]), inputs[1]
        batch = len(images)
        tables = tables.reshape(batch, 256, -1)
        count = tables.shape[2]
        indices = images.to(torch.int64)
        if count > 1:
            indices = indices * count + torch.arange(count).to(images.device)
        return tables.reshape(batch, -1).gather(1, indices.reshape(batch, -1)).view(images.shape)

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        image = example_image(fixed, random)
        shapes = [(256,), (256, 1), (1, 256)]
        if image.ndim == 3 and image.shape[2] > 1:
            shapes += [(256, 1, image.shape[2]), (1, 256, image.shape[2])]
        dtype = str(fixed.choice(["uint8", "int16", "float32"]))
        return (image, (random.random(shapes[fixed.integers(len(shapes))]) * 256).astype(dtype)), {}


@register
class EqualizeHist(OpenCV):
    target = "cv2.equalizeHist"
    parameters = "src, dst=None"
    channels = (1,)

    def map(self, call: Call) -> Mapped:
        return Mapped(result(call["src"]))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        images = squeezed(inputs[0])
        batch, total = len(images), images.shape[1] * images.shape[2]
        indices = images.reshape(batch, -1).to(torch.int64)
        counts = histogram(indices, 256)
        below = counts.cumsum(1)
        # Pixels with the least value.
        first = torch.where((below == counts) & (counts > 0), counts, 0).sum(1, keepdim=True)
        scale = torch.full_like(first, 255, dtype=torch.float32) / (total - first)
        table = saturated((below - first).clamp(min=0).float() * scale, torch.uint8)
        table = torch.where(first == total, indices[:, :1].to(torch.uint8), table)
        return table.gather(1, indices).view(images.shape)

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        image = example_image(fixed, random, (0, 1))
        return (image // 4 if random.integers(2) else image,), {}


def histogram(indices: torch.Tensor, bins: int) -> torch.Tensor:
    """Returns how often each index is in a row of [batch, count], as int64 [batch, bins]."""
    counts = torch.zeros(len(indices), bins, dtype=torch.int64, device=indices.device)
    return counts.scatter_add(1, indices, torch.ones_like(indices))


@register
class CalcHist(OpenCV):
    target = "cv2.calcHist"
    parameters = "images, channels, mask, histSize, ranges, hist=None, accumulate=False"
    data = ("images",)
    lists = True

    def limits(self, call: Call) -> str | None:
        images, channels, bins, ranges = (call[name] for name in ("images", "channels", "histSize", "ranges"))
        if not isinstance(images, (list, tuple)) or len(images) != 1:
            return "images= is no list of one image"
        if not isinstance(channels, (list, tuple)) or len(channels) != 1 or not is_whole(channels[0]):
            return "histograms of more than one dimension stay on the CPU"
        if not 0 <= channels[0] < images[0].channels:
            return f"there is no channel {channels[0]}"
        if not isinstance(bins, (list, tuple)) or len(bins) != 1 or not is_whole(bins[0]) or not 0 < bins[0] <= 2**16:
            return "histSize= is no list of one positive number"
        if not isinstance(ranges, (list, tuple)) or len(ranges) != 2 or not all(map(is_number, ranges)):
            return "ranges= is no list of two numbers"
        if ranges[0] >= ranges[1]:
            return "ranges= is empty"
        return call.given("mask", "hist") or (None if call["accumulate"] is False else "accumulate= is given")

    def map(self, call: Call) -> Mapped:
        bins, (low, high) = int(call["histSize"][0]), map(np.float32, call["ranges"])
        scale = bins / (float(high) - float(low))
        table = np.floor(np.arange(256) * scale - float(low) * scale).astype(np.int64)
        table = np.where((table >= 0) & (table < bins), table, bins)
        return Mapped(Spec("array", (bins, 1), torch.float32), static=(int(call["channels"][0]), bins), sample=(table,))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        (images,), (channel, bins) = inputs, static
        values = (images[..., channel] if images.dim() == 4 else images).reshape(len(images), -1).to(torch.int64)
        return histogram(sample[0].gather(1, values), bins + 1)[:, :bins].float().unsqueeze(2)

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        image = example_image(fixed, random)
        channel = int(fixed.integers(image.shape[2] if image.ndim == 3 else 1))
        ranges = [[0, 256], [0, 180], [10.5, 200]][random.integers(3)]
        return ([image], [channel], None, [int(fixed.choice([256, 16, 7]))], ranges), {}


@register
class Reduce(OpenCV):
    target = "cv2.reduce"
    parameters = "src, dim, rtype, dst=None, dtype=-1"

    def limits(self, call: Call) -> str | None:
        if not is_whole(call["dim"]) or call["dim"] not in (0, 1):
            return "dim= is neither 0 nor 1"
        if not is_whole(call["rtype"]) or call["rtype"] not in range(4):
            return f"rtype={call['rtype']} stays on the CPU"
        depth = 0 if call["dtype"] == -1 else call["dtype"]
        if not is_whole(depth) or depth not in (
            (4, 5, 6) if call["rtype"] == 0 else (0, 5, 6) if call["rtype"] == 1 else (0,)
        ):
            return f"dtype={call['dtype']} with rtype={call['rtype']} stays on the CPU"
        return None

    def map(self, call: Call) -> Mapped:
        height, width = call["src"].shape[:2]
        size = (1, width) if call["dim"] == 0 else (height, 1)
        dtype = torch.uint8 if call["dtype"] == -1 else DEPTHS[call["dtype"]]
        return Mapped(result(call["src"], size, dtype), static=(int(call["dim"]) + 1, int(call["rtype"]), dtype))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        images, (dimension, kind, dtype) = squeezed(inputs[0]), static
        if kind == 2:
            return images.amax(dimension, keepdim=True)
        if kind == 3:
            return images.amin(dimension, keepdim=True)
        sums = images.to(torch.int32).sum(dimension, keepdim=True)
        if kind == 0:
            return sums.to(dtype)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        return saturated(sums.to(wide) * torch.full_like(sums, 1.0 / images.shape[dimension], dtype=wide), dtype)

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        kind = int(fixed.integers(4))
        dtype = int(fixed.choice([4, 5, 6] if kind == 0 else [-1, 0, 5, 6] if kind == 1 else [-1, 0]))
        return (example_image(fixed, random), int(fixed.integers(2)), kind), {"dtype": dtype}


@register
class Integral(OpenCV):
    target = "cv2.integral"
    parameters = "src, sum=None, sdepth=-1"

    def limits(self, call: Call) -> str | None:
        if not is_whole(call["sdepth"]) or call["sdepth"] not in (-1, 4, 6):
            return f"sdepth={call['sdepth']} stays on the CPU"
        return call.given("sum")

    def map(self, call: Call) -> Mapped:
        height, width = call["src"].shape[:2]
        dtype = torch.int32 if call["sdepth"] == -1 else DEPTHS[call["sdepth"]]
        return Mapped(result(call["src"], (height + 1, width + 1), dtype), static=dtype)

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        images = squeezed(inputs[0])
        sums = images.to(torch.int64).cumsum(1).cumsum(2).to(static)
        return torch.nn.functional.pad(sums, (*(0, 0) * (images.dim() - 3), 1, 0, 1, 0))

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        return (example_image(fixed, random), None, int(fixed.choice([-1, 4, 6]))), {}


class Real(Unary):
    """A function of floats."""

    dtypes = (torch.float32, torch.float64)
    parameters = "src, dst=None"
    tolerance = Tolerance(relative=1e-6, note="the last bits of functions of floats")

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        return (abs(example_image(fixed, random, dtypes=["float32", "float64"])),), {}


@register
class Sqrt(Real):
    target = "cv2.sqrt"

    def compute(self, images: list[torch.Tensor], static: Any, sample: list[torch.Tensor]) -> torch.Tensor:
        return images[0].sqrt()


@register
class Exp(Real):
    target = "cv2.exp"

    def compute(self, images: list[torch.Tensor], static: Any, sample: list[torch.Tensor]) -> torch.Tensor:
        return images[0].exp()

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        return (example_image(fixed, random, dtypes=["float32", "float64"]) / 10,), {}


@register
class Log(Real):
    target = "cv2.log"
    tolerance = Tolerance(1e-6, 1e-6, note="the last bits of functions of floats")

    def compute(self, images: list[torch.Tensor], static: Any, sample: list[torch.Tensor]) -> torch.Tensor:
        return images[0].log()


@register
class Pow(Real):
    target = "cv2.pow"
    parameters = "src, power, dst=None"
    tolerance = Tolerance(relative=1e-5, note="the last bits of functions of floats")

    def limits(self, call: Call) -> str | None:
        return None if is_number(call["power"]) else "power= is no finite number"

    def map(self, call: Call) -> Mapped:
        return Mapped(result(call["src"]), sample=(float(call["power"]),))

    def compute(self, images: list[torch.Tensor], static: Any, sample: list[torch.Tensor]) -> torch.Tensor:
        return images[0].pow(sample[0].to(images[0].dtype))

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        image = example_image(fixed, random, dtypes=["float32", "float64"])
        return (image, float(fixed.integers(-3, 5)) if fixed.integers(2) else float(random.normal())), {}


@register
class Magnitude(Pointwise):
    target = "cv2.magnitude"
    parameters = "x, y, magnitude=None"
    data = ("x", "y")
    dtypes = (torch.float32, torch.float64)
    tolerance = Tolerance(relative=1e-6, note="the last bits of functions of floats")

    def limits(self, call: Call) -> str | None:
        if (no_single_channel(call["x"].shape), call["x"].dtype) != (
            no_single_channel(call["y"].shape),
            call["y"].dtype,
        ):
            return "the images differ in size or dtype"
        return call.given("magnitude")

    def map(self, call: Call) -> Mapped:
        return Mapped(result(call["x"]))

    def compute(self, images: list[torch.Tensor], static: Any, sample: list[torch.Tensor]) -> torch.Tensor:
        x, y = images
        return (x * x + y * y).sqrt()

    def example(self, fixed: np.random.Generator, random: np.random.Generator) -> Arguments:
        image = example_image(fixed, random, dtypes=["float32", "float64"])
        return (image, random.permutation(image)), {}
