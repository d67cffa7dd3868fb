"""Input pipelines moved to a device by a plan, with the user's code unchanged."""

from torch_hetero.migration.strategy import EXACT, Call, Mapped, Strategy, Tolerance, Unsupported, register

__all__ = ["EXACT", "Call", "Mapped", "Strategy", "Tolerance", "Unsupported", "register"]
