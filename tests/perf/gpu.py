"""What needs a GPU: models and chains of operators on hetero, against eager CUDA.

`make test-gpu` runs it. Without a GPU, each row says so. On the stand-in for CUDA (tests/cuda_standin) kernels
compute nothing, so its figures are of the host alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from torch import nn

from tests.perf import peers
from tests.perf.chain import chain
from tests.perf.measure import DEVICE, Row, alternate, main, missing, timed_row, with_peers

# A launch that is recorded, planned and replayed should be hidden behind the GPU's work.
BAR = 1.0
SECONDS = 4.0
PEER = "eager on cuda"

Subject = Callable[[], torch.Tensor]


def synchronized(run: Subject, device: str) -> Subject:
    """The call, and then the GPU's end of it."""
    wait = torch.cuda.synchronize if device == "cuda" else torch.hetero.synchronize

    def timed() -> torch.Tensor:
        result = run()
        wait()
        return result

    return timed


def pointwise(device: str, floats: int) -> Subject:
    """Eight operators on two tensors."""
    x, y = (torch.randn(floats).to(device) for _ in range(2))
    return lambda: chain(x, y)


def encoder(device: str, dtype: torch.dtype, batch: int, tokens: int) -> Subject:
    """Six layers of a transformer encoder of MiniLM's width, without gradients."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(384, 12, 1536, dropout=0.0, activation="gelu", batch_first=True)
    model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).eval().to(dtype).to(device)
    x = torch.randn(batch, tokens, 384).to(dtype).to(device)

    def run() -> torch.Tensor:
        with torch.no_grad():
            return model(x)

    return run


def training(device: str, batch: int) -> Subject:
    """One step of Adam on a perceptron of four layers."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(),
        nn.Linear(1024, 10),
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, target = torch.randn(batch, 784).to(device), torch.randint(10, (batch,)).to(device)

    def run() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        return loss

    return run


def decoder_step(device: str) -> Subject:
    """A row of products by large weights in bfloat16: what a token of a decoder costs beside its attention."""
    torch.manual_seed(0)
    weights = [torch.randn(4096, 4096).to(torch.bfloat16).to(device) for _ in range(16)]
    x = torch.randn(1, 4096).to(torch.bfloat16).to(device)

    def run() -> torch.Tensor:
        y = x
        for weight in weights:
            y = nn.functional.silu(y @ weight) * 0.01
        return y

    return run


CASES: dict[str, Callable[[str], Subject]] = {
    "chain of 8 pointwise, 4,096 floats": lambda device: pointwise(device, 4096),
    "chain of 8 pointwise, 16,777,216 floats": lambda device: pointwise(device, 2**24),
    "encoder of 6 layers, float32, 1 x 16 tokens": lambda device: encoder(device, torch.float32, 1, 16),
    "encoder of 6 layers, bfloat16, 32 x 128 tokens": lambda device: encoder(device, torch.bfloat16, 32, 128),
    "perceptron, a training step, batch 256": lambda device: training(device, 256),
    "16 products of a row by 4096 x 4096, bfloat16": decoder_step,
}


def measure() -> list[Row]:
    """For each case a row against eager CUDA; with --peers also inductor on CUDA."""
    if not torch.cuda.is_available():
        return [missing(what, BAR, "us", "there is no GPU", peer_name=PEER) for what in CASES]
    torch.hetero.config.accelerator = "cuda"
    if "standin" in os.environ.get("LD_PRELOAD", ""):
        torch.backends.cuda.enable_cudnn_sdp(False)  # the stand-in has no cuDNN
    rows = []
    for what, make in CASES.items():
        subjects = {"hetero": synchronized(make(DEVICE), "hetero"), PEER: synchronized(make("cuda"), "cuda")}
        if with_peers():
            subjects["inductor"] = synchronized(peers.inductor(make("cuda")), "cuda")
        torch.hetero.reset_counters()
        times = alternate(subjects, seconds=SECONDS)
        rescues = len(torch.hetero.explain().rescues)
        note = f"{torch.cuda.get_device_name()}; {rescues} kinds of calls fell back to the CPU" if rescues else ""
        rows += [timed_row(what, times, BAR, "us", peer=peer, note=note) for peer in times if peer != "hetero"]
        del subjects
    return rows


if __name__ == "__main__":
    main(measure)
