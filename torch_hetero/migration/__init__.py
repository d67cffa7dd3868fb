"""Input pipelines moved to a device by a plan, with the user's code unchanged.

    from torch_hetero.migration import PipelineMigrator

    with PipelineMigrator({"cv2.resize": "hetero", "cv2.cvtColor": "hetero"}):
        train()  # the calls of cv2 are recorded, and computed for whole batches

``python -m torch_hetero.migration optimize script.py -o plan.json`` measures a program and writes its plan.
"""

from torch_hetero.migration.child import activate_from_environment
from torch_hetero.migration.migrator import PipelineMigrator
from torch_hetero.migration.plan import Plan, PlanError, Rule
from torch_hetero.migration.strategy import EXACT, Call, Mapped, Strategy, Tolerance, Unsupported, register

__all__ = [
    "EXACT", "Call", "Mapped", "PipelineMigrator", "Plan", "PlanError", "Rule", "Strategy", "Tolerance", "Unsupported",
    "register",
]  # fmt: skip

activate_from_environment()
