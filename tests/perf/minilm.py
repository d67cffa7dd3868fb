"""all-MiniLM-L6-v2 with its real weights: one short text, and a batch of eight."""

from __future__ import annotations

import torch

from tests.perf.measure import DEVICE, Row, alternate, main, timed_row

CASES = ((1, 8), (8, 32))
BAR = 1.1


def measure() -> list[Row]:
    """One row for each batch and length; the result is read back to CPU."""
    import models

    here, _ = models.minilm()
    there, _ = models.minilm()
    there.to(DEVICE)
    rows = []
    for batch, length in CASES:
        tokens = torch.randint(1000, 20000, (batch, length))
        inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        moved = {name: value.to(DEVICE) for name, value in inputs.items()}
        with torch.inference_mode():
            seconds = alternate(
                lambda given=moved: there(**given).last_hidden_state.cpu(),
                lambda given=inputs: here(**given).last_hidden_state.cpu(),
                rounds=25,
            )
        rows.append(timed_row(f"MiniLM, batch {batch} x {length} tokens", seconds, BAR, "ms"))
    return rows


if __name__ == "__main__":
    main(measure)
