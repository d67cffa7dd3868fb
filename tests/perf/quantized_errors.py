"""What 8 and 4 bits cost in accuracy, against float32: cosines of embeddings, and perplexity.

Embeddings are MiniLM's of passages of the demo's corpus, the docstrings of the standard library. Perplexity is that of
a small decoder over bytes, which is trained here for a minute or two on some of these texts and measured on others: no
checkpoint of a language model is at hand. Nothing is timed.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional

from tests.perf.measure import DEVICE, Row, main, missing

# Bits, group, symmetric, bits of inputs: bars of 1 - cosine, and of the perplexity against float32's.
CASES = {
    (8, 128, True, 16): (0.002, 1.002),
    (8, 128, True, 8): (0.005, 1.005),
    (8, 0, True, 8): (0.005, 1.01),
    (4, 32, True, 16): (0.06, 1.1),
    (4, 32, False, 16): (0.04, 1.1),
    (4, 128, False, 16): (0.06, 1.1),
}
PASSAGES = 512
WIDTH, LAYERS, WINDOW, STEPS, BATCH = 256, 4, 128, 500, 16


def measure() -> list[Row]:
    """A row for each case and figure."""
    if DEVICE == "cpu":
        return [missing("errors of 8 and 4 bits", 1.0, "", "needs the device")]
    from torch_hetero import demo

    texts = [passage.text for passage in demo.standard_library()]
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(texts), generator=generator).tolist()
    texts = [texts[i] for i in order]
    return embedding_rows(texts[:PASSAGES]) + perplexity_rows(texts)


def name_of(bits: int, group: int, symmetric: bool, activation_bits: int) -> str:
    """A case in words."""
    kind = "symmetric" if symmetric else "asymmetric"
    return f"int{bits}, {f'groups of {group}' if group else 'whole rows'}, {kind}, inputs in {activation_bits} bits"


def quantized(model: nn.Module, case: tuple[int, int, bool, int]) -> nn.Module:
    """A copy in fewer bits."""
    bits, group, symmetric, activation_bits = case
    return torch.hetero.quantize(copy.deepcopy(model), bits=bits, group=group, symmetric=symmetric,
                                 activation_bits=activation_bits)


# ---- embeddings


def embedding_rows(texts: list[str]) -> list[Row]:
    """How far embeddings turn."""
    import models

    model, tokenize = models.minilm()
    batches = [{name: tensor[:, :128] for name, tensor in tokenize(texts[i : i + 32]).items()}
               for i in range(0, len(texts), 32)]
    expected = embeddings(model, batches)
    rows = []
    for case, (bar, _) in CASES.items():
        cosines = (embeddings(quantized(model, case), batches) * expected).sum(-1)
        rows.append(Row(f"MiniLM, {len(texts)} passages, {name_of(*case)}: 1 - mean cosine", 1 - float(cosines.mean()),
                        None, bar, "", "", "absolute", note=f"least cosine {float(cosines.min()):.4f}"))
    return rows


def embeddings(model: nn.Module, batches: list[dict[str, torch.Tensor]]) -> torch.Tensor:
    """Unit vectors, one for each passage."""
    made = []
    with torch.inference_mode():
        for batch in batches:
            states = model(**batch).last_hidden_state
            weights = batch["attention_mask"].unsqueeze(-1)
            made.append(functional.normalize((states * weights).sum(1) / weights.sum(1), dim=-1))
    return torch.cat(made)


# ---- perplexity


class Block(nn.Module):
    """A layer of the decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(self.first(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.second(x))))


class Decoder(nn.Module):
    """A decoder over bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Embedding(WINDOW, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)
        for table in (self.bytes, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.bytes(tokens) + self.places.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def windows(texts: list[str]) -> torch.Tensor:
    """The texts' bytes in windows, each with the byte behind it."""
    content = torch.frombuffer(bytearray("\n\n".join(texts).encode()), dtype=torch.uint8).long()
    return content[: len(content) // (WINDOW + 1) * (WINDOW + 1)].view(-1, WINDOW + 1)


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Nats for each byte."""
    return functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def batches_of(data: torch.Tensor) -> Iterator[torch.Tensor]:
    """Endless batches."""
    generator = torch.Generator().manual_seed(1)
    while True:
        yield data[torch.randint(len(data), (BATCH,), generator=generator)]


def trained(data: torch.Tensor) -> nn.Module:
    """The decoder after STEPS steps."""
    torch.manual_seed(2)
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=STEPS)
    for _, batch in zip(range(STEPS), batches_of(data), strict=False):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def perplexity_rows(texts: list[str]) -> list[Row]:
    """How the perplexity of other texts than those of the training grows."""
    data = windows(texts)
    held_out = data[-256:]
    model = trained(data[:-256])

    def perplexity(subject: nn.Module) -> float:
        with torch.inference_mode():
            return math.exp(sum(float(loss_of(subject, part)) for part in held_out.chunk(8)) / 8)

    exact = perplexity(model)
    rows = []
    for case, (_, bar) in CASES.items():
        ours = perplexity(quantized(model, case))
        rows.append(Row(f"a decoder over bytes, perplexity, {name_of(*case)}", ours, exact, bar, "", "float32",
                        note=f"{ours / exact:.4f}"))
    return rows


if __name__ == "__main__":
    main(measure)
