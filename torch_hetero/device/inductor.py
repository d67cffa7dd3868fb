"""What ``torch.compile(backend="inductor")`` is told about hetero tensors: one sentence.

Inductor writes C++ and Triton for devices whose memory a kernel may read as it runs. Hetero's memory is planned when
the program is, and may be on either device, so there is nothing that such a kernel could be given. Inductor asks the
device's module for these classes.
"""

from __future__ import annotations

from typing import Any, NoReturn

__all__ = ["CppWrapperCodegen", "PythonWrapperCodegen", "Scheduling", "WrapperFxCodegen"]


class PythonWrapperCodegen:
    """Stands where the code generator of another device would."""

    supports_caching = False  # asked for before anything is made

    @staticmethod
    def create(*_: Any) -> NoReturn:
        """Raises the sentence."""
        raise RuntimeError(
            'Inductor generates no code for the device "hetero": use torch.compile(backend="hetero"), or move the '
            "model and its inputs to the CPU for inductor."
        )


Scheduling = CppWrapperCodegen = WrapperFxCodegen = PythonWrapperCodegen
