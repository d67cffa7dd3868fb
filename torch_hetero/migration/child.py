"""Activates the plan of the parent in a process that it started.

Importing `torch_hetero.migration` does so where the environment names a plan, and ``hetero_migration.pth`` imports it there.
"""

from __future__ import annotations

import os
import warnings

from torch_hetero.migration import session
from torch_hetero.migration.migrator import PID, PLAN, PipelineMigrator
from torch_hetero.migration.plan import PlanError

__all__ = ["activate_from_environment"]


def activate_from_environment() -> None:
    """Activates the plan that the environment names, unless this is the process that set it.

    A plan that cannot be used here is left out with a warning: the originals are right, too.
    """
    path = os.environ.get(PLAN)
    if (
        path is None
        or os.environ.get(PID) == str(os.getpid())
        or session.active() is not None
        or not os.path.exists(path)
    ):
        return
    try:
        PipelineMigrator(path).activate()
    except (PlanError, OSError) as error:
        warnings.warn(f"the plan of the parent process is not used here: {error}", stacklevel=2)
