"""Recipes of preprocessing with and without a plan, in turns, in one process.

``python -m tests.perf.migration`` prints milliseconds a sample and whether the bytes are equal, for

- photographs of PIL in torchvision's first version, and tensors in its second one: seven transforms each,
- sounds in librosa: a mel spectrogram in decibels,

then the costs of patches: a call that the plan leaves on the CPU, and activation among 2,000 modules.

``--optimize`` lets `optimize` find the plan of each recipe, and of a program that leaves nothing to gain. It prints what
the program with that plan takes, also where the plan is empty.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Callable
from typing import Any

import librosa
import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as v1
from torchvision.transforms import v2

import torch_hetero  # noqa: F401
from torch_hetero.migration import PipelineMigrator
from torch_hetero.migration.optimize.compare import Runner, compare
from torch_hetero.migration.plan import Plan

BATCH = 32
V1, V2 = "torchvision.transforms.functional.", "torchvision.transforms.v2.functional."


def photographs() -> tuple[list[Any], Callable[[Any], torch.Tensor], list[str]]:
    """Returns images of PIL, their transforms, and the keys of the plan."""
    random = np.random.default_rng(0)
    small = [Image.fromarray(random.integers(0, 256, (60, 80, 3), dtype=np.uint8)) for _ in range(8)]
    transform = v1.Compose(
        [
            v1.RandomResizedCrop(224), v1.RandomHorizontalFlip(), v1.ColorJitter(0.3, 0.3, 0.3),
            v1.RandomRotation(10, v1.InterpolationMode.BILINEAR), v1.RandomGrayscale(0.1), v1.ToTensor(),
            v1.Normalize([0.5] * 3, [0.2] * 3),
        ]
    )  # fmt: skip
    names = ["resized_crop", "hflip", "adjust_brightness", "adjust_contrast", "adjust_saturation", "rotate",
             "rgb_to_grayscale", "to_tensor", "normalize"]  # fmt: skip
    return [image.resize((480, 360), Image.Resampling.BILINEAR) for image in small], transform, [V1 + n for n in names]


def tensors() -> tuple[list[Any], Callable[[Any], torch.Tensor], list[str]]:
    """Returns images as tensors, lerobot's colour transforms, and the keys of the plan."""
    images, _, _ = photographs()
    transform = v2.Compose(
        [
            v2.ColorJitter(brightness=0.2), v2.ColorJitter(contrast=0.2), v2.ColorJitter(saturation=0.5),
            v2.ColorJitter(hue=0.05), v2.RandomAdjustSharpness(1.5, p=1), v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5] * 3, [0.2] * 3),
        ]
    )  # fmt: skip
    names = [
        "adjust_brightness",
        "adjust_contrast",
        "adjust_saturation",
        "adjust_hue",
        "adjust_sharpness",
        "to_dtype",
        "normalize",
    ]
    return (
        [v2.functional.pil_to_tensor(image.resize((256, 256))) for image in images],
        transform,
        [V2 + n for n in names],
    )


def sounds() -> tuple[list[Any], Callable[[Any], torch.Tensor], list[str]]:
    """Returns seconds of noise, their spectrogram in decibels, and the keys of the plan."""
    random = np.random.default_rng(0)
    waves = [random.standard_normal(22050).astype(np.float32) for _ in range(8)]

    def transform(wave: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(librosa.power_to_db(librosa.feature.melspectrogram(y=wave, sr=22050)))

    return waves, transform, ["librosa.feature.melspectrogram", "librosa.power_to_db"]


class Samples(Dataset):
    """Each of some data, transformed, again and again."""

    def __init__(self, data: list[Any], transform: Callable[[Any], torch.Tensor], count: int) -> None:
        self.data, self.transform, self.count = data, transform, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.transform(self.data[index % len(self.data)])


def epoch(samples: Samples) -> tuple[float, list[torch.Tensor]]:
    """Returns the seconds a sample and the batches; the random numbers are always the same."""
    torch.manual_seed(1)
    begin = time.perf_counter()
    batches = [torch.from_numpy(np.array(batch.numpy())) for batch in DataLoader(samples, BATCH)]
    return (time.perf_counter() - begin) / len(samples), batches


def recipe(name: str, make: Callable[[], Any], count: int, rounds: int) -> None:
    """Prints one recipe's times."""
    data, transform, keys = make()
    samples = Samples(data, transform, count)
    epoch(samples)
    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(rounds):
        seconds, want = epoch(samples)
        times[False].append(seconds)
        with PipelineMigrator({key: {"device": "hetero", "exact": False} for key in keys}):
            seconds, got = epoch(samples)
        times[True].append(seconds)
        largest = max(float((left - right).abs().max()) for left, right in zip(want, got, strict=True))
    original, migrated = (statistics.median(times[kind]) * 1e3 for kind in (False, True))
    print(
        f"{name:<14} {original:8.2f} ms {migrated:8.2f} ms {original / migrated:7.2f} x   largest difference {largest:g}"
    )


def idle() -> tuple[list[Any], Callable[[Any], torch.Tensor], list[str]]:
    """Returns small tensors, a transform that takes less than a call can gain, and no keys."""
    return [torch.rand(3, 8, 8) for _ in range(8)], lambda image: v1.functional.hflip(image), []


RECIPES = {"photographs": photographs, "tensors": tensors, "sounds": sounds, "idle": idle}


def optimized(name: str, count: int, rounds: int) -> None:
    """Finds a recipe's plan in a process of its own, then runs it with and without the plan, in turns."""
    program = ["-m", "tests.perf.migration", "--recipe", name, "--samples", str(count)]
    batches = 2 * count // BATCH
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/plan.json"
        command = [sys.executable, "-m", "torch_hetero.migration", "optimize", "--allow-inexact"]
        subprocess.run([*command, "--batches", str(batches), "-o", file, *program], check=True, capture_output=True)
        plan = Plan.load(file)
    plain, (planned,) = compare(Runner(program, batches), [plan], rounds)
    print(
        f"{name:<14} {plain.best * 1e3:8.2f} ms {planned.best * 1e3:8.2f} ms {planned.gain_over(plain):7.2f} x   "
        f"{'declined' if not plan.rules else f'{len(plan.rules)} rules'}"
    )


def run_recipe(name: str, count: int) -> None:
    """The program that `optimize` traces: one epoch after another."""
    data, transform, _ = RECIPES[name]()
    for _ in range(2):
        epoch(Samples(data, transform, count))


def costs() -> None:
    """Prints what patches cost where nothing migrates."""
    module = types.ModuleType("plain_library")
    exec("def f(x):\n    return x", module.__dict__)  # noqa: S102
    module.__file__ = "/site-packages/plain_library.py"
    sys.modules["plain_library"] = module
    for index in range(2000 - len(sys.modules)):
        other = types.ModuleType(f"filler_{index}")
        vars(other).update({f"name_{k}": object() for k in range(60)})
        sys.modules[other.__name__] = other

    def nanoseconds() -> float:
        best = 1e9
        for _ in range(9):
            function = module.f
            begin = time.perf_counter()
            for _ in range(100_000):
                function(1)
            best = min(best, (time.perf_counter() - begin) * 1e4)
        return best

    before = nanoseconds()
    plan = {"plain_library.f": {"mode": "cpu"}, f"{V1}hflip": "hetero", "PIL.Image.Image.resize": "hetero"}
    PipelineMigrator(plan).activate().deactivate()
    milliseconds = []
    for _ in range(5):
        migrator = PipelineMigrator(plan)
        begin = time.perf_counter()
        migrator.activate()
        active = time.perf_counter()
        added = nanoseconds() - before
        ended = time.perf_counter()
        migrator.deactivate()
        milliseconds.append(((active - begin) * 1e3, (time.perf_counter() - ended) * 1e3))
    activation, deactivation = (statistics.median(column) for column in zip(*milliseconds, strict=True))
    print(f"a call that stays on the CPU: {added:.0f} ns more")
    print(f"activation among {len(sys.modules)} modules: {activation:.1f} ms, deactivation {deactivation:.1f} ms")


def main() -> None:
    """Prints all rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--optimize", action="store_true")
    parser.add_argument("--recipe", choices=list(RECIPES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.recipe is not None:
        run_recipe(options.recipe, options.samples)
        return
    if options.optimize:
        print(f"{'a batch of':<14} {'original':>11} {'with plan':>11} {'gain':>9}")
        for name in RECIPES:
            optimized(name, options.samples, options.rounds)
        return
    print(f"{'recipe':<14} {'original':>11} {'with plan':>11} {'gain':>9}")
    for name in ("photographs", "tensors", "sounds"):
        recipe(name, RECIPES[name], options.samples, options.rounds)
    costs()


if __name__ == "__main__":
    main()
