"""The strategies that come with hetero: a module for each library.

Importing this package registers all of them and imports none of their libraries.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
