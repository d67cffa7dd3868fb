"""`make serve-demo`: requests for MiniLM, one text of 8 tokens each, by a closed loop with n of them in flight.

The model is saved to a file, and loaded by servers of one and of several core groups. Eager PyTorch and inductor are
called by n threads. Each subject has a process of its own, so that none disturbs another's pools of threads; they are
measured in turns, round by round, and medians of rounds are printed. Nothing here asserts: a busy machine moves
figures.

A group of several cores is there twice, since its team of threads is what a busy machine moves most: by default
OpenMP's threads spin where they wait, so one that has lost its core to another process holds up all; with
OMP_WAIT_POLICY=passive they sleep, which costs more on an idle machine. What several groups gain is told against the
faster of the two, round by round.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

BAR = 1.4  # throughput of several groups, against one request at a time on the same cores
SHAPE = (1, 8)
SETTLE = 0.15  # seconds of each measurement that do not count
ONE = ("hetero, 1 group", "hetero, 1 group passive")  # what the bar is against

Call = Callable[[], object]


@dataclasses.dataclass
class Run:
    """What n requests in flight gave: requests per second, and seconds of each."""

    throughput: float
    latencies: list[float]


def closed_loop(call: Call, in_flight: int, seconds: float) -> Run:
    """So many threads call, each again as soon as it has its result."""
    begin = time.perf_counter() + SETTLE
    end = begin + seconds
    calls: list[list[tuple[float, float]]] = [[] for _ in range(in_flight)]

    def client(own: list[tuple[float, float]]) -> None:
        # One call at least, however slow it is.
        while not own or own[-1][0] < end:
            start = time.perf_counter()
            call()
            if start >= begin:
                own.append((start, time.perf_counter()))

    threads = [threading.Thread(target=client, args=(own,)) for own in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    together = [times for own in calls for times in own]
    elapsed = max(stop for _, stop in together) - begin
    return Run(len(together) / elapsed, [stop - start for start, stop in together])


# ---- what is measured -----------------------------------------------------------------------------------------------


def arguments() -> dict[str, object]:
    import torch

    return {"input_ids": torch.randint(1000, 20000, SHAPE, generator=torch.Generator().manual_seed(0))}


def served(path: str, groups: int) -> Call:
    import torch

    server = torch.hetero.load(path).serve(groups=groups)
    given = arguments()
    return lambda: server.submit(**given).result()["last_hidden_state"]


def eager(threads: int | None = None, compiles: bool = False) -> Call:
    import models
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    model, _ = models.minilm()
    run = torch.compile(model, dynamic=False) if compiles else model
    given = arguments()

    def call() -> object:
        with torch.inference_mode():
            return run(**given).last_hidden_state

    return call


def make(subject: str, path: str) -> Call:
    kind, _, number = subject.partition(" ")
    if kind == "hetero,":
        return served(path, int(number.split()[0]))
    return eager(threads=1 if number else None, compiles=kind.startswith("inductor"))


def work(subject: str, path: str, channel: Connection) -> None:
    """The process of a subject: measures when it is told to."""
    call = make(subject, path)
    result = call()
    for _ in range(80):  # kernels are chosen, and weights packed, in the first calls
        call()
    channel.send(result.detach().clone().numpy())
    while (order := channel.recv()) is not None:
        channel.send(closed_loop(call, *order))


class Subject:
    """A subject's process."""

    def __init__(self, name: str, path: str) -> None:
        self.name = name
        spawn = multiprocessing.get_context("spawn")
        self._channel, other = spawn.Pipe()
        self._process = spawn.Process(target=work, args=(name, path, other), daemon=True)
        if name.endswith("passive"):
            os.environ["OMP_WAIT_POLICY"] = "passive"
        self._process.start()
        os.environ.pop("OMP_WAIT_POLICY", None)
        other.close()

    def first_result(self) -> object:
        return self._channel.recv()

    def measure(self, in_flight: int, seconds: float) -> Run:
        self._channel.send((in_flight, seconds))
        return self._channel.recv()

    def end(self) -> None:
        self._channel.send(None)
        self._process.join()


# ---- the table ------------------------------------------------------------------------------------------------------


def quantiles(values: list[float], n: int) -> list[float]:
    """What divides the values into n equal parts; the value itself where there is but one."""
    return statistics.quantiles(values * 2 if len(values) == 1 else values, n=n, method="inclusive")


def line(name: str, in_flight: int, runs: list[Run], baseline: list[float]) -> str:
    cuts = quantiles([latency for run in runs for latency in run.latencies], 100)
    p50, p95, p99 = (1e3 * cuts[i] for i in (49, 94, 98))
    median = statistics.median(run.throughput for run in runs)
    times = statistics.median(run.throughput / base for run, base in zip(runs, baseline, strict=True))
    return f"{name:27}{in_flight:>9}{median:>12.0f}{p50:>9.2f}{p95:>9.2f}{p99:>9.2f}{times:>9.2f}"


def save(path: str) -> None:
    """In a process of its own, whose threads would be in the way afterwards."""
    import models
    import torch

    model, _ = models.minilm()
    torch.hetero.compile(model, example_kwargs=arguments()).save(path)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make serve-demo", description=__doc__)
    parser.add_argument("--groups", type=int, default=2, help="core groups, beside one of all cores; default 2")
    parser.add_argument("--most", type=int, default=8, metavar="N", help="requests in flight: 1, 2 and N; default 8")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of which medians are printed; default 7")
    parser.add_argument("--seconds", type=float, default=0.6, help="of each measurement; default 0.6")
    parser.add_argument("--no-inductor", action="store_true", help="without inductor, which compiles for a minute")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    several = f"hetero, {options.groups} groups"
    names = [*ONE, *([several] if 1 < options.groups <= cores else []), "eager", "eager 1 thread each"]
    if not options.no_inductor:
        names += ["inductor", "inductor 1 thread each"]
    in_flight = sorted({1, 2, options.most})
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "minilm.hetero")
        saving = multiprocessing.get_context("spawn").Process(target=save, args=(path,))
        saving.start()
        saving.join()
        print(f"MiniLM, requests of {SHAPE[0]} x {SHAPE[1]} tokens, {cores} cores; "
              f"the saved program has {os.path.getsize(path) >> 20} MiB", flush=True)
        subjects: list[Subject] = []
        results = []
        for name in names:  # one after the other: they choose kernels by measuring
            subjects.append(Subject(name, path))
            results.append(subjects[-1].first_result())
            difference = abs(results[-1] - results[0]).max()
            print(f"  {name} is ready; its result differs from the first by at most {difference:.1e}", flush=True)
        runs: dict[tuple[str, int], list[Run]] = {(name, n): [] for name in names for n in in_flight}
        for done in range(options.rounds):
            for subject in subjects[done % len(subjects):] + subjects[: done % len(subjects)]:
                for n in in_flight:
                    runs[subject.name, n].append(subject.measure(n, options.seconds))
        for subject in subjects:
            subject.end()
    report(names, in_flight, runs, several)


def report(names: list[str], in_flight: list[int], runs: dict[tuple[str, int], list[Run]], several: str) -> None:
    """Prints the table, and what the bar says."""
    one_at_a_time = zip(*(runs[name, 1] for name in ONE), strict=True)
    baseline = [max(run.throughput for run in round_) for round_ in one_at_a_time]
    print(f"\n{'':27}{'in flight':>9}{'requests/s':>12}{'p50 ms':>9}{'p95 ms':>9}{'p99 ms':>9}{'times':>9}")
    for name in names:
        for n in in_flight:
            print(line(name, n, runs[name, n], baseline))
    print(f"\nMedians of {len(baseline)} rounds in turns; percentiles of all requests. "
          '"times" is throughput against one request at a time on all cores, the faster of the two ways to wait.')
    for n in in_flight[1:] if several in names else []:
        gains = [run.throughput / base for run, base in zip(runs[several, n], baseline, strict=True)]
        low, median, high = quantiles(gains, 4)
        verdict = "reached" if median >= BAR else "MISSED"
        print(f"{several} with {n} in flight: {median:.2f} times one request at a time "
              f"(quartiles {low:.2f} to {high:.2f}); {BAR} is wanted: {verdict}")
    print(f"load of the machine: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
