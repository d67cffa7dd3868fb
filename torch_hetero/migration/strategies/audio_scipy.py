"""scipy.signal: filters of waveforms as numpy arrays."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from torch_hetero.migration.constant import Constant
from torch_hetero.migration.spec import Spec
from torch_hetero.migration.strategy import Call, Mapped, OnHost, Strategy, Tolerance, Unsupported, register

Examples = Iterator[tuple[tuple[Any, ...], dict[str, Any]]]


class Filter(Strategy):
    """A filter of arrays of floats."""

    family = "audio"
    library = "scipy"
    versions = ("1.17.",)

    def supports(self, call: Call) -> str | None:
        for name in self.data:
            source = call[name]
            if not isinstance(source, Spec) or source.kind != "array":
                return f"{name} is no array"
            if source.dtype not in (torch.float32, torch.float64):
                return f"{name} has elements of {str(source.dtype).removeprefix('torch.')}"
            if not source.shape or 0 in source.shape:
                return f"{name} is empty or a number"
        return self.refuses(call)

    def refuses(self, call: Call) -> str | None:
        """Returns `supports` for a call whose data is arrays of floats."""
        return None


@functools.lru_cache(64)
def polyphase(up: int, down: int, window: Any, dtype: torch.dtype) -> tuple[Constant, int]:
    """Returns the filters [up, 1, width] that make `up` results of the elements from an offset on, and that offset.

    Result m is the sum of x[i] h[(m + skipped) down - i up]. For m + up it is the same sum, `down` elements later.
    """
    import scipy.signal

    half = 10 * max(up, down)
    taps = scipy.signal.firwin(2 * half + 1, 1.0 / max(up, down), window=window)
    before = down - half % down
    skipped = (half + before) // down
    taps = np.concatenate([np.zeros(before), (taps.astype(np.float32) if dtype == torch.float32 else taps) * up])
    last = [(phase + skipped) * down // up for phase in range(up)]  # the last element of each result
    count = -(-len(taps) // up)
    offset, width = min(last) - count + 1, max(last) - min(last) + count
    kernel = np.zeros((up, 1, width))
    for phase in range(up):
        wanted = taps[(phase + skipped) * down % up :: up]
        at = last[phase] - offset
        kernel[phase, 0, at - len(wanted) + 1 : at + 1] = wanted[::-1]
    return Constant(torch.from_numpy(kernel).to(dtype)), offset


@register
class ResamplePoly(Filter):
    target = "scipy.signal.resample_poly"
    parameters = "x, up, down, axis=0, window=('kaiser', 5.0), padtype='constant', cval=None"
    data = ("x",)
    tolerance = Tolerance(2e-6, 1e-5, note="sums of products in another order, of amplitudes up to 1")

    def refuses(self, call: Call) -> str | None:
        up, down, axis = call["up"], call["down"], call["axis"]
        if any(not isinstance(number, int) or number < 1 for number in (up, down)):
            return "up or down is no positive number"
        if up == down:
            return "the sample rate stays"
        if call["padtype"] != "constant" or call["cval"] not in (None, 0):
            return f"padtype {call['padtype']!r} with cval={call['cval']} stays on the CPU"
        if not isinstance(call["window"], (str, tuple)):
            return "the window is an array"
        if not isinstance(axis, int) or not -len(call["x"].shape) <= axis < len(call["x"].shape):
            return "axis is none of the array's"
        return None

    def map(self, call: Call) -> Mapped:
        source, axis = call["x"], call["axis"] % len(call["x"].shape)
        divisor = math.gcd(call["up"], call["down"])
        up, down = call["up"] // divisor, call["down"] // divisor
        length = -(-source.shape[axis] * up // down)
        shape = (*source.shape[:axis], length, *source.shape[axis + 1 :])
        return Mapped(Spec("array", shape, source.dtype), (up, down, axis, call["window"], length))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        up, down, axis, window, length = static
        waves = inputs[0].movedim(axis + 1, -1)
        kernel, offset = polyphase(up, down, window, waves.dtype)
        blocks = -(-length // up)
        end = (blocks - 1) * down + kernel.tensor.shape[-1] + offset
        # A negative size cuts elements that no result reads.
        padded = torch.nn.functional.pad(waves.reshape(-1, 1, waves.shape[-1]), (-offset, end - waves.shape[-1]))
        results = torch.nn.functional.conv1d(padded, kernel.on(waves.device), stride=down)
        results = results.transpose(1, 2).reshape(len(padded), -1)[:, :length]
        return results.reshape(*waves.shape[:-1], length).movedim(-1, axis + 1)

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            shape, axis = [((700,), 0), ((2, 600), -1), ((500, 2), 0)][random.integers(3)]
            up, down = [(1, 2), (2, 1), (3, 4), (160, 441), (7, 5), (4, 2)][random.integers(6)]
            array = random.uniform(-1, 1, shape).astype([np.float32, np.float64][random.integers(2)])
            options = {"window": "hamming"} if random.random() < 0.2 else {}
            yield (array, up, down), options | ({"axis": axis} if axis else {})


@register
class FFTConvolve(Filter):
    target = "scipy.signal.fftconvolve"
    parameters = "in1, in2, mode='full', axes=None"
    data = ("in1", "in2")
    tolerance = Tolerance(5e-5, 1e-5, note="FFTs in float32 round differently, for sums up to 100")

    def refuses(self, call: Call) -> str | None:
        first, second = call["in1"], call["in2"]
        if first.dtype != second.dtype:
            return "the arrays have different dtypes"
        if len(first.shape) != len(second.shape):
            return "the arrays have different dimensions"
        if call["mode"] not in ("full", "same", "valid"):
            return f"mode {call['mode']!r} is none of scipy's"
        return call.given("axes")

    def map(self, call: Call) -> Mapped:
        import scipy.fft

        first, second, mode = call["in1"].shape, call["in2"].shape, call["mode"]
        full = tuple(one + other - 1 for one, other in zip(first, second, strict=True))
        if mode == "valid":
            if not (all(map(int.__ge__, first, second)) or all(map(int.__ge__, second, first))):
                raise Unsupported("neither array is the larger one")
            shape = tuple(abs(one - other) + 1 for one, other in zip(first, second, strict=True))
        else:
            shape = full if mode == "full" else first
        sizes = tuple(scipy.fft.next_fast_len(size, True) for size in full)
        begins = tuple((size - kept) // 2 for size, kept in zip(full, shape, strict=True))
        return Mapped(Spec("array", shape, call["in1"].dtype), (sizes, begins, shape))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        sizes, begins, shape = static
        axes = tuple(range(1, len(sizes) + 1))
        first, second = (torch.fft.rfftn(array, sizes, axes) for array in inputs)
        result = torch.fft.irfftn(first * second, sizes, axes)
        for axis, begin, size in zip(axes, begins, shape, strict=True):
            result = result.narrow(axis, begin, size)
        return result

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            first, second = [((500,), (31,)), ((31,), (200,)), ((2, 300), (1, 20)), ((12, 9), (4, 5))][
                random.integers(4)
            ]
            dtype = [np.float32, np.float64][random.integers(2)]
            arrays = (random.normal(0, 1, shape).astype(dtype) for shape in (first, second))
            yield (*arrays, ["full", "same", "valid"][random.integers(3)]), {}


class Serial(OnHost):
    """A recursive filter."""

    family = "audio"
    library = "scipy"
    data = ("x",)
    reason = "recursive filters stay on the CPU: each element needs the one before"


@register
class LFilter(Serial):
    target = "scipy.signal.lfilter"
    parameters = "b, a, x, axis=-1, zi=None"


@register
class SOSFilter(Serial):
    target = "scipy.signal.sosfilt"
    parameters = "sos, x, axis=-1, zi=None"


@register
class FiltFilt(Serial):
    target = "scipy.signal.filtfilt"
    parameters = "b, a, x, axis=-1, padtype='odd', padlen=None, method='pad', irlen=None"
