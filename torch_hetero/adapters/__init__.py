"""What other code assumes of a machine, corrected when that code is imported: one module for each kind.

Each adapter is a function that changes the module it is named for in `ADAPTERS`. Modules that are never imported cost
nothing. ``HETERO_ADAPTERS=0`` leaves all of them out.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from torch_hetero.adapters.import_hook import ImportHook

__all__ = ["ADAPTERS", "install"]

# The module that is changed, and the one of this package that changes it: by `apply`, or the function behind the colon.
ADAPTERS = {
    "torch.nn.parallel.data_parallel": "data_parallel",
    "torch.distributed.distributed_c10d": "process_group",
    "torch._dynamo.backends.registry": "compile_backend",
    "torch._inductor.compile_fx": "default_backend",
    "safetensors": "safetensors",
    "torch._ops": "library_kernels:adapt_ops",
    "torch.library": "library_kernels:adapt_library",
    "torch.nn.attention.flex_attention": "flex_attention",
    "lightning.fabric.connector": "lightning",
    "lightning.pytorch.trainer.connectors.accelerator_connector": "lightning",
    "lightning_fabric.connector": "lightning",
    "pytorch_lightning.trainer.connectors.accelerator_connector": "lightning",
    "ultralytics.utils.torch_utils": "ultralytics:adapt_devices",
    "accelerate.state": "device_choice",
    "peft.utils.other": "device_choice",
    "sentence_transformers.util.environment": "device_choice",
    "accelerate.checkpointing": "random_state:adapt_accelerate",
    "transformers.trainer": "random_state:adapt_trainer",
    "accelerate.accelerator": "accelerate:adapt_accelerator",
    "accelerate.commands.config.config_utils": "accelerate:adapt_commands",
    "accelerate.hooks": "accelerate:adapt_hooks",
    "accelerate.utils.dataclasses": "accelerate:adapt_dataclasses",
    "accelerate.utils.memory": "accelerate:adapt_memory",
    "accelerate.utils.modeling": "accelerate:adapt_modeling",
    "transformers.cache_utils": "transformers:adapt_cache_utils",
    "transformers.generation.continuous_batching.requests": "transformers:adapt_continuous_batching",
    "transformers.generation.continuous_batching.utils": "transformers:adapt_continuous_batching",
    "transformers.generation.utils": "transformers:adapt_generation",
    "transformers.pipelines.base": "transformers:adapt_pipelines",
    "transformers.training_args": "transformers:adapt_training_args",
    "transformers.utils.import_utils": "transformers:adapt_import_utils",
    "ultralytics.engine.trainer": "ultralytics:adapt_trainer",
    "torchao.kernel.intmm": "torchao",
    "torchaudio.functional.filtering": "torchaudio",
}


class _Unfinished(ModuleSpec):
    """The spec of a module that is being run, and imported torch meanwhile: it is adapted when it is complete.

    The import system sets this attribute of its spec then.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "_initializing" and not value:
            self.__class__ = ModuleSpec  # type: ignore[assignment]
            if self.name in sys.modules:  # else it failed
                _adapt(sys.modules[self.name])


def _adapt(module: ModuleType) -> None:
    name, _, function = ADAPTERS[module.__name__].partition(":")
    try:
        getattr(importlib.import_module(f"{__name__}.{name}"), function or "apply")(module)
    except Exception as error:  # noqa: BLE001 another version has other names, and may be used without what adapts it
        warnings.warn(
            f"torch_hetero does not know this version of {module.__name__}, which stays as it is and may not use the device "
            f"hetero ({type(error).__name__}: {error})",
            stacklevel=2,
        )


def install() -> None:
    """Adapts the modules that are there, and the others once they are imported."""
    if os.environ.get("HETERO_ADAPTERS", "1") == "0":
        return
    for name in ADAPTERS:
        module = sys.modules.get(name)
        if module is None:
            continue
        if getattr(module.__spec__, "_initializing", False):
            module.__spec__.__class__ = _Unfinished  # type: ignore[union-attr, assignment]
        else:
            _adapt(module)
    ImportHook(ADAPTERS.__contains__, _adapt).install()
