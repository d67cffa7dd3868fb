"""``init_process_group`` without a backend chooses what it chooses without this package: gloo for the CPU.

It asks for the backend of the accelerator that torch has, and refuses one that it does not know.

Source: ``BackendConfig`` of torch/distributed/distributed_c10d.py, torch 2.11.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from torch_hetero.adapters.choice import is_accelerator


def apply(module: ModuleType) -> None:
    """Adapts ``torch.distributed.distributed_c10d``."""
    make = module.BackendConfig.__init__

    @functools.wraps(make)
    def __init__(self: Any, backend: Any) -> None:
        known = module.Backend.default_device_backend_map
        if str(backend) == module.Backend.UNDEFINED and is_accelerator() and "hetero" not in known:
            backend = f"cpu:{known['cpu']}"
        make(self, backend)

    module.BackendConfig.__init__ = __init__
