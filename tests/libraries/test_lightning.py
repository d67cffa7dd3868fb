"""Lightning and Fabric, under both of their names, on hetero."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from on_device import devices_of, recording
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

NAMES = ["lightning.pytorch", "pytorch_lightning"]
FABRICS = ["lightning.fabric", "lightning_fabric"]


@pytest.fixture(params=NAMES)
def pl(request: pytest.FixtureRequest) -> ModuleType:
    return importlib.import_module(request.param)


def make_model(pl: ModuleType) -> Any:
    class Model(pl.LightningModule):
        def __init__(self, width: int = 8) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.net = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 3))
            self.dtypes: set[torch.dtype] = set()
            self.seen: set[str] = set()
            self.losses: list[float] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.net[0](x)
            self.dtypes.add(hidden.dtype)
            self.seen.add(hidden.device.type)
            return self.net[1:](hidden)

        def loss(self, batch: Any) -> torch.Tensor:
            return nn.functional.cross_entropy(self(batch[0]).float(), batch[1])

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            loss = self.loss(batch)
            self.log("loss", loss, prog_bar=True)
            self.losses.append(loss.detach())
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("val_loss", self.loss(batch))

        def test_step(self, batch: Any, index: int) -> None:
            self.log("test_loss", self.loss(batch))

        def predict_step(self, batch: Any, index: int) -> torch.Tensor:
            return self(batch[0])

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
            return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2)}

    torch.manual_seed(0)
    return Model()


def loader() -> DataLoader:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(32, 4, generator=generator)
    return DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=8)


def trainer_of(pl: ModuleType, folder: Path, **chosen: Any) -> Any:
    chosen = {"max_epochs": 3, "enable_progress_bar": False, "enable_model_summary": False, "logger": False} | chosen
    return pl.Trainer(default_root_dir=folder, log_every_n_steps=1, **chosen)


def losses(model: Any) -> torch.Tensor:
    return torch.stack(model.losses).cpu()


def test_a_trainer_fits_on_hetero_as_on_the_cpu(pl: ModuleType, tmp_path: Path) -> None:
    on_cpu = make_model(pl)
    trainer_of(pl, tmp_path / "cpu", accelerator="cpu").fit(on_cpu, loader(), loader())
    assert on_cpu.seen == {"cpu"}

    model = make_model(pl)
    trainer = trainer_of(pl, tmp_path / "hetero", accelerator="hetero", devices=1)
    with recording(100):
        trainer.fit(model, loader(), loader())
    assert model.seen == {"hetero"}
    assert trainer.strategy.root_device == torch.device("hetero", 0)
    assert trainer.accelerator.name() == "hetero"
    torch.testing.assert_close(losses(model), losses(on_cpu))
    for device in ("val_loss", "loss"):
        assert trainer.callback_metrics[device].isfinite()


def test_auto_finds_hetero_and_the_cpu_is_still_there(pl: ModuleType, tmp_path: Path) -> None:
    chosen = trainer_of(pl, tmp_path)
    assert chosen.strategy.root_device == torch.device("hetero", 0)
    assert trainer_of(pl, tmp_path, accelerator="auto", devices="auto").accelerator.name() == "hetero"
    assert trainer_of(pl, tmp_path, accelerator="cpu").strategy.root_device.type == "cpu"
    # Two processes, as they are asked for here, are possible on the CPU only.
    assert trainer_of(pl, tmp_path, accelerator="auto", devices=2).strategy.root_device.type == "cpu"
    single = importlib.import_module(f"{pl.__name__}.strategies").SingleDeviceStrategy(device="cpu")
    assert trainer_of(pl, tmp_path, strategy=single).strategy.root_device.type == "cpu"


@pytest.mark.parametrize("devices", [2, [1], 0])
def test_there_is_one_hetero_device(pl: ModuleType, tmp_path: Path, devices: Any) -> None:
    refused = importlib.import_module(f"{pl.__name__}.utilities.exceptions").MisconfigurationException
    with pytest.raises((ValueError, refused)):
        trainer_of(pl, tmp_path, accelerator="hetero", devices=devices)


@pytest.mark.parametrize(
    ("precision", "inside", "weights"),
    [
        ("bf16-mixed", torch.bfloat16, torch.float32),
        ("16-mixed", torch.float16, torch.float32),
        ("bf16-true", torch.bfloat16, torch.bfloat16),
        ("64-true", torch.float64, torch.float64),
    ],
)
def test_precision_is_that_of_the_activations(
    pl: ModuleType, tmp_path: Path, precision: Any, inside: torch.dtype, weights: torch.dtype
) -> None:
    model = make_model(pl)
    trainer = trainer_of(pl, tmp_path, accelerator="hetero", precision=precision)
    trainer.fit(model, loader())
    assert model.dtypes == {inside}
    assert model.seen == {"hetero"}
    assert model.net[0].weight.dtype == weights
    assert losses(model)[-4:].mean() < losses(model)[:4].mean()
    if precision == "16-mixed":
        assert trainer.precision_plugin.scaler.is_enabled()


def test_bfloat16_training_is_the_cpus(pl: ModuleType, tmp_path: Path) -> None:
    models = {}
    for accelerator in ("cpu", "hetero"):
        models[accelerator] = make_model(pl)
        trainer_of(pl, tmp_path, accelerator=accelerator, precision="bf16-mixed").fit(models[accelerator], loader())
    torch.testing.assert_close(losses(models["hetero"]), losses(models["cpu"]), rtol=0.02, atol=0.02)


def test_checkpoints_and_callbacks(pl: ModuleType, tmp_path: Path) -> None:
    callbacks = importlib.import_module(f"{pl.__name__}.callbacks")
    loggers = importlib.import_module(f"{pl.__name__}.loggers")
    checkpoint = callbacks.ModelCheckpoint(dirpath=tmp_path / "best", monitor="val_loss", save_last=True)
    logger = loggers.CSVLogger(tmp_path)
    trainer = trainer_of(
        pl,
        tmp_path,
        accelerator="hetero",
        logger=logger,
        callbacks=[
            callbacks.DeviceStatsMonitor(),
            callbacks.EarlyStopping("val_loss", patience=2),
            callbacks.LearningRateMonitor(),
            checkpoint,
        ],
        gradient_clip_val=1.0,
        accumulate_grad_batches=2,
    )
    model = make_model(pl)
    trainer.fit(model, loader(), loader())
    header = Path(logger.log_dir, "metrics.csv").read_text().splitlines()[0]
    assert "allocated_bytes" in header

    # A file of it has a model for any device, and for another trainer.
    loaded = type(model).load_from_checkpoint(checkpoint.last_model_path, weights_only=False)
    on_cpu = type(model).load_from_checkpoint(checkpoint.last_model_path, map_location="cpu", weights_only=False)
    assert devices_of(on_cpu) == {"cpu"}
    for name, value in on_cpu.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name].cpu(), value)
        torch.testing.assert_close(loaded.state_dict()[name].cpu(), value)

    again = trainer_of(pl, tmp_path, accelerator="hetero", max_epochs=4)
    resumed = make_model(pl)
    again.fit(resumed, loader(), ckpt_path=checkpoint.last_model_path, weights_only=False)
    assert again.current_epoch == 4
    assert resumed.seen == {"hetero"}


def test_validate_test_and_predict(pl: ModuleType, tmp_path: Path) -> None:
    model = make_model(pl).eval()
    trainer = trainer_of(pl, tmp_path, accelerator="hetero")
    plain = trainer_of(pl, tmp_path, accelerator="cpu")
    on_cpu = make_model(pl).eval()
    assert trainer.validate(model, loader(), verbose=False)[0] == pytest.approx(
        plain.validate(on_cpu, loader(), verbose=False)[0], rel=1e-5
    )
    assert trainer.test(model, loader(), verbose=False)[0] == pytest.approx(
        plain.test(on_cpu, loader(), verbose=False)[0], rel=1e-5
    )
    predicted = torch.cat(trainer.predict(model, loader()))
    torch.testing.assert_close(predicted.cpu(), torch.cat(plain.predict(on_cpu, loader())))
    assert model.seen == {"hetero"}


@pytest.mark.parametrize("name", FABRICS)
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed", "bf16-true"])
def test_fabric_sets_up_and_trains(name: str, precision: Any, tmp_path: Path) -> None:
    module = importlib.import_module(name)

    def train(accelerator: str) -> tuple[list[float], Any, Any, set[torch.dtype]]:
        fabric = module.Fabric(accelerator=accelerator, devices=1, precision=precision)
        fabric.launch()
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        dtypes: set[torch.dtype] = set()
        net[0].register_forward_hook(lambda layer, inputs, output: dtypes.add(output.dtype))
        model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
        values = []
        for x, y in fabric.setup_dataloaders(loader()):
            assert x.device == fabric.device
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x).float(), y)
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            values.append(loss.item())
        return values, fabric, model, dtypes

    if precision == "16-mixed":
        values, fabric, model, dtypes = train("hetero")
        assert all(torch.tensor(values).isfinite())
    else:
        with recording(20):
            values, fabric, model, dtypes = train("hetero")
        tolerance = 1e-5 if precision == "32-true" else 0.03
        assert values == pytest.approx(train("cpu")[0], rel=tolerance)
    expected = {"32-true": torch.float32, "16-mixed": torch.float16}.get(precision, torch.bfloat16)
    assert dtypes == {expected}
    assert fabric.device == torch.device("hetero", 0)
    assert devices_of(model) == {"hetero"}

    with fabric.autocast():
        product = torch.mm(torch.ones(2, 2, device=fabric.device), torch.ones(2, 2, device=fabric.device))
    assert product.dtype == (torch.get_default_dtype() if precision == "32-true" else product.dtype)
    fabric.save(tmp_path / "state.ckpt", {"model": model})
    before = {key: value.clone() for key, value in model.state_dict().items()}
    for parameter in model.parameters():
        parameter.data.zero_()
    fabric.load(tmp_path / "state.ckpt", {"model": model})
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])


@pytest.mark.parametrize("name", FABRICS)
def test_fabric_finds_hetero_by_auto(name: str) -> None:
    fabric = importlib.import_module(name).Fabric
    assert fabric().device == torch.device("hetero", 0)
    assert fabric(accelerator="cpu").device.type == "cpu"
    with fabric(precision="bf16-mixed").autocast():
        x = torch.ones(2, 2, device="hetero")
        assert (x @ x).dtype == torch.bfloat16


def test_without_adapters_auto_is_the_cpu() -> None:
    code = "import lightning.fabric as fabric; print(fabric.Fabric().device)"
    environment = {**os.environ, "HETERO_ADAPTERS": "0"}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["cpu"]
