"""JPEG files: which ones `torch.ops.hetero.decode_jpeg` decodes to the bytes of cv2, Pillow and torchvision.

All of them decode by libjpeg-turbo. A file is refused where they may differ, or fail:

1. It is coded by Huffman, in 8 bits, sequentially or progressively, with 1 or 3 components.
2. Its markers are walked, from the first to the end of the image. All tables are there and right, and scans have all
   bits of all coefficients. So libjpeg decodes it to the end. The coded data itself need not be right: of damaged data,
   libjpeg makes the same pixels everywhere.
3. libjpeg-turbo reads its header.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

import torch

from torch_hetero.migration.strategy import Unsupported

__all__ = ["Header", "header_of", "is_jpeg", "oriented"]

SEQUENTIAL, EXTENDED, PROGRESSIVE = 0xC0, 0xC1, 0xC2
CODES, QUANTIZERS, RESTARTS, SCAN, END = 0xC4, 0xDB, 0xDD, 0xDA, 0xD9
EXIF, COMMENT = 0xE1, 0xFE
# A marker, and what ends the data of a scan; the latter begins with one byte that is quickly found.
MARKER = re.compile(rb"\xff+([^\x00\xff\xd0-\xd7])")
AFTER_SCAN = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
TRUNCATED, UNUSUAL = "the JPEG file is truncated or damaged", "the JPEG file is damaged, or coded in an unusual way"
MOST_SCANS = 100
MOST_PIXELS = 1 << 26
ORIENTATION = 0x0112


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of its image.

    Attributes:
        height, width: As the file has its pixels.
        channels: 1 for gray, 3 for colors.
        orientation: EXIF's, 1 to 8; 1 without.
    """

    height: int
    width: int
    channels: int
    orientation: int = 1

    def size(self, orientation: int) -> tuple[int, int]:
        """Returns the height and the width of `oriented` images."""
        return (self.width, self.height) if orientation >= 5 else (self.height, self.width)


def is_jpeg(data: bytes) -> bool:
    """Whether a file begins as a JPEG file does."""
    return data[:3] == b"\xff\xd8\xff"


def header_of(file: torch.Tensor) -> Header:
    """Returns the header of a file, uint8 [bytes] on the CPU.

    Raises:
        Unsupported: It is no JPEG file, or one that stays on the CPU.
    """
    data = file.numpy().tobytes()
    if not is_jpeg(data):
        raise Unsupported("it is no JPEG file")
    orientation = Walk(data).orientation
    try:
        height, width, channels = torch.ops.hetero.jpeg_size(file)
    except RuntimeError as error:
        raise Unsupported(str(error).splitlines()[0]) from None
    if height * width > MOST_PIXELS:
        raise Unsupported(f"JPEG files of more than {MOST_PIXELS} pixels stay on the CPU")
    return Header(height, width, channels, orientation)


class Walk:
    """A walk over a file's markers, up to the end of the image.

    Raises:
        Unsupported: The file is truncated, or libjpeg would not decode it to the end.
    """

    def __init__(self, data: bytes) -> None:
        self.orientation, self.scans, self.is_progressive = 1, 0, False
        self.tables: set[int] = set()  # of codes: 0 to 3, and 16 more for those of AC coefficients
        self.quantizers: set[int] = set()
        self.components: dict[int, int] = {}  # their quantizers
        # How many low bits of each coefficient are still to come; -1 before its first scan.
        self.bits: dict[int, list[int]] = {}
        place = 2
        try:
            while True:
                found = MARKER.match(data, place)
                marker, place = found[1][0], found.end()
                if marker == END:
                    break
                end = place + int.from_bytes(data[place : place + 2], "big")
                segment = data[place + 2 : end]
                if end < place + 2 or end > len(data):
                    raise Unsupported(TRUNCATED)
                self.take(marker, segment)
                place = end if marker != SCAN else AFTER_SCAN.search(data, end).start()
        except (AttributeError, IndexError, KeyError, TypeError):
            raise Unsupported(TRUNCATED) from None
        if any(bits != [0] * 64 for bits in self.bits.values()) or not self.bits:
            raise Unsupported(UNUSUAL)

    def take(self, marker: int, segment: bytes) -> None:
        """Looks at a segment."""
        if marker == CODES:
            self.take_codes(segment)
        elif marker == SCAN:
            self.take_scan(segment)
        elif marker == QUANTIZERS:
            while segment:
                kind, size = segment[0] >> 4, 65 + 64 * (segment[0] >> 4)
                check(kind < 2 and segment[0] & 15 < 4 and len(segment) >= size)
                self.quantizers.add(segment[0] & 15)
                segment = segment[size:]
        elif marker in (SEQUENTIAL, EXTENDED, PROGRESSIVE):
            check(not self.bits and segment[0] == 8 and segment[5] in (1, 3) and len(segment) == 6 + 3 * segment[5])
            self.is_progressive = marker == PROGRESSIVE
            self.components = dict(zip(segment[6::3], segment[8::3], strict=True))
            self.bits = {component: [-1] * 64 for component in self.components}
            check(len(self.bits) == segment[5])
        elif marker == RESTARTS:
            check(len(segment) == 2)
        elif marker == EXIF and segment.startswith(b"Exif\0\0"):
            self.orientation = orientation_of(segment[6:])
        else:
            check(marker == COMMENT or 0xE0 <= marker <= 0xEF)

    def take_codes(self, segment: bytes) -> None:
        """Looks at tables of Huffman codes."""
        while segment:
            kind, counts = segment[0], segment[1:17]
            symbols, segment = segment[17 : 17 + sum(counts)], segment[17 + sum(counts) :]
            check(kind & 0xEC == 0 and len(counts) == 16 and len(symbols) == sum(counts) <= 256)
            code = 0
            for length, count in enumerate(counts, 1):
                code = 2 * code + count
                check(count == 0 or code < 1 << length)
            check(kind >= 16 or max(symbols, default=0) < 16)
            self.tables.add(kind)

    def take_scan(self, segment: bytes) -> None:
        """Looks at the header of a scan: its codes are known, and its coefficients are the next ones."""
        count = segment[0]
        check(len(segment) == 4 + 2 * count and self.scans < MOST_SCANS)
        self.scans += 1
        first, last, high, low = segment[-3], segment[-2], segment[-1] >> 4, segment[-1] & 15
        if self.is_progressive:
            check(last == 0 if first == 0 else first <= last < 64 and count == 1)
            check(low < 14 and (high == 0 or low == high - 1))
        else:
            check((first, last, high, low) == (0, 63, 0, 0))
        for component, codes in zip(segment[1:-3:2], segment[2:-3:2], strict=True):
            check(self.components[component] in self.quantizers)
            needed = {codes >> 4} if first == 0 and high == 0 else set()
            needed |= {16 + (codes & 15)} if last else set()
            check(needed <= self.tables)
            bits = self.bits[component]
            check(first == 0 or bits[0] >= 0)
            check(bits[first : last + 1] == [high or -1] * (last + 1 - first))
            bits[first : last + 1] = [low] * (last + 1 - first)


def check(condition: bool) -> None:
    """Raises `Unsupported` for what a decoder may not take."""
    if not condition:
        raise Unsupported(UNUSUAL)


def orientation_of(exif: bytes) -> int:
    """Returns the orientation of EXIF's first directory; 1 if there is none.

    Raises:
        Unsupported: It is written in an unusual way.
    """
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[:4])
    try:
        if order is None:
            raise ValueError
        (place,) = struct.unpack_from(order + "I", exif, 4)
        (count,) = struct.unpack_from(order + "H", exif, place)
        found = [
            entry
            for entry in struct.iter_unpack(order + "HHIHH", exif[place + 2 : place + 2 + 12 * count])
            if entry[0] == ORIENTATION
        ]
    except (struct.error, ValueError):
        raise Unsupported("the JPEG file's EXIF data is damaged") from None
    if not found:
        return 1
    _, kind, number, value, _ = found[0]
    if len(found) > 1 or kind != 3 or number != 1 or value not in range(1, 9):
        raise Unsupported("the JPEG file's EXIF orientation is unusual")
    return value


def oriented(images: torch.Tensor, orientation: int) -> torch.Tensor:
    """Returns images [batch, height, width, channels] as they are to be seen."""
    if orientation >= 5:
        images = images.transpose(1, 2)
    flips = {2: [2], 3: [1, 2], 4: [1], 6: [2], 7: [1, 2], 8: [1]}.get(orientation)
    return images if flips is None else images.flip(flips)
