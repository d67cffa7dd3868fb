"""The handle of a JPEG file that PIL opened: an image whose pixels are computed when something reads them.

It is PIL's own object, with what PIL read of the file. The first call that reads pixels decides: a migrated call reads a
recipe that decodes the file's bytes, and closes the file as PIL would. Any other makes PIL decode the file.
"""

from __future__ import annotations

import weakref
from typing import Any

from PIL.JpegImagePlugin import JpegImageFile

from torch_hetero.migration import session
from torch_hetero.migration.holder import HANDLES, Holder
from torch_hetero.migration.recipe import Value
from torch_hetero.migration.spec import spec_of
from torch_hetero.migration.strategy import Unsupported

__all__ = ["JpegHandle"]


class FileHolder(Holder):
    """The state of a `JpegHandle`; `tile` is PIL's note of how to decode the file, None once that is decided."""

    __slots__ = ("image", "tile")

    def __init__(self, value: Value, image: JpegImageFile) -> None:
        super().__init__(value)
        self.image, self.tile = weakref.ref(image), list(image.tile)

    def current(self) -> Value:
        """Returns the value of the pixels as they are now; see `Holder`.

        Raises:
            Unsupported: PIL would raise, or decode in another way.
        """
        image = self.image()
        if self.data is None and image._im is not None:
            raise Unsupported("the image was closed")
        if self.data is None and self.tile is not None:
            if image.fp is None or image.fp.closed:
                raise Unsupported("the image's file was closed")
            if image.tile != self.tile or spec_of(image) != self.value.spec:
                raise Unsupported("the image is to be decoded in another way, as a draft")
            self.tile, image.tile = None, []
            if image._exclusive_fp and image._close_exclusive_fp_after_loading:
                image.fp.close()
            image.fp = None
        return super().current()


class JpegHandle(JpegImageFile):
    """Looks like what `PIL.Image.open` returns; see the module's text."""

    _hetero_holder: FileHolder

    @staticmethod
    def of(image: JpegImageFile, value: Value) -> JpegHandle:
        """Makes an image that is not decoded a handle for its pixels; returns it."""
        holder = FileHolder(value, image)
        image.__class__ = JpegHandle
        image._hetero_holder = holder
        return image

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return JpegImageFile  # PIL compares classes

    def _hetero_host(self) -> JpegHandle:
        self.load()
        return self

    def load(self) -> Any:
        """Makes the pixels; returns PIL's access to them."""
        holder = self._hetero_holder
        if holder.tile is None and self._im is None:
            self._im = session.materialize(holder.value).im
            holder.keep(self)
        access = super().load()
        if holder.tile is not None:
            holder.tile = None
            holder.keep(self)
        return access

    def __reduce_ex__(self, protocol: Any) -> Any:
        from torch_hetero.migration.shipping import reduce_handle

        return reduce_handle(self, protocol)


HANDLES.add(JpegHandle)
