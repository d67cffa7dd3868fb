"""A chain of eight pointwise operators on two tensors, in the steady state, at three sizes.

Arithmetic only, so that what is compared is dispatch, memory traffic and page faults. Every call makes a new result,
which the call after replaces.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from tests.perf import peers
from tests.perf.measure import DEVICE, Row, alternate, flush, main, missing, timed_row

SIZES = {4096: (0.6, "us", 50), 2**20: (0.35, "us", 1), 2**24: (0.2, "ms", 1)}  # floats: bar, unit, calls a timing
PEER_BAR = 1.0


def chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Eight operators on float32 tensors of one size."""
    z = x + y
    z = z * x
    z = z - y
    z = torch.relu(z)
    z = z * 0.5
    z = z + x
    z = torch.maximum(z, y)
    return z - 1.0


def jax_chain(x: torch.Tensor, y: torch.Tensor) -> Callable[[], object]:
    """The same chain under jax.jit, on CPU, with its own copies of the inputs."""
    import jax
    import jax.numpy as jnp

    def function(a: jax.Array, b: jax.Array) -> jax.Array:
        c = jnp.maximum((a + b) * a - b, 0.0)
        return jnp.maximum(c * 0.5 + a, b) - 1.0

    compiled = jax.jit(function)
    device = jax.devices("cpu")[0]
    a, b = jax.device_put(x.numpy(), device), jax.device_put(y.numpy(), device)
    return lambda: compiled(a, b).block_until_ready()


def on_device(x: torch.Tensor, y: torch.Tensor) -> Callable[[], torch.Tensor]:
    """The chain on hetero; a call ends when its result has its bytes."""
    there_x, there_y = x.to(DEVICE), y.to(DEVICE)

    def run() -> torch.Tensor:
        z = chain(there_x, there_y)
        flush()
        return z

    return run


def measure() -> list[Row]:
    """For each size a row against eager, inductor and JAX."""
    rows = []
    version = peers.jax_version()
    for size, (bar, unit, calls) in SIZES.items():
        x, y = torch.randn(size), torch.randn(size)
        compiled = peers.inductor(chain)
        subjects: dict[str, Callable[[], object]] = {
            "hetero": on_device(x, y),
            "eager": lambda x=x, y=y: chain(x, y),
            "inductor": lambda run=compiled, x=x, y=y: run(x, y),
        }
        if version:
            subjects["jax"] = jax_chain(x, y)
        with torch.no_grad():
            seconds = {name: peers.first_call(run) for name, run in subjects.items()}
            times = alternate(subjects, calls=calls)
        what = f"chain of 8 pointwise, {size:,} floats"
        rows.append(timed_row(what, times, bar, unit))
        for peer in ("inductor", "jax"):
            if peer in times:
                note = f"{peer} compiled in {seconds[peer]:.1f} s"
                rows.append(timed_row(what, times, PEER_BAR, unit, peer=peer, note=note))
            else:
                rows.append(missing(what, PEER_BAR, unit, "jax is not installed", peer_name="jax"))
    return rows


if __name__ == "__main__":
    main(measure)
