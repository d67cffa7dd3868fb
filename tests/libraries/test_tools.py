"""Tools around models, on hetero: einops, torchmetrics, captum, opacus, ONNX, PyTorch's counter of operations."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import captum.attr as attr
import einops
import numpy as np
import onnx
import onnx.reference
import opacus
import pytest
import torch
import torchmetrics
from einops.layers.torch import Rearrange, Reduce
from on_device import assert_same, devices_of, recording
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.flop_counter import FlopCounterMode


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4 * 16, 10)
    )


def images(device: str = "cpu", count: int = 4) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(count, 3, 8, 8).to(device)


def test_einops_is_the_cpus() -> None:
    calls: list[Callable[[Tensor], Tensor]] = [
        lambda x: einops.rearrange(x, "b c (h i) w -> (b i) h w c", i=2),
        lambda x: einops.reduce(x, "b c h w -> b c", "mean"),
        lambda x: einops.repeat(x, "b c h w -> b r c h w", r=2),
        lambda x: einops.einsum(x, x, "b c h w, b d h w -> b c d"),
        lambda x: einops.pack([x, x[..., 0]], "b c *")[0],
        nn.Sequential(Rearrange("b c h w -> b (h w) c"), Reduce("b n c -> b c", "max")),
    ]
    for call in calls:
        assert_same(call(images("hetero")), call(images()))


METRICS: dict[str, Callable[[], Any]] = {
    "accuracy": lambda: torchmetrics.Accuracy("multiclass", num_classes=5),
    "f1": lambda: torchmetrics.F1Score("multiclass", num_classes=5, average="macro"),
    "confusion": lambda: torchmetrics.ConfusionMatrix("multiclass", num_classes=5),
    "auroc": lambda: torchmetrics.AUROC("multiclass", num_classes=5),
    "curve": lambda: torchmetrics.ROC("multiclass", num_classes=5, thresholds=7),
    "calibration": lambda: torchmetrics.CalibrationError("multiclass", num_classes=5),
}


@pytest.mark.parametrize("name", METRICS)
def test_metrics_are_the_cpus(name: str) -> None:
    metric, plain = METRICS[name]().to("hetero"), METRICS[name]()
    for _ in range(3):
        scores, labels = torch.randn(20, 5).softmax(1), torch.randint(5, (20,))
        metric.update(scores.to("hetero"), labels.to("hetero"))
        plain.update(scores, labels)
    result, expected = metric.compute(), plain.compute()
    for one, other in zip(*((v,) if isinstance(v, Tensor) else v for v in (result, expected)), strict=True):
        assert_same(one, other)


def test_a_collection_of_metrics_of_numbers() -> None:
    kinds = [torchmetrics.MeanSquaredError, torchmetrics.R2Score, torchmetrics.PearsonCorrCoef, torchmetrics.MeanMetric]
    metrics = torchmetrics.MetricCollection([kind() for kind in kinds[:3]]).to("hetero")
    plain = torchmetrics.MetricCollection([kind() for kind in kinds[:3]])
    x, y = torch.randn(30), torch.randn(30)
    metrics.update(x.to("hetero"), y.to("hetero"))
    plain.update(x, y)
    for name, value in plain.compute().items():
        assert_same(metrics.compute()[name], value, rtol=1e-4, atol=1e-5)


METHODS: dict[str, Callable[[nn.Module], Any]] = {
    "IntegratedGradients": lambda model: attr.IntegratedGradients(model),
    "Saliency": lambda model: attr.Saliency(model),
    "DeepLift": lambda model: attr.DeepLift(model),
    "GuidedBackprop": lambda model: attr.GuidedBackprop(model),
    "Occlusion": lambda model: attr.Occlusion(model),
    "LayerGradCam": lambda model: attr.LayerGradCam(model, model[0]),
    "GradientShap": lambda model: attr.GradientShap(model),
}


@pytest.mark.parametrize("name", METHODS)
def test_attributions_are_the_cpus(name: str) -> None:
    def attribute(device: str) -> Tensor:
        # In-place and reused ReLUs are not for captum's hooks.
        model = make_model().to(device).eval()
        chosen: dict[str, Any] = {"target": 3}
        if name == "Occlusion":
            chosen["sliding_window_shapes"] = (3, 4, 4)
            chosen["strides"] = (3, 4, 4)
        if name == "GradientShap":
            chosen["baselines"] = torch.zeros(1, 3, 8, 8, device=device)
            chosen["stdevs"] = 0.0
        return METHODS[name](model).attribute(images(device), **chosen).detach()

    with recording(3):
        result = attribute("hetero")
    expected = attribute("cpu")
    if name == "GradientShap":  # draws random numbers
        assert result.shape == expected.shape
        assert result.device.type == "hetero"
    else:
        assert_same(result, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("mode", ["hooks", "functorch"])
def test_private_training_clips_the_cpus_gradients(mode: str) -> None:
    def gradients(device: str) -> list[Tensor]:
        model = make_model().to(device)
        sampled = opacus.GradSampleModule(model, force_functorch=mode == "functorch")
        nn.functional.cross_entropy(sampled(images(device)), torch.arange(4, device=device)).backward()
        return [parameter.grad_sample.detach() for parameter in sampled.parameters()]

    with recording(10):
        result = gradients("hetero")
    for one, other in zip(result, gradients("cpu"), strict=True):
        assert one.shape[0] == 4
        assert_same(one, other, rtol=1e-4, atol=1e-5)


def test_private_training_makes_steps() -> None:
    model = make_model().to("hetero")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(TensorDataset(images(count=16), torch.arange(16) % 10), batch_size=8)
    engine = opacus.PrivacyEngine(accountant="rdp")
    model, optimizer, loader = engine.make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
    )
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.to("hetero")), y.to("hetero")).backward()
        optimizer.step()
    assert devices_of(model) == {"hetero"}
    assert any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert engine.get_epsilon(delta=1e-5) > 0


class Encoder(nn.Module):
    """Attention and a recurrent layer, over pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(24, 4, 32, batch_first=True)
        self.recurrent = nn.GRU(24, 5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.recurrent(self.layer(x.flatten(2).reshape(x.shape[0], 8, 24)))[0]


@pytest.mark.parametrize("kind", [make_model, Encoder])
@pytest.mark.parametrize("dynamo", [False, True], ids=["traced", "dynamo"])
def test_models_are_exported_to_onnx(dynamo: bool, kind: Callable[[], nn.Module], tmp_path: Path) -> None:
    def export(device: str) -> onnx.ModelProto:
        path = tmp_path / f"{device}.onnx"
        torch.manual_seed(0)
        model = kind().to(device).eval()
        torch.onnx.export(model, (images(device),), str(path), dynamo=dynamo, input_names=["x"], verbose=False)
        assert devices_of(model) == {device}
        return onnx.load(path)

    made, expected = export("hetero"), export("cpu")
    onnx.checker.check_model(made)
    assert [node.op_type for node in made.graph.node] == [node.op_type for node in expected.graph.node]
    weights = [
        sorted((one.name, onnx.numpy_helper.to_array(one).tobytes()) for one in file.graph.initializer)
        for file in (made, expected)
    ]
    assert weights[0] == weights[1]
    values = onnx.reference.ReferenceEvaluator(made).run(None, {"x": images().numpy()})[0]
    torch.manual_seed(0)
    np.testing.assert_allclose(values, kind().eval()(images()).detach().numpy(), rtol=1e-3, atol=1e-4)


def test_operations_are_counted_as_on_the_cpu() -> None:
    def count(device: str) -> tuple[int, Any]:
        model = make_model().to(device)
        attention = nn.MultiheadAttention(8, 2, batch_first=True).to(device)
        with FlopCounterMode(display=False) as counter:
            model(images(device)).sum().backward()
            x = torch.randn(2, 5, 8).to(device)
            attention(x, x, x)[0].sum().backward()
        return counter.get_total_flops(), counter.get_flop_counts()["Global"]

    assert count("hetero") == count("cpu")
    assert count("hetero")[0] > 0


def test_models_are_copied_with_their_hooks() -> None:
    seen: list[str] = []
    model = make_model().to("hetero")
    model[0].register_forward_hook(lambda module, inputs, output: seen.append(output.device.type))
    copy.deepcopy(model)(images("hetero"))
    assert seen == ["hetero"]
