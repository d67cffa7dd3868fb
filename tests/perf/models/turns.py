"""Subjects of a model in turns of a part of a second, for machines that others use.

The processes of all subjects stay alive, and one of them works at a time. A machine that slows down for a minute slows
down all of them, so the ratio of a turn says more than the ratio of two minutes. The figure of a comparison is the
median of these ratios, beside the peer for which it is the largest. A process that waits has no thread that spins for
longer than some milliseconds, and the first call of its turn, which finds cold caches, does not count. A subject that
ends, or does not answer, has no figure; the others go on.
"""

from __future__ import annotations

import json
import select
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping

from tests.perf.measure import ROOT, Row, missing
from tests.perf.models.driver import TIMEOUT, Case, Record, prepare, reference_file, run_case, whose
from tests.perf.models.figures import COMPARISONS, mean_row, unit_of

READY = "ready"
LONGEST_TURN = 120.0  # seconds


def serve(call: Callable[[], object], samples: Callable[[], list[float]]) -> None:
    """In a process of a subject: for each line that comes, the median and the least of some calls in microseconds."""
    print(READY, flush=True)
    for _ in sys.stdin:
        call()
        taken = samples()
        print(json.dumps([statistics.median(taken) * 1e6, min(taken) * 1e6]), flush=True)


class Player:
    """A process of one subject.

    Raises:
        RuntimeError: where it fails, ends, or does not answer; the text says why.
    """

    def __init__(self, case: Case, reference: str, seconds: float) -> None:
        words = [case.kind, case.model, str(case.batch), case.subject, reference, str(seconds), "turns"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.perf.models.child", *words],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
        )  # fmt: skip
        try:
            while self._line(TIMEOUT).strip() != READY.encode():
                pass
        except RuntimeError:
            self.close()
            raise

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()

    def turn(self) -> tuple[float, float]:
        """The median and the least time of a call in one turn, in microseconds."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"\n")
        except BrokenPipeError:
            raise RuntimeError(self._ended()) from None
        while not (line := self._line(LONGEST_TURN)).strip():
            pass
        median, least = json.loads(line)
        return median, least

    def _line(self, seconds: float) -> bytes:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            raise RuntimeError(f"no answer in {seconds:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(self._ended())
        if line.startswith(b'{"reason"'):
            raise RuntimeError(json.loads(line)["reason"])
        return line

    def _ended(self) -> str:
        return f"the process ended with status {self._process.wait()}"


Times = dict[str, list[tuple[float, float]]]  # of each subject: median and least time of each turn
Play = Callable[[Case], Player]


def play(cases: Iterable[Case], turns: int, start: Play) -> tuple[Times, dict[str, str]]:
    """Times of all cases of one model, and why some have none."""
    players: dict[str, Player] = {}
    times: Times = {}
    reasons: dict[str, str] = {}
    try:
        for case in cases:
            try:
                players[case.subject] = start(case)
                times[case.subject] = []
            except RuntimeError as error:
                reasons[case.subject] = str(error)
        for _ in range(turns):
            for subject in list(times):
                try:
                    times[subject].append(players[subject].turn())
                except RuntimeError as error:
                    reasons[subject] = str(error)
                    del times[subject]
                    players.pop(subject).close()
    finally:
        for player in players.values():
            player.close()
    return times, reasons


def measure(record: Record, groups: Mapping[str, list[Case]], kind: str, turns: int, seconds: float) -> list[Row]:
    """Rows of groups of cases, those of one model and batch size."""
    played: dict[tuple[str, int], tuple[Times, dict[str, str]]] = {}
    for cases in groups.values():
        first = cases[0]
        if prepare(record, first, run_case):
            record.save()
            found = play(cases, turns, lambda case: Player(case, str(reference_file(case)), seconds))
        else:
            found = {}, dict.fromkeys((case.subject for case in cases), record.work[whose(first)]["reason"])
        played[first.model, first.batch] = found
        for row in rows(kind, {(first.model, first.batch): found}):
            if row.rounds:
                print(f"{row.what:<56} {row.figure:.3f} of {row.peer_name}", flush=True)
    return rows(kind, played)


def rows(kind: str, played: dict[tuple[str, int], tuple[Times, dict[str, str]]]) -> list[Row]:
    """A row for each comparison of each model, and one for the geometric mean of each comparison."""
    made = []
    for ours, peers, what, bar, mean_bar in COMPARISONS[kind]:
        ratios = []
        for (model, batch), (times, reasons) in played.items():
            name = f"{what}: {model}, batch {batch}"
            if ours in reasons:
                made.append(missing(name, bar, "us", reasons[ours], peer_name=peers[-1]))
            found = [_compared(name, times[ours], peer, times[peer], bar)
                     for peer in peers if peer in times and ours in times]
            if found:
                made.append(max(found, key=lambda row: row.figure or 0.0))
                ratios.append(made[-1].figure or 0.0)
        if ratios:
            made.append(mean_row(what, ratios, mean_bar, peers[0] if len(peers) == 1 else "best peer"))
    return made


def _compared(name: str, ours: list[tuple[float, float]], peer: str, theirs: list[tuple[float, float]],
              bar: float) -> Row:
    ratios = [one / other for (one, _), (other, _) in zip(ours, theirs, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    time, other = (statistics.median(median for median, _ in times) for times in (ours, theirs))
    unit, scale = unit_of(time)
    best = min(least for _, least in ours) / min(least for _, least in theirs)
    return Row(name, time * scale, other * scale, bar, unit, peer, median=statistics.median(ratios), spread=(low, high),
               best=best, rounds=len(ratios))
