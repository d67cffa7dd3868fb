"""Ultralytics' YOLO on hetero: models from a configuration, a data set of a few drawn images."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("YOLO_OFFLINE", "1")
os.environ.setdefault("YOLO_CONFIG_DIR", tempfile.mkdtemp())

import cv2
import numpy as np
import pytest
import torch
from on_device import devices_of, recording
from ultralytics import YOLO
from ultralytics.utils.torch_utils import select_device


@pytest.fixture
def data(tmp_path: Path) -> Path:
    numbers = np.random.default_rng(0)
    for split in ("train", "val"):
        for kind in ("images", "labels"):
            (tmp_path / split / kind).mkdir(parents=True)
        for index in range(4):
            image = numbers.integers(0, 255, (64, 64, 3), dtype=np.uint8)
            image[16:40, 16:40] = 255
            cv2.imwrite(str(tmp_path / split / "images" / f"{index}.png"), image)
            (tmp_path / split / "labels" / f"{index}.txt").write_text("0 0.43 0.43 0.37 0.37\n")
    path = tmp_path / "data.yaml"
    path.write_text(f"path: {tmp_path}\ntrain: train/images\nval: val/images\nnames: {{0: box}}\n")
    return path


def make_model() -> Any:
    torch.manual_seed(0)
    return YOLO("yolov8n.yaml")


def test_the_name_of_the_device_is_known() -> None:
    assert select_device("hetero") == select_device("hetero:0") == torch.device("hetero", 0)
    assert select_device(torch.device("hetero")).type == "hetero"
    assert select_device("cpu").type == select_device("").type == "cpu"


def test_predictions_are_the_cpus(data: Path) -> None:
    image = cv2.imread(str(data.parent / "val" / "images" / "0.png"))
    chosen = {"imgsz": 64, "conf": 1e-4, "verbose": False}
    expected = make_model().predict(image, device="cpu", **chosen)[0]
    model = make_model()
    with recording(100):
        result = model.predict(image, device="hetero", **chosen)[0]
    assert result.boxes.data.device.type == "hetero"
    assert devices_of(model.predictor.model.model) == {"hetero"}
    torch.testing.assert_close(result.boxes.data.cpu(), expected.boxes.data, rtol=1e-3, atol=1e-3)
    assert len(result.boxes.cpu().numpy().xyxy) == len(expected.boxes)


@pytest.mark.parametrize("amp", [False, True])
def test_an_epoch_of_training_is_the_cpus(data: Path, tmp_path: Path, amp: bool) -> None:
    chosen = {"data": str(data), "epochs": 1, "imgsz": 64, "batch": 2, "workers": 0, "plots": False, "exist_ok": True}

    def train(device: str) -> Any:
        model = make_model()
        model.train(device=device, amp=amp, project=str(tmp_path / device), verbose=False, **chosen)
        return model

    trained = train("hetero")
    assert trained.trainer.device == torch.device("hetero", 0)
    assert devices_of(trained.trainer.model) == {"hetero"}
    assert trained.trainer.amp == trained.trainer.scaler.is_enabled() == amp
    losses = {name: value.item() for name, value in trained.trainer.loss_items.items()}
    assert all(np.isfinite(value) for value in losses.values())
    if not amp:
        expected = train("cpu").trainer.loss_items
        assert losses == pytest.approx({name: value.item() for name, value in expected.items()}, rel=1e-3)
    metrics = trained.val(data=str(data), imgsz=64, device="hetero", plots=False, verbose=False)
    assert 0 <= metrics.box.map <= 1
    assert Path(trained.trainer.last).exists()
