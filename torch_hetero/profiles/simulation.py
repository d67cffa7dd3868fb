"""``torch.hetero.use_profile`` and ``torch.hetero.simulate``: what a program would take on hardware one does not have.

The accelerator ``sim`` computes real results in memory of its own, and has a virtual clock that goes by the figures of
a profile (`torch_hetero.profiles`). So a program that runs on it is planned, placed and ordered just as it would be on
such a machine, and its times come from the clock; docs/simulator.md has the rules.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch_hetero import _C
from torch_hetero.settings.config import config
from torch_hetero.profiles import Profile, load_profile
from torch_hetero.report.program import Program
from torch_hetero.report.log import programs

__all__ = ["Prediction", "simulate", "use_profile"]


def use_profile(profile: str | os.PathLike[str] | Profile | None, **figures: float) -> Profile | None:
    """Gives the simulated accelerator the figures of a machine; what lies on it now leaves it first.

    Args:
        profile: a name of `torch_hetero.profiles.available_profiles`, the path of a file, or a profile; None for the
            figures that ``sim`` has by itself.
        **figures: single figures in place of the profile's, by the names of ``Profile.as_options``; beside these
            ``schedule_seed``, ``duration_spread``, ``slowdown``, ``slowdown_after`` and ``pace`` (docs/simulator.md).

    Returns:
        The profile.

    Raises:
        ValueError: for an unknown profile or figure, or a figure out of range. Nothing is changed then.
    """
    chosen = profile if profile is None or isinstance(profile, Profile) else load_profile(profile)
    options: dict[str, float] = {} if chosen is None else dict(chosen.as_options())
    options.update(figures)
    config.sim_figures = ",".join(f"{name}={float(value)!r}" for name, value in options.items())
    return chosen


@dataclass(frozen=True)
class Prediction:
    """What `simulate` found out.

    Attributes:
        profile: name of the machine.
        seconds: of virtual time that one call takes: kernels and copies, not Python's own time.
        queue_seconds: how long each queue is busy, by name.
        peak_bytes: the most that the accelerator held.
        budget_bytes: what it may hold; 0 for all it has.
        bytes_to_accelerator: that were copied there.
        bytes_to_cpu: that were copied back.
        result: what the last call returned.
        programs: the programs of the last call, as `programs` returns them.
    """

    profile: str
    seconds: float
    queue_seconds: dict[str, float]
    peak_bytes: int
    budget_bytes: int
    bytes_to_accelerator: int
    bytes_to_cpu: int
    result: Any = field(repr=False, default=None)
    programs: list[Program] = field(repr=False, default_factory=list)

    def __str__(self) -> str:
        queues = "; ".join(f"{name} busy {seconds:.3g} s" for name, seconds in self.queue_seconds.items())
        return (
            f"{self.profile}: {self.seconds:.3g} s a call; {queues or 'nothing ran'}; the accelerator held at most "
            f"{self.peak_bytes / 2**20:,.1f} MiB; {self.bytes_to_accelerator / 2**20:,.1f} MiB went there, "
            f"{self.bytes_to_cpu / 2**20:,.1f} MiB came back"
        )


# There is one simulated machine. What runs on it may simulate another, on its own thread.
_simulating = threading.RLock()


@contextlib.contextmanager
def _simulated(profile: str | os.PathLike[str] | Profile, budget: int | str | None) -> Iterator[Profile]:
    with _simulating:
        before = config.sim_figures
        log = _C.exchange_program_log(_C.ProgramLog())
        try:
            with config.override(accelerator="none"):
                chosen = use_profile(profile)
                if chosen is None:
                    raise ValueError("simulate takes the profile of a machine, not None")
                try:
                    with config.override(memory_budget=0 if budget is None else budget, keep_plans=True):
                        with config.override(accelerator="sim"):
                            yield chosen
                finally:
                    config.sim_figures = before
        finally:
            _C.exchange_program_log(log)


def simulate(
    fn: Callable[..., Any],
    *args: Any,
    profile: str | os.PathLike[str] | Profile,
    budget: int | str | None = None,
    warmup: int = 5,
    **kwargs: Any,
) -> Prediction:
    """Predicts time and memory of ``fn(*args, **kwargs)`` on a machine, by running it on the simulated one.

    Results are computed for real, on the CPU of this machine, so the host needs the memory for them. The simulated
    machine is the whole process's while this runs: what other threads do on the device meanwhile runs there too. Other
    calls of this function wait. docs/simulator.md says what is not simulated.

    Example::

        print(torch.hetero.simulate(lambda: model(x).cpu(), profile="h200", budget="8GiB"))

    Args:
        fn: uses tensors on ``"hetero"``; should need its results (``.cpu()``), as what nobody needs is not run.
        *args: for ``fn``.
        profile: the machine, as for `use_profile`.
        budget: bytes of the accelerator's memory, also as text; None for all it has.
        warmup: calls before the one that is looked at. A program is planned with care when it comes again, and a
            weight is known as one when several calls have left it alone.
        **kwargs: for ``fn``.

    Returns:
        The prediction. Configuration, profile and the log of programs are as before.

    Raises:
        ValueError: for an unknown profile or a budget that is none.
        Exception: what ``fn`` raises.
    """
    with _simulated(profile, budget) as chosen:
        for _ in range(max(0, warmup)):
            fn(*args, **kwargs)
        _C.synchronize()
        _C.clear_program_log()
        _C.reset_accelerator_peak()
        before = _C.accelerator_counters()
        begin = _C.virtual_seconds()
        result = fn(*args, **kwargs)
        _C.synchronize()
        seconds = _C.virtual_seconds() - begin
        made = programs()
        after = _C.accelerator_counters()
        return Prediction(
            profile=chosen.name,
            seconds=seconds,
            queue_seconds=_busy_seconds(made),
            peak_bytes=_C.accelerator_stats()["peak_bytes"],
            budget_bytes=int(config.memory_budget),
            bytes_to_accelerator=after["bytes_in"] - before["bytes_in"],
            bytes_to_cpu=after["bytes_out"] - before["bytes_out"],
            result=result,
            programs=made,
        )


def _busy_seconds(made: list[Program]) -> dict[str, float]:
    """How long each queue is busy, by name."""
    queues: dict[str, float] = {}
    for span in (span for program in made for span in program["spans"]):
        busy = span["end"] - span["begin"]
        if busy > 0:
            queues[span["queue"]] = queues.get(span["queue"], 0.0) + busy
    return queues
