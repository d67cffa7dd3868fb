"""The device's generator: seeds and states."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from torch_hetero import _C
from torch_hetero.device.identity import DeviceLike, device_count, index_of

default_generators: tuple[torch.Generator, ...] = (_C.default_generator(),)


def manual_seed(seed: int) -> None:
    """Sets the seed of the device's generator. Numbers depend on the seed and the order of the program only."""
    default_generators[0].manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Sets the seed on all devices, of which there is one."""
    manual_seed(seed)


def seed() -> None:
    """Sets a seed taken from the operating system."""
    default_generators[0].seed()


def seed_all() -> None:
    """Sets a seed taken from the operating system on all devices."""
    seed()


def initial_seed() -> int:
    """Returns the seed set last."""
    return default_generators[0].initial_seed()


def get_rng_state(device: DeviceLike = "hetero") -> torch.Tensor:
    """Returns the state of the generator, a 1-D uint8 tensor on the CPU."""
    return default_generators[index_of(device)].get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """Returns the state of the generator of every device."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state(new_state: torch.Tensor, device: DeviceLike = "hetero") -> None:
    """Restores a state that `get_rng_state` returned."""
    default_generators[index_of(device)].set_state(new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Restores what `get_rng_state_all` returned."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)
