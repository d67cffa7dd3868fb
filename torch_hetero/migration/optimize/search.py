"""From a program to a plan: trace it, see whether loading matters at all, measure, choose, and compare."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_hetero.migration.optimize.choose import Edge, Task, choose
from torch_hetero.migration.optimize.compare import Measured, Runner, compare
from torch_hetero.migration.optimize.loader import LoaderFacts
from torch_hetero.migration.optimize.measure import Candidate, measure
from torch_hetero.migration.optimize.script import Script
from torch_hetero.migration.optimize.trace import BATCH, OTHER, PROGRAM, Seen, Trace, trace_script
from torch_hetero.migration.plan import Plan, Rule, environment
from torch_hetero.migration.spec import Spec

__all__ = ["ScriptFailed", "Settings", "optimize"]


class ScriptFailed(Exception):
    """The program failed while it was traced, and said so itself; `status` is its exit status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the program failed with exit status {status}")
        self.status = status


@dataclass(frozen=True)
class Settings:
    """The options of `optimize`.

    Attributes:
        batches: Batches that are traced, and that each measured run has.
        device: Where strategies run.
        minimum_gain: The least gain for which a plan is kept.
        allow_inexact: Whether strategies within a tolerance may compute bytes.
        device_share: The most of a batch's time that the device may compute for the pipeline.
        device_bytes: The most bytes of a batch on the device.
        rounds: Runs with and without each plan.
        strategies: Modules with strategies of the user's own.
    """

    batches: int = 50
    device: str = "hetero"
    minimum_gain: float = 1.1
    allow_inexact: bool = False
    device_share: float | None = None
    device_bytes: int | None = None
    rounds: int = 3
    strategies: tuple[str, ...] = ()

    def share(self) -> float:
        """Returns the most of a batch's time on the device; half of an accelerator's is left to the program."""
        if self.device_share is not None:
            return self.device_share
        return 0.5 if torch.cuda.is_available() and self.device != "cpu" else 1.0

    def memory(self) -> int:
        """Returns the most bytes on the device: a quarter of what is free."""
        if self.device_bytes is not None:
            return self.device_bytes
        if torch.cuda.is_available() and self.device != "cpu":
            return torch.cuda.mem_get_info()[0] // 4
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4


def optimize(
    script: Script, command: Sequence[str], settings: Settings, say: Callable[[str], None] = lambda line: None
) -> Plan:
    """Finds the plan for a program, or an empty one and why.

    Args:
        script: The program; it is prepared.
        command: The program and its arguments, as on the command line.
        settings: What the user asked for.
        say: Called with one line of progress at a time.

    Raises:
        ScriptFailed: It failed while it was traced.
        Failed: It failed when it ran in a process of its own, without a plan.
    """
    say(f"tracing {script.name}: {settings.batches} batches, loaded by the main process")
    trace, status = trace_script(script, settings.batches)
    if status != 0:
        raise ScriptFailed(status)
    search = Search(trace, settings, Runner(command, settings.batches), say)
    search.describe_trace(script.name)
    search.why = search.decide()
    return search.plan()


class Search:
    """A search for one program. Methods that return text return why there is no plan, empty if there may be one."""

    def __init__(self, trace: Trace, settings: Settings, runner: Runner, say: Callable[[str], None]) -> None:
        self.trace, self.settings, self.runner, self.say = trace, settings, runner, say
        self.candidates: dict[str, Candidate] = {}
        self.reasons: dict[str, str] = {}  # by key: why it was chosen or not
        self.chosen: frozenset[str] = frozenset()
        self.times: dict[str, Any] = {}
        self.evidence: dict[str, Any] = {}
        self.why, self.why_chosen = "", ""

    @property
    def loader(self) -> LoaderFacts | None:
        """The DataLoader with the largest batches; None if there is none."""
        return max(self.trace.timings.loaders, key=lambda loader: loader.batch_size, default=None)

    @property
    def workers(self) -> int:
        """The processes that prepare samples at a time."""
        return max(1, min(self.loader.workers if self.loader else 0, os.cpu_count() or 1))

    def describe_trace(self, name: str) -> None:
        """Starts the evidence."""
        loader = self.loader
        self.evidence |= {
            "script": name, "device": self.settings.device, "batches": self.trace.batches,
            "loader": None if loader is None else vars(loader),
            "flow": [
                {"from": maker, "to": reader, "number": number, "bytes": size}
                for (maker, reader), (number, size) in self.trace.flow.items()
            ],
        }  # fmt: skip
        if loader is None:
            self.say("no DataLoader was used, so the whole run was traced")
        else:
            self.say(
                f"{self.trace.batches} batches of {loader.batch_size} samples of {loader.dataset}, "
                f"{loader.workers} workers in the program; {len(self.trace.calls)} context keys have strategies"
            )

    def decide(self) -> str:
        """Searches; returns why there is no plan, empty if there is one."""
        if not self.trace.calls:
            where = "while its DataLoaders loaded" if self.loader else "in the whole run"
            return f"no call that a strategy covers was seen {where}"
        return self.headroom() or self.measure_candidates() or self.compare_plans(self.choose_plans())

    def headroom(self) -> str:
        """Runs the program as it is. Without its waiting for data, how fast could it be?"""
        self.say("running the program without a plan, with its own workers")
        self.times = self.runner.run()[0]
        seconds, wait = self.times["seconds"], self.times["wait_seconds"]
        calls = sum(seen.seconds for seen in self.trace.calls.values() if not seen.caller) / self.trace.batches
        reachable = min(calls if self.loader is None else wait, seconds)
        best = seconds / max(seconds - reachable, 1e-9)
        self.evidence["headroom"] = {
            "seconds": seconds, "wait_seconds": wait if self.loader else None, "calls_seconds": calls,
            "most_gain": min(best, 1e6),
        }  # fmt: skip
        if best >= self.settings.minimum_gain:
            return ""
        if self.loader is None:
            return (
                f"the calls that strategies cover take {calls / seconds:.1%} of the run: without them it would be "
                f"{best:.2f} times as fast at most"
            )
        return (
            f"the loader is hidden by the step: the program waits for data in {wait / seconds:.1%} of its time, "
            f"so it would be {best:.2f} times as fast at most"
        )

    def measure_candidates(self) -> str:
        """Verifies and measures the strategy of each key."""
        size = self.loader.batch_size if self.loader else max(seen.calls for seen in self.trace.calls.values())
        for number, (key, seen) in enumerate(self.trace.calls.items(), 1):
            self.say(f"measuring {number} of {len(self.trace.calls)}: {key}")
            count = min(max(1, size), max(1, seen.calls))
            candidate = measure(seen, self.settings.device, count, self.settings.allow_inexact)
            self.candidates[key] = candidate
            if candidate.reason:
                self.reasons[key] = candidate.reason
        if all(candidate.reason for candidate in self.candidates.values()):
            return f"no strategy can be used: {next(iter(self.reasons.values()))}"
        return ""

    def choose_plans(self) -> list[frozenset[str]]:
        """Returns the sets of keys that are worth a try, the most promising first."""
        budget = self.settings.share() * self.times["seconds"]
        memory = self.settings.memory()
        careful, saved = choose(self.tasks(), self.edges(True), budget, memory)
        # Code in between may follow results, and the step may read batches on the device: only a run can tell.
        hopeful, _ = choose(self.tasks(), self.edges(False), budget, memory)
        self.evidence["model"] = {
            "saved_seconds": saved, "device_share": self.settings.share(), "device_bytes": memory,
            "chosen": sorted(careful),
        }  # fmt: skip
        everything = frozenset()
        usable = {key: candidate for key, candidate in self.candidates.items() if not candidate.reason}
        if any(min(entry.device_seconds.values()) < entry.original_seconds for entry in usable.values()):
            # Chains are fused, which single measurements cannot show.
            everything = frozenset(key for key in usable if not any(key.startswith(f"{other}/") for other in usable))
        return [keys for keys in dict.fromkeys(map(self.entries, [careful, hopeful, everything])) if keys]

    def entries(self, keys: frozenset[str]) -> frozenset[str]:
        """Returns the keys that a plan must name, so that all of some keys move: others follow, or cannot be named."""
        named = frozenset(key for key in keys if self.trace.calls[key].patched)
        return named - self.followers(named)

    def tasks(self) -> list[Task]:
        """Returns the calls of a batch."""
        tasks = []
        for key, seen in self.trace.calls.items():
            candidate = self.candidates[key]
            calls = seen.calls / self.trace.batches
            cpu = calls * candidate.original_seconds / self.workers
            if candidate.reason:
                tasks.append(Task(key, cpu, None))
                continue
            busy = calls * candidate.device_seconds[max(candidate.device_seconds)]
            record = calls * candidate.record_seconds / self.workers
            size = int(calls * (seen.bytes_in + seen.bytes_out) / max(1, seen.calls))
            excludes = frozenset(
                other for other in self.trace.calls if other.startswith(f"{key}/") or key.startswith(f"{other}/")
            )
            tasks.append(Task(key, cpu, busy + record, busy, size, excludes))
        return tasks

    def edges(self, careful: bool) -> list[Edge]:
        """Returns the data of a batch, with the seconds to copy it.

        Args:
            careful: Whether batches are read on the CPU, and unknown code reads each result at once.
        """
        edges = []
        for (maker, reader), (number, size) in self.trace.flow.items():
            if not careful and reader in (BATCH, OTHER):
                continue
            share = size / self.trace.batches
            download = share * self.rate(maker, "download")
            if reader != BATCH:  # it is read at once, so it is not computed together with others
                download += number / self.trace.batches * self.alone(maker)
            edges.append(
                Edge(
                    maker if maker != PROGRAM else None,
                    reader if reader not in (BATCH, OTHER) else None,
                    share * self.rate(reader, "upload"),
                    download,
                )
            )
        return edges

    def alone(self, key: str) -> float:
        """Returns the additional seconds of a call that is not computed together with others."""
        times = self.candidates[key].device_seconds if key in self.candidates else {}
        return max(0.0, times[1] - times[max(times)]) if times else 0.0

    def rate(self, key: str, direction: str) -> float:
        """Returns the measured seconds of a byte to or from the device."""
        candidate, seen = self.candidates.get(key), self.trace.calls.get(key)
        if candidate is None or seen is None or candidate.reason:
            return 0.0
        if direction == "upload":
            return candidate.upload_seconds * seen.calls / max(1, seen.bytes_in)
        return candidate.download_seconds * seen.calls / max(1, seen.bytes_out)

    def compare_plans(self, sets: list[frozenset[str]]) -> str:
        """Runs the program with and without each plan; keeps the fastest if it gains enough."""
        usable = [key for key, candidate in self.candidates.items() if not candidate.reason]
        for key in usable:
            self.reasons[key] = "its original takes less time than the device, the copies and the recording"
        if not sets:
            return "no call is faster on the device, with the copies that it would need"
        plans = [Plan(self.rules(keys), strategies=self.modules()) for keys in sets]
        for number, keys in enumerate(sets, 1):
            self.say(f"plan {number} moves {', '.join(sorted(keys))}")
        plain, found = compare(
            self.runner, plans, self.settings.rounds,
            lambda number, text: self.say(f"round {number} of {self.settings.rounds}: {text}"),
        )  # fmt: skip
        self.evidence["end_to_end"] = {
            "without": plain.seconds,
            "plans": [
                {"keys": sorted(keys)} | ({"failed": entry} if isinstance(entry, str) else {
                    "seconds": entry.seconds, "gain": entry.gain_over(plain), "counters": entry.reports[-1]})
                for keys, entry in zip(sets, found, strict=True)
            ],
        }  # fmt: skip
        measured = [(entry, keys) for entry, keys in zip(found, sets, strict=True) if isinstance(entry, Measured)]
        if not measured:
            for key in frozenset().union(*sets):
                self.reasons[key] = str(found[0])
            return str(found[0])
        best, keys = max(measured, key=lambda entry: entry[0].gain_over(plain))
        gain = best.gain_over(plain)
        least = max(1.0, self.settings.minimum_gain)
        outcome = f"{plain.best * 1e3:.2f} ms a batch without the plan, {best.best * 1e3:.2f} ms with it"
        if gain < least:
            for key in keys:
                self.reasons[key] = f"the program gained {gain:.2f} x with it, less than {least:g} x"
            return f"the best plan gained {gain:.2f} x, less than {least:g} x: {outcome}"
        self.chosen = keys
        for key in keys:
            self.reasons[key] = f"chosen: the program is {gain:.2f} times as fast with the plan"
        for key in self.followers(keys):
            self.reasons[key] = "follows: its inputs are on the device, so it runs there, too"
        self.evidence["gain"] = gain
        self.why_chosen = f"{gain:.2f} times as fast: {outcome}"
        return ""

    def followers(self, keys: frozenset[str]) -> set[str]:
        """Returns the keys that follow since chosen calls, or other followers, make some of their inputs."""
        found: set[str] = set()
        grows = True
        while grows:
            more = {reader for (maker, reader) in self.trace.flow if maker in keys | found and self.can_follow(reader)}
            grows = not more <= found
            found |= more
        return found

    def can_follow(self, key: str) -> bool:
        """Whether a key's callable takes results that are not computed yet, without a rule."""
        return key in self.candidates and not self.candidates[key].reason and self.trace.calls[key].follows

    def rules(self, keys: frozenset[str]) -> tuple[Rule, ...]:
        """Returns the rules for chosen keys, and for functions that must get results of those as the host's."""
        rules = []
        for key, seen in self.trace.calls.items():
            candidate = self.candidates[key]
            if key in keys:
                evidence = {
                    "calls": seen.calls / self.trace.batches, "original_seconds": candidate.original_seconds,
                    "device_seconds": {str(number): value for number, value in candidate.device_seconds.items()},
                    "bytes_in": seen.bytes_in // max(1, seen.calls), "bytes_out": seen.bytes_out // max(1, seen.calls),
                    "largest_difference": candidate.largest, "samples": candidate.samples,
                }  # fmt: skip
                exact = False if self.settings.allow_inexact else None
                rules.append(Rule(key, self.settings.device, exact=exact, evidence=evidence))
            elif seen.patched and not seen.caller and not seen.follows:
                rules.append(Rule(key, self.settings.device, "cpu"))
        return tuple(rules)

    def modules(self) -> tuple[str, ...]:
        """Returns the modules to import for strategies that are neither hetero's nor an entry point's."""
        found = dict.fromkeys(self.settings.strategies)
        for seen in self.trace.calls.values():
            module = type(seen.strategy).__module__
            if not module.startswith("torch_hetero.") and module != "__main__":
                found[module] = None
        return tuple(found)

    def plan(self) -> Plan:
        """Returns the plan with all that is known."""
        self.evidence["calls"] = [self.row(seen) for seen in self.trace.calls.values()]
        why = self.why or self.why_chosen
        rules = () if self.why else self.rules(self.chosen)
        return Plan(rules, environment(), self.modules() if rules else (), why, self.evidence)

    def row(self, seen: Seen) -> dict[str, Any]:
        """Returns the evidence for a key."""
        candidate = self.candidates.get(seen.key)
        return {
            "key": seen.key, "caller": seen.caller, "calls": seen.calls / self.trace.batches,
            "seconds": seen.seconds / max(1, seen.calls),
            "bytes_in": seen.bytes_in // max(1, seen.calls), "bytes_out": seen.bytes_out // max(1, seen.calls),
            "sizes": [[", ".join(map(spec_text, sizes)), number] for sizes, number in seen.sizes.most_common(4)],
            "candidates": [] if candidate is None else [jsonable(candidate)],
            "state": "device" if seen.key in self.chosen else
                     "follows" if not self.why and seen.key in self.followers(self.chosen) else "cpu",
            "why": self.reasons.get(seen.key, ""),
        }  # fmt: skip


def jsonable(candidate: Candidate) -> dict[str, Any]:
    """Returns a candidate for `json`, which has no infinity."""
    entry = dataclasses.asdict(candidate)
    entry["device_seconds"] = {str(number): seconds for number, seconds in candidate.device_seconds.items()}
    entry["largest"] = min(candidate.largest, 1e308)
    return entry


def spec_text(spec: Spec) -> str:
    """Returns "uint8 [480, 640, 3]"."""
    kind = spec.mode or str(spec.dtype).removeprefix("torch.")
    return f"{kind} {list(spec.shape)}"
