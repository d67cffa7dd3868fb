"""The strategies that come with hetero: a module for each library.

Importing this package registers all of them and imports none of their libraries.
"""

import importlib
import pkgutil

from torch_hetero.migration.strategy import mark_views

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

# Their results share memory with the first argument, or may be that argument.
for _target in (
    *(f"numpy.ndarray.{_name}" for _name in "__getitem__ transpose reshape ravel swapaxes squeeze view".split()),
    *(f"numpy.{_name}" for _name in "transpose reshape ravel swapaxes squeeze expand_dims moveaxis flip fliplr flipud rot90 "
      "asarray ascontiguousarray atleast_3d".split()),
    "torch.from_numpy", "torch.as_tensor",
):  # fmt: skip
    mark_views(_target)
