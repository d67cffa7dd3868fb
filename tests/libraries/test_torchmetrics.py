"""torchmetrics: metrics whose state is on hetero have the CPU's values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchmetrics
from tiny import recording

CLASSES = 4


def probabilities() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(32, CLASSES).softmax(-1), torch.randint(CLASSES, (32,))


def values() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(32), torch.randn(32)


def pictures() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(2, 3, 32, 32), torch.rand(2, 3, 32, 32)


METRICS: dict[str, tuple[Callable[[], torchmetrics.Metric], Callable[[], Any]]] = {
    "accuracy": (lambda: torchmetrics.Accuracy("multiclass", num_classes=CLASSES), probabilities),
    "f1": (lambda: torchmetrics.F1Score("multiclass", num_classes=CLASSES, average="macro"), probabilities),
    "auroc": (lambda: torchmetrics.AUROC("multiclass", num_classes=CLASSES), probabilities),
    "auroc, binned": (lambda: torchmetrics.AUROC("multiclass", num_classes=CLASSES, thresholds=20), probabilities),
    "confusion": (lambda: torchmetrics.ConfusionMatrix("multiclass", num_classes=CLASSES), probabilities),
    "calibration": (lambda: torchmetrics.CalibrationError("multiclass", num_classes=CLASSES), probabilities),
    "mean squared error": (torchmetrics.MeanSquaredError, values),
    "pearson": (torchmetrics.PearsonCorrCoef, values),
    "spearman": (torchmetrics.SpearmanCorrCoef, values),
    "r2": (torchmetrics.R2Score, values),
    "mean": (torchmetrics.MeanMetric, lambda: (torch.randn(8), torch.rand(8))),
    "psnr": (lambda: torchmetrics.image.PeakSignalNoiseRatio(data_range=1.0), pictures),
    "ssim": (lambda: torchmetrics.image.StructuralSimilarityIndexMeasure(data_range=1.0), pictures),
}


@pytest.mark.parametrize("name", METRICS)
def test_metrics_equal_the_cpu(name: str) -> None:
    make, draw = METRICS[name]
    metric, reference = make().to("hetero"), make()
    assert metric.device.type == "hetero"
    with recording(3, values=("bincount", "_unique2", "index.Tensor", "nonzero")):
        for _ in range(3):
            inputs = draw()
            torch.testing.assert_close(metric(*(part.to("hetero") for part in inputs)).cpu(), reference(*inputs))
        result = metric.compute()
    assert result.device.type == "hetero"
    torch.testing.assert_close(result.cpu(), reference.compute(), rtol=1e-4, atol=1e-5)
    metric.reset()


def test_collections_and_perplexity_follow_their_inputs() -> None:
    made = torchmetrics.MetricCollection({"accuracy": METRICS["accuracy"][0](), "f1": METRICS["f1"][0]()}).to("hetero")
    inputs = probabilities()
    result = made(*(part.to("hetero") for part in inputs))
    assert {value.device.type for value in result.values()} == {"hetero"}
    text = torchmetrics.text.Perplexity().to("hetero")
    logits, target = torch.randn(2, 8, 10), torch.randint(10, (2, 8))
    torch.testing.assert_close(
        text(logits.to("hetero"), target.to("hetero")).cpu(), torchmetrics.text.Perplexity()(logits, target)
    )
