"""Activates the plan of the parent in a process that it started.

``hetero_migration.pth`` imports this module where the environment names a plan.
"""

from __future__ import annotations

import os

__all__ = ["activate_from_environment"]


def activate_from_environment() -> None:
    """Activates the plan that the environment names, unless one is active. A plan that cannot be used is left out."""
    from torch_hetero.migration import session
    from torch_hetero.migration.migrator import PID, PLAN, PipelineMigrator

    path = os.environ.get(PLAN)
    if path is None or os.environ.get(PID) == str(os.getpid()):
        return
    if session.active() is None and os.path.exists(path):
        PipelineMigrator(path).activate()
