"""all-MiniLM-L6-v2 with its real weights, uncompiled code of transformers: one short text, and two batches."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tests.perf import peers
from tests.perf.measure import DEVICE, Row, alternate, flush, main, missing, timed_row, with_peers
from tests.perf.memory import arena_row, peak_row
from tests.perf.products import products_note

CASES = {(1, 8): 0.6, (8, 32): 0.55, (32, 128): 0.6}  # batch and tokens: bar against eager
INDUCTOR_BAR = 1.0


def forward(model: Callable[..., object], tokens: torch.Tensor, mask: torch.Tensor) -> Callable[[], torch.Tensor]:
    """A call of the model; its result is read back to the CPU."""
    return lambda: model(input_ids=tokens, attention_mask=mask).last_hidden_state.cpu()


def measure() -> list[Row]:
    """For each case its time against eager and inductor, its peak memory and its memory plan."""
    import models

    here, _ = models.minilm()
    there, _ = models.minilm()
    there.to(DEVICE)
    rows = []
    for (batch, length), bar in CASES.items():
        what = f"MiniLM, batch {batch} x {length} tokens"
        tokens = torch.randint(1000, 20000, (batch, length))
        mask = torch.ones_like(tokens)
        subjects = {
            "hetero": forward(there, tokens.to(DEVICE), mask.to(DEVICE)),
            "eager": forward(here, tokens, mask),
        }
        with torch.inference_mode():
            compiling = 0.0
            if with_peers():
                subjects["inductor"] = forward(peers.inductor(here), tokens, mask)
                compiling = peers.first_call(subjects["inductor"])
            times = alternate(subjects, seconds=6.0)
            products = products_note(subjects["eager"])
        rows.append(timed_row(what, times, bar, "ms", note=products))
        if "inductor" in times:
            note = f"inductor compiled in {compiling:.1f} s"
            rows.append(timed_row(what, times, INDUCTOR_BAR, "ms", peer="inductor", note=note))
        else:
            rows.append(missing(what, INDUCTOR_BAR, "ms", "needs --peers", peer_name="inductor"))
        with torch.no_grad():
            rows.append(peak_row(what, subjects["hetero"], subjects["eager"]))
            rows.append(arena_row(what, subjects["hetero"]))
        flush()
    return rows


if __name__ == "__main__":
    main(measure)
