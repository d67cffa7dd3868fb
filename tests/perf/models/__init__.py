"""Families of models: lazily, by torch.compile and as saved programs, against eager, inductor with and without
freezing, ONNX Runtime and OpenVINO. `python -m tests.perf models --help` lists what can be chosen.

OpenVINO and ONNX Runtime are peers where they can be imported. All models at both batch sizes take some hours, most of
them inductor's compiling; the run can be interrupted, and goes on where it ended.
"""

from __future__ import annotations

import argparse
import os
import shlex

from tests.perf.measure import Row

OPTIONS = "HETERO_BENCH_MODELS"  # this benchmark's own words of the command line
QUICK = ("resnet18", "mobilenet_v2", "deit_small", "lstm", "mlp2")


def parser() -> argparse.ArgumentParser:
    """What can be chosen."""
    from tests.perf.models.subjects import SUBJECTS, TRAINING
    from tests.perf.models.table import MODELS

    names = ", ".join(dict.fromkeys(subject.name for subject in (*SUBJECTS, *TRAINING)))
    families = ", ".join(dict.fromkeys(model.family for model in MODELS))
    made = argparse.ArgumentParser(prog="python -m tests.perf models", description=__doc__)
    made.add_argument("--models", metavar="NAME,...", help=f"of: {', '.join(model.name for model in MODELS)}")
    made.add_argument("--families", metavar="NAME,...", help=f"of: {families}")
    made.add_argument("--subjects", metavar="NAME,...", help=f"of: {names}")
    made.add_argument("--batch", choices=("1", "larger", "both"), default="both", help="default both")
    made.add_argument("--training", action="store_true", help="whole training steps instead of inference")
    made.add_argument("--rounds", type=int, default=2, help="processes of each case; the better counts; default 2")
    made.add_argument("--seconds", type=float, help="of timed calls in each process, or turn; default 2, or 0.25")
    made.add_argument(
        "--turns",
        type=int,
        metavar="N",
        help="let the subjects of a model take turns, in processes that stay alive; figures are medians of N ratios, and "
        "none are kept: for machines that others use",
    )
    made.add_argument("--quick", action="store_true", help=f"one short round of {', '.join(QUICK)} without inductor")
    made.add_argument("--fresh", action="store_true", help="forget all earlier figures")
    made.add_argument("--again", metavar="SUBJECT,...", help="forget the figures of these subjects")
    made.add_argument("--retry", action="store_true", help="run cases that failed again")
    made.add_argument(
        "--by",
        choices=("median", "best"),
        default="median",
        help="figure of a process: the median, or on a busy machine the fastest call; default median",
    )
    made.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: seconds that a core worked, for OMP_NUM_THREADS=1 on a busy machine; default wall",
    )
    made.add_argument("--show", action="store_true", help="run nothing, show what is there")
    made.add_argument("--markdown", action="store_true", help="also print the table for documents")
    return made


def _chosen(text: str | None, known: list[str], what: str) -> list[str]:
    """The names of a list, or all."""
    names = text.split(",") if text else known
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise SystemExit(f"no {what} {', '.join(unknown)}; there are: {', '.join(known)}")
    return names


def measure() -> list[Row]:
    """Runs what the options say; rows of the models that they name."""
    from tests.perf.models import figures, turns
    from tests.perf.models.driver import CLOCK, Case, Record, json_file, run_cases
    from tests.perf.models.subjects import SUBJECTS, TRAINING
    from tests.perf.models.table import BY_NAME, MODELS, PROBE

    options = parser().parse_args(shlex.split(os.environ.get(OPTIONS, "")))
    kind = "training" if options.training else "inference"
    families = _chosen(options.families, list(dict.fromkeys(model.family for model in MODELS)), "family")
    names = _chosen(options.models, [model.name for model in MODELS], "model")
    if options.quick and not options.models:
        names = list(QUICK)
    subjects = [subject.name for subject in (TRAINING if options.training else SUBJECTS)]
    subjects = [name for name in _chosen(options.subjects, subjects, "subject")
                if options.subjects or not options.quick or name not in ("inductor", "freezing")]  # fmt: skip
    os.environ[CLOCK] = options.clock
    record = Record(json_file(), fresh=options.fresh, by=f"{options.by}_us")
    if options.retry:
        record.retry()
    if options.again:
        record.forget(options.again.split(","))

    groups: dict[str, list[Case]] = {}
    pairs = []
    for name in names:
        model = BY_NAME[name]
        if model.family not in families or (model.family == PROBE and options.training):
            continue
        sizes = {"1": (1,), "larger": (model.larger,), "both": (1, model.larger)}[options.batch]
        for batch in dict.fromkeys((1,) if model.family == PROBE else sizes):
            groups[f"{name}/{batch}"] = [Case(kind, name, batch, subject) for subject in subjects]
            if model.family != PROBE:
                pairs.append((name, batch))
    if options.turns:
        models = {key: cases for key, cases in groups.items() if BY_NAME[cases[0].model].family != PROBE}
        return turns.measure(record, models, kind, options.turns, options.seconds or 0.25)
    if not options.show:
        rounds, seconds = (1, 0.5) if options.quick else (options.rounds, options.seconds or 2.0)
        run_cases(record, groups, rounds, seconds)
    if options.markdown:
        print(figures.markdown(record, kind, pairs))
    return figures.rows(record, kind, pairs)
