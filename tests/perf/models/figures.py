"""From figures of cases to rows with bars, and to the tables that documents show."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tests.perf.measure import Row, missing
from tests.perf.models import work
from tests.perf.models.driver import Case, Record
from tests.perf.models.table import BY_NAME, MODELS, PROBE

PEERS = ("onnxruntime", "openvino", "inductor", "freezing")
# Ours, its peers (the best of them counts), what the row says, the bar of each and that of the geometric mean.
COMPARISONS = {
    "inference": (
        ("saved", PEERS, "saved program", 1.0, 0.9),
        ("saved-bf16", ("openvino-bf16",), "saved program, bfloat16", 1.0, 0.92),
        ("compile", ("freezing",), "torch.compile", 1.0, 0.9),
        ("lazy", ("eager",), "lazily", 1.0, 0.8),
    ),
    "training": (
        ("lazy", ("eager",), "training step, lazily", 1.0, 0.8),
        ("compile", ("eager",), "training step, torch.compile", 1.0, 0.8),
        ("lazy", ("inductor",), "training step, lazily", 1.0, 0.95),
        ("compile", ("inductor",), "training step, torch.compile", 1.0, 0.95),
    ),
}
FLOOR_BAR = 1.15


def time_of(record: Record, kind: str, model: str, batch: int, subject: str) -> float | None:
    """Microseconds of a case, or None."""
    answer = record.best(Case(kind, model, batch, subject))
    return answer.get(record.by) if answer else None


def best_peer(record: Record, kind: str, model: str, batch: int, peers: Sequence[str]) -> tuple[str, float] | None:
    """The fastest of some peers and its microseconds, or None."""
    times = {peer: time_of(record, kind, model, batch, peer) for peer in peers}
    found = [(time, peer) for peer, time in times.items() if time is not None]
    return (min(found)[1], min(found)[0]) if found else None


def why_not(record: Record, case: Case) -> str:
    """Why a case has no figure."""
    answer = record.best(case)
    return str(answer["reason"]) if answer else f"{case.subject} did not run"


def mean(ratios: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def rates(record: Record) -> dict[str, float] | None:
    """The best rates that any subject reaches: operations a second of products and convolutions, bytes of passes.

    None where a probe did not run. The fastest call counts, not the median: a rate is what the processor can do.
    """
    found = {}
    for probe in (model.name for model in MODELS if model.family == PROBE):
        fastest = [
            answer["best_us"]
            for key, rounds in record.cases.items() if key.startswith(f"inference/{probe}/1/")
            for answer in rounds if "best_us" in answer
        ]  # fmt: skip
        if not fastest:
            return None
        known = record.work[f"inference/{probe}/1"]
        size = work.operations(known) if probe in ("product", "convolution") else known["passed"]
        found[probe] = size / (min(fastest) / 1e6)
    return found


def floor(record: Record, kind: str, model: str, batch: int) -> float | None:
    """Microseconds that the model takes at least, or None."""
    known = record.work.get(f"{kind}/{model}/{batch}")
    speeds = rates(record)
    return work.floor_us(known, speeds) if known and "reason" not in known and speeds else None


def batches(record: Record, kind: str) -> list[tuple[str, int]]:
    """The models that ran, in the order of the table, with their batch sizes."""
    ran = {tuple(key.split("/")[1:3]) for key in record.cases if key.startswith(f"{kind}/")}
    order = {model.name: place for place, model in enumerate(MODELS)}
    chosen = [(name, int(batch)) for name, batch in ran if name in order and BY_NAME[name].family != PROBE]
    return sorted(chosen, key=lambda pair: (order[pair[0]], pair[1]))


def unit_of(time: float) -> tuple[str, float]:
    """The unit that suits some microseconds, and what to multiply with."""
    return ("ms", 1e-3) if time >= 1000 else ("us", 1.0)


def rows(record: Record, kind: str, chosen: Sequence[tuple[str, int]]) -> list[Row]:
    """A row for each comparison of each of these models, and one for the geometric mean of each comparison."""
    made = []
    for ours, peers, what, bar, mean_bar in COMPARISONS[kind]:
        ratios = []
        for model, batch in chosen:
            name = f"{what}: {model}, batch {batch}"
            time, peer = time_of(record, kind, model, batch, ours), best_peer(record, kind, model, batch, peers)
            if time is None and peer is None and record.best(Case(kind, model, batch, ours)) is None:
                continue
            if time is None or peer is None:
                why = why_not(record, Case(kind, model, batch, ours if time is None else peers[-1]))
                made.append(missing(name, bar, "us", why, peer_name=peers[-1]))
                continue
            unit, scale = unit_of(time)
            ratios.append(time / peer[1])
            made.append(Row(name, time * scale, peer[1] * scale, bar, unit, peer_name=peer[0]))
        if ratios:
            made.append(mean_row(what, ratios, mean_bar, "/".join(peers) if len(peers) == 1 else "best peer"))
    floors = [
        time / least
        for model, batch in chosen
        if (time := time_of(record, kind, model, batch, "saved")) and (least := floor(record, kind, model, batch))
    ]
    if floors and kind == "inference":
        made.append(mean_row("saved program", floors, FLOOR_BAR, "floor"))
    return made


def mean_row(what: str, ratios: Sequence[float], bar: float, peer: str) -> Row:
    """The row of a geometric mean, which says how many are above 1."""
    above = sum(ratio > 1.0 for ratio in ratios)
    note = f"{above} of {len(ratios)} above 1, largest {max(ratios):.2f}"
    return Row(f"{what}: geometric mean", mean(ratios), 1.0, bar, "", peer_name=peer, note=note)


def time_text(time: float | None) -> str:
    """Some microseconds for a table."""
    if time is None:
        return "–"
    return f"{time / 1000:.3g} ms" if time >= 1000 else f"{time:.3g} µs"


def ratio_text(ours: float | None, peer: float | None) -> str:
    """A ratio for a table."""
    return f"{ours / peer:.2f}" if ours and peer else "–"


def markdown(record: Record, kind: str, chosen: Sequence[tuple[str, int]]) -> str:
    """Ratios of all subjects in markdown: a line a model."""
    if kind == "training":
        return _training_markdown(record, chosen)
    head = ("model", "batch", "eager", "lazily / eager", "compile / freezing")
    head += ("saved", "best peer", "saved / best peer", "saved / floor")
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for model, batch in chosen:

        def time(subject: str, model: str = model, batch: int = batch) -> float | None:
            return time_of(record, kind, model, batch, subject)

        peer = best_peer(record, kind, model, batch, PEERS)
        cells = [
            model, str(batch), time_text(time("eager")), ratio_text(time("lazy"), time("eager")),
            ratio_text(time("compile"), time("freezing")), time_text(time("saved")),
            f"{peer[0]} {time_text(peer[1])}" if peer else "–",
            ratio_text(time("saved"), peer[1] if peer else None),
            ratio_text(time("saved"), floor(record, kind, model, batch)),
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _training_markdown(record: Record, chosen: Sequence[tuple[str, int]]) -> str:
    head = ("model", "batch", "eager", "lazily / eager", "compile / eager", "lazily / inductor", "compile / inductor")
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for model, batch in chosen:
        eager, lazy, fast, inductor = (
            time_of(record, "training", model, batch, subject) for subject in ("eager", "lazy", "compile", "inductor")
        )
        pairs = ((lazy, eager), (fast, eager), (lazy, inductor), (fast, inductor))
        cells = [model, str(batch), time_text(eager), *(ratio_text(*pair) for pair in pairs)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
