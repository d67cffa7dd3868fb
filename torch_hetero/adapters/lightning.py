"""Lightning and Fabric: ``accelerator="hetero"``, and ``"auto"`` where there is no other accelerator.

The accelerator is registered, as Lightning means it. Its connectors still compare names in three places: which device
a strategy of one device has, which device autocast is for, and what ``"auto"`` finds.

Source: ``_Connector`` of lightning/fabric/connector.py and ``_AcceleratorConnector`` of
lightning/pytorch/trainer/connectors/accelerator_connector.py, lightning and pytorch_lightning 2.6.
"""

from __future__ import annotations

import functools
import warnings
from types import ModuleType
from typing import Any

import torch

from torch_hetero.adapters.choice import is_accelerator

_ONE_DEVICE = ("auto", 1, "1", -1, "-1", [0], (0,), "0,")


def _accelerator(base: type) -> type:
    """Makes the accelerator of Fabric, or of the Trainer, which has more methods."""

    class HeteroAccelerator(base):  # type: ignore[misc]
        """All compute of the machine, as one device."""

        def setup_device(self, device: torch.device) -> None:
            if device.type != "hetero":
                raise ValueError(f"Device should be hetero, got {device} instead.")

        def teardown(self) -> None:
            torch.hetero.empty_cache()

        def get_device_stats(self, device: Any) -> dict[str, Any]:
            return dict(torch.hetero.memory_stats(device))

        @staticmethod
        def parse_devices(devices: Any) -> list[int]:
            if devices not in _ONE_DEVICE:
                raise ValueError(f"There is one hetero device: use devices=1 or 'auto', not {devices!r}.")
            return [0]

        @staticmethod
        def get_parallel_devices(devices: list[int]) -> list[torch.device]:
            return [torch.device("hetero", index) for index in devices]

        @staticmethod
        def auto_device_count() -> int:
            return torch.hetero.device_count()

        @staticmethod
        def is_available() -> bool:
            return torch.hetero.is_available()

        @staticmethod
        def name() -> str:
            return "hetero"

        @classmethod
        def register_accelerators(cls, accelerator_registry: Any) -> None:
            accelerator_registry.register(cls.name(), cls, description=cls.__name__)

    return HeteroAccelerator


def _adapt_connector(module: ModuleType, connector: Any, accelerator: type) -> None:
    choose_accelerator = connector._choose_auto_accelerator
    init_accelerator = connector._set_parallel_devices_and_init_accelerator
    choose_strategy = connector._choose_strategy
    init_precision = connector._check_and_init_precision

    def _choose_auto_accelerator(self: Any) -> str:
        """As Lightning's own. What it says of the CPU is looked at again when the numbers of devices are known."""
        chosen = choose_accelerator()
        self._may_be_hetero = chosen == "cpu" and is_accelerator()
        return chosen

    @functools.wraps(init_accelerator)
    def _set_parallel_devices_and_init_accelerator(self: Any) -> None:
        # A strategy that the user names may be one of several processes, or bring its device.
        one = self._strategy_flag == "auto" and self._devices_flag in _ONE_DEVICE and self._num_nodes_flag == 1
        if one and getattr(self, "_may_be_hetero", False):
            self._accelerator_flag = "hetero"
        init_accelerator(self)

    @functools.wraps(choose_strategy)
    def _choose_strategy(self: Any) -> Any:
        strategy = choose_strategy(self)
        if isinstance(self.accelerator, accelerator) and type(strategy) is module.SingleDeviceStrategy:
            return module.SingleDeviceStrategy(device=self._parallel_devices[0])
        return strategy

    @functools.wraps(init_precision)
    def _check_and_init_precision(self: Any) -> Any:
        with warnings.catch_warnings():
            if isinstance(self.accelerator, accelerator):
                # The plugin for CUDA that is replaced here.
                warnings.filterwarnings("ignore", message=".*GradScaler is enabled, but CUDA is not available.*")
            plugin = init_precision(self)
        given = plugin in (getattr(self, "_precision_plugin_flag", None), getattr(self, "_precision_instance", None))
        if isinstance(self.accelerator, accelerator) and type(plugin) is module.MixedPrecision and not given:
            return module.MixedPrecision(plugin.precision, "hetero")
        return plugin

    connector._choose_auto_accelerator = _choose_auto_accelerator
    connector._set_parallel_devices_and_init_accelerator = _set_parallel_devices_and_init_accelerator
    connector._choose_strategy = _choose_strategy
    connector._check_and_init_precision = _check_and_init_precision


def apply(module: ModuleType) -> None:
    """Adapts the module of a connector, and the registry that it uses."""
    if hasattr(module, "_AcceleratorConnector"):
        connector, registry = module._AcceleratorConnector, module.AcceleratorRegistry
    else:
        connector, registry = module._Connector, module.ACCELERATOR_REGISTRY
    accelerator = _accelerator(module.Accelerator)
    accelerator.register_accelerators(registry)
    _adapt_connector(module, connector, accelerator)
