"""Runs cases in turns, each in a process of its own, and keeps their figures in a JSON file.

A case is a kind of run, a model, a batch size and a subject. Thread pools that spin disturb each other by a factor of
ten, so subjects do not share a process. In each round every subject of a model runs once, one after the other. A run
that was interrupted goes on where it ended: a case that has its rounds is not run again.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.perf.measure import ROOT
from tests.perf.report import circumstances

FOLDER = ROOT / "build" / "models"
TIMEOUT = 900.0  # seconds of a case
REFERENCE = "reference"
FORMAT = 2  # of the file
SAME = ("processor", "cores", "threads", "torch")  # circumstances under which figures are continued


@dataclasses.dataclass(frozen=True)
class Case:
    """What one process measures."""

    kind: str
    model: str
    batch: int
    subject: str

    @property
    def key(self) -> str:
        """Its name in the file."""
        return f"{self.kind}/{self.model}/{self.batch}/{self.subject}"


Answer = dict[str, Any]
CLOCK = "HETERO_BENCH_CLOCK"  # "wall", or "cpu" for the seconds that cores worked for the process


def json_file() -> Path:
    """The file of figures for this clock and number of threads."""
    facts = circumstances()
    return ROOT / "build" / f"models-{facts['threads']}-{os.environ.get(CLOCK, 'wall')}.json"


Runner = Callable[[Case, float], Answer]


def reference_file(case: Case) -> Path:
    """Where the results are that the case's ones are compared with."""
    return FOLDER / f"{case.kind}-{case.model}-{case.batch}.pt"


def run_case(case: Case, seconds: float) -> Answer:
    """Runs a case in a process; what fails is an answer with a reason."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tests.perf.models.child", case.kind, case.model, str(case.batch), case.subject]
    variables = {
        **os.environ,
        # The second round need not compile again; the first call of the first round is the one that is shown.
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "0",
        "TORCHINDUCTOR_CACHE_DIR": str(FOLDER / "inductor"),
    }
    log = FOLDER / "log" / f"{case.key.replace('/', '-')}.txt"
    log.parent.mkdir(exist_ok=True)
    try:
        with log.open("w") as errors:
            done = subprocess.run(
                [*command, str(reference_file(case)), str(seconds)],
                cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=errors, text=True, timeout=TIMEOUT, check=False,
            )  # fmt: skip
        return json.loads(done.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"reason": f"took longer than {TIMEOUT:.0f} s"}
    except (IndexError, ValueError):
        return {"reason": f"the process ended with status {done.returncode} and no figures"}


class Record:
    """The file of figures.

    Attributes:
        cases: rounds of each case, by its key.
        work: what a model has to compute, by "kind/model/batch".
        facts: the circumstances of the last run.
        by: the figure of a round that counts, "median_us" or "best_us".
    """

    def __init__(self, path: Path, fresh: bool = False, by: str = "median_us") -> None:
        self.path = path
        self.by = by
        self.facts = circumstances()
        self.cases: dict[str, list[Answer]] = {}
        self.work: dict[str, Answer] = {}
        try:
            stored = json.loads(path.read_text())
            same = all(stored["facts"][name] == self.facts[name] for name in SAME)
            if same and stored["format"] == FORMAT and not fresh:
                self.cases, self.work = stored["cases"], stored["work"]
        except (OSError, ValueError, KeyError, TypeError):
            return

    def save(self) -> None:
        """Writes the file, whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self._stored(), indent=1) + "\n")
        part.replace(self.path)

    def _stored(self) -> Answer:
        return {"format": FORMAT, "facts": self.facts, "cases": self.cases, "work": self.work}

    def forget(self, subjects: Iterable[str]) -> None:
        """Drops the figures of these subjects."""
        names = set(subjects)
        self.cases = {key: rounds for key, rounds in self.cases.items() if key.rsplit("/", 1)[1] not in names}

    def retry(self) -> None:
        """Drops the cases that failed."""
        self.cases = {key: rounds for key, rounds in self.cases.items() if not any("reason" in one for one in rounds)}
        self.work = {key: known for key, known in self.work.items() if "reason" not in known}

    def best(self, case: Case) -> Answer | None:
        """The round with the lower figure; else one with a reason; None where the case did not run."""
        rounds = self.cases.get(case.key, [])
        timed = [answer for answer in rounds if "median_us" in answer]
        if timed:
            return {**min(timed, key=lambda answer: answer[self.by]), "first_call_s": timed[0]["first_call_s"]}
        return rounds[0] if rounds else None


def run_cases(
    record: Record,
    cases: Mapping[str, list[Case]],
    rounds: int,
    seconds: float,
    *,
    runner: Runner = run_case,
    say: Callable[[str], None] = lambda line: print(line, flush=True),
) -> None:
    """Runs groups of cases, those of one model and batch size, until each case has so many rounds."""
    for number in range(1, rounds + 1):
        for group in cases.values():
            for case in group:
                done = record.cases.setdefault(case.key, [])
                waiting = len(done) < number and not any("reason" in answer for answer in done)
                if not waiting and whose(case) in record.work:
                    continue
                prepared = prepare(record, case, runner)
                if not waiting:
                    record.save()
                    continue
                if not prepared:
                    done.append({"reason": record.work[whose(case)]["reason"]})
                    record.save()
                    continue
                answer = runner(case, seconds)
                done.append({**answer, "commit": record.facts["commit"], "load": round(os.getloadavg()[0], 2)})
                record.save()
                figure = answer.get("reason") or f"{answer['median_us']:,.1f} us, first {answer['first_call_s']:.2f} s"
                say(f"{number}  {case.key:<44} {figure}")


def whose(case: Case) -> str:
    """The key of the case's work."""
    return f"{case.kind}/{case.model}/{case.batch}"


def prepare(record: Record, case: Case, runner: Runner) -> bool:
    """Makes the results in float64 that cases are compared with, where they are not there; False where that failed."""
    key = whose(case)
    known = record.work.get(key)
    if known is None or ("reason" not in known and runner is run_case and not reference_file(case).exists()):
        record.work[key] = runner(dataclasses.replace(case, subject=REFERENCE), 0.0)
    return "reason" not in record.work[key]
