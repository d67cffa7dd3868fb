"""torch.compile(backend="hetero") on MiniLM: the first call; steady calls against eager, the lazy device, inductor."""

from __future__ import annotations

import time

import torch

from tests.perf import peers
from tests.perf.measure import DEVICE, Row, alternate, main, missing, timed_row, with_peers
from tests.perf.minilm import forward

CASES = {(1, 8): 0.35, (8, 32): 0.42, (32, 128): 0.48}  # batch and tokens: bar against eager
FIRST_CALL_BAR = 3.0  # seconds
LAZY_BAR = 1.0
INDUCTOR_BAR = 1.0


def measure() -> list[Row]:
    """For each case what the first call takes, and the program's time against its peers'."""
    import models

    if DEVICE == "cpu":
        return [missing("MiniLM, compiled", 1.0, "ms", "needs the device")]
    here, _ = models.minilm()
    there, _ = models.minilm()
    there.to(DEVICE)
    torch._dynamo.reset()  # imports the compiler, which is no part of compiling
    fast = torch.compile(there, backend="hetero", dynamic=False)
    rows = []
    for (batch, length), bar in CASES.items():
        what = f"MiniLM compiled, batch {batch} x {length} tokens"
        tokens = torch.randint(1000, 20000, (batch, length))
        mask = torch.ones_like(tokens)
        subjects = {
            "hetero": forward(fast, tokens.to(DEVICE), mask.to(DEVICE)),
            "lazy": forward(there, tokens.to(DEVICE), mask.to(DEVICE)),
            "eager": forward(here, tokens, mask),
        }
        with torch.no_grad():
            compiling = 0.0
            if with_peers():
                subjects["inductor"] = forward(peers.inductor(here), tokens, mask)
                compiling = peers.first_call(subjects["inductor"])
            start = time.perf_counter()
            subjects["hetero"]()
            first = time.perf_counter() - start
            times = alternate(subjects, seconds=8.0)
        rows.append(Row(f"{what}: first call", first, None, FIRST_CALL_BAR, "s", "", "absolute"))
        rows.append(timed_row(what, times, bar, "ms"))
        rows.append(timed_row(what, times, LAZY_BAR, "ms", peer="lazy"))
        if "inductor" in times:
            note = f"inductor compiled in {compiling:.1f} s"
            rows.append(timed_row(what, times, INDUCTOR_BAR, "ms", peer="inductor", note=note))
        else:
            rows.append(missing(what, INDUCTOR_BAR, "ms", "needs --peers", peer_name="inductor"))
    return rows


if __name__ == "__main__":
    main(measure)
