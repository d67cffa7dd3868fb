"""Small programs for tests of the commands: files in a folder, run in this process or in one of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

# A library with a slow function, and the strategies of a user for it.
SLOW = """
import time
import numpy as np
from torch_hetero.migration import Mapped, Strategy, register

def invert(image):
    out = np.empty_like(image)
    source, target = image.reshape(-1), out.reshape(-1)
    for index in range(source.size):
        target[index] = 255 - source[index]
    return out

def wait_and_invert(image):
    time.sleep(0.03)
    return 255 - image

def plus_one(image):
    return image + np.uint8(1)

def halve(image):
    return image // 2

class Pointwise(Strategy):
    parameters = "image"
    data = ("image",)

    def map(self, call):
        return Mapped(call["image"])

@register
class Invert(Pointwise):
    target = "slow_photos.invert"

    def run(self, inputs, static, sample):
        return 255 - inputs[0]

@register
class WaitAndInvert(Invert):
    target = "slow_photos.wait_and_invert"

@register
class PlusOne(Pointwise):
    target = "slow_photos.plus_one"

    def run(self, inputs, static, sample):
        result = inputs[0]
        for _ in range(300):
            result = result.flip(1).flip(1)
        return result + 1

@register
class WrongHalf(Pointwise):
    target = "slow_photos.halve"

    def run(self, inputs, static, sample):
        return inputs[0] // 2 + inputs[0] % 2
"""

TRAIN = """
import sys, time
import numpy as np
import torch
import slow_photos
from slow_photos import FUNCTION as function

class Photos(torch.utils.data.Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        image = np.random.default_rng(index).integers(0, 256, (SIZE), dtype=np.uint8)
        return torch.from_numpy(function(image).transpose(2, 0, 1))

if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(Photos(), 8, num_workers=WORKERS, multiprocessing_context=CONTEXT)
    total = 0
    for number, batch in enumerate(loader):
        total += int(batch.sum())
        time.sleep(STEP)
        if number == 9:
            break
    print("total", total)
"""


def write_program(
    folder: Path,
    function: str = "invert",
    size: str = "20, 16, 3",
    workers: int = 0,
    context: str | None = None,
    step: float = 0.0,
) -> Path:
    """Writes a training script and its library; returns the script."""
    (folder / "slow_photos.py").write_text(SLOW)
    text = TRAIN.replace("FUNCTION", function).replace("SIZE", size).replace("WORKERS", str(workers))
    script = folder / "train.py"
    script.write_text(text.replace("CONTEXT", repr(context)).replace("STEP", str(step)))
    return script


def command(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs ``python -m torch_hetero.migration`` in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "torch_hetero.migration", *map(str, arguments)],
        cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
