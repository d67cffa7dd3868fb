"""The handle of a PIL image: an `Image` whose pixels are made when its ``im`` is read, which all of PIL's methods do."""

from __future__ import annotations

from typing import Any

from PIL import Image

from torch_hetero.migration import session
from torch_hetero.migration.holder import Holder, register_handle
from torch_hetero.migration.recipe import Value

__all__ = ["ImageHandle"]


class ImageHandle(Image.Image):
    """Looks like a PIL image; see `holder.py`."""

    def __init__(self, value: Value) -> None:
        super().__init__()
        self._hetero_holder = Holder(value)
        self._mode = value.spec.mode
        self._size = (value.spec.shape[1], value.spec.shape[0])

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return Image.Image  # PIL compares classes

    def _hetero_host(self) -> ImageHandle:
        self.load()
        return self

    @property
    def im(self) -> Any:
        """PIL's own image, with pixels."""
        if self._im is None:
            self._im = session.materialize(self._hetero_holder.value).im
            self._hetero_holder.keep(self)
        return super().im

    @im.setter
    def im(self, new: Any) -> None:
        self._im = new

    def load(self) -> Any:
        """Makes the pixels; returns PIL's access to them."""
        _ = self.im
        return super().load()

    def __reduce_ex__(self, protocol: Any) -> Any:
        from torch_hetero.migration.shipping import reduce_handle

        return reduce_handle(self, protocol)


register_handle("image", ImageHandle)
