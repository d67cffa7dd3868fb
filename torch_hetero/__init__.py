"""hetero: one PyTorch device for all the compute and memory of a machine.

There is nothing to import: ``import torch`` loads this package through the entry point group ``torch.backends``, and
from then on ``"hetero"`` is a device like any other::

    import torch

    model.to("hetero")
    print(torch.hetero.explain())

``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` turns the loading off; ``import torch_hetero`` loads the device explicitly.
"""

from __future__ import annotations

import sys
from pathlib import Path

from torch_hetero.version import __version__

__all__ = ["__version__", "cmake_prefix_path"]

# For C++ programs: cmake -DCMAKE_PREFIX_PATH=... makes their find_package(hetero) find this package.
cmake_prefix_path = str(Path(__file__).resolve().parent)

_MINIMUM_TORCH = (2, 11)

# Set while this module's own `import torch` runs, which may call _autoload before it returns.
_imported_directly = False
_registered = False


def _check_torch(version: str) -> None:
    """Raises an ImportError of one sentence when this torch cannot carry the device.

    The libraries fit the minor version of torch that they were built against and no other.
    """
    major_minor = tuple(int(part) for part in version.split(".")[:2])
    if major_minor < _MINIMUM_TORCH:
        needed = ".".join(map(str, _MINIMUM_TORCH))
        raise ImportError(f"torch_hetero {__version__} needs torch {needed} or newer, and this is torch {version}.")
    built = Path(__file__).with_name("lib") / "TORCH_VERSION"
    if not built.exists():
        raise ImportError("torch_hetero has no libraries yet: run `make build` in its repository, or use pip install.")
    built_version = built.read_text().strip()
    if tuple(int(part) for part in built_version.split(".")[:2]) != major_minor:
        raise ImportError(
            f"torch_hetero was built against torch {built_version}, and this is torch {version}: install it again with "
            "`pip install --no-build-isolation`."
        )


def _load_library(version: str) -> None:
    """Loads the C++ side.

    Raises:
        ImportError: one sentence, when the libraries do not fit this torch.
        RuntimeError: one sentence, when they load but a HETERO_ variable has a value that does not fit.
    """
    _check_torch(version)
    try:
        from torch_hetero import _C  # noqa: F401
    except ImportError as error:
        reason = str(error).splitlines()[0]
        if error.path is None:  # not the dynamic loader's, so the module's own
            raise RuntimeError(reason) from None
        raise ImportError(f"torch_hetero cannot load its libraries: {reason}.") from error


def _register() -> None:
    """Makes "hetero" a device of torch. Does nothing the second time."""
    global _registered, _imported_directly
    if _registered:
        return
    _imported_directly = True
    try:
        import torch
    finally:
        _imported_directly = False
    if _registered:  # torch's autoload did it meanwhile
        return
    _load_library(torch.__version__)  # fails before anything of torch is changed

    torch.utils.rename_privateuse1_backend("hetero")
    from torch_hetero import adapters, device_module, patches

    torch._register_device_module("hetero", device_module)
    torch.utils.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_storage=True, for_packed_sequence=True
    )
    patches.apply()
    adapters.install()
    _registered = True


def _autoload() -> None:
    """Entry point of the group ``torch.backends``: torch calls it at the end of its own import.

    Libraries that do not fit and variables with a wrong value give a warning here and not an error, because programs
    that never use the device must go on working; an explicit ``import torch_hetero`` raises.
    """
    import torch

    try:
        if not _registered:
            _load_library(torch.__version__)
    except (ImportError, RuntimeError) as error:
        if not _imported_directly:
            import warnings

            warnings.warn(f"{error} The device 'hetero' is not available.", stacklevel=2)
            sys.modules.pop(__name__, None)
        return
    _register()


# During torch's own import its entry point decides; it is called next.
if not getattr(getattr(sys.modules.get("torch"), "__spec__", None), "_initializing", False):
    _register()
