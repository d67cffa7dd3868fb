"""Decoding of JPEG files: the bytes of cv2, PIL and torchvision, and the original's results and errors for other files."""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import needs_hetero
from strategy_checks import CALLS, check_one_batch, reason_of, shared_tests, strategies_of

cv2 = pytest.importorskip("cv2")
Image = pytest.importorskip("PIL.Image")
tv_io = pytest.importorskip("torchvision.io")

from torch_hetero.migration import PipelineMigrator  # noqa: E402
from torch_hetero.migration.holder import HANDLES  # noqa: E402
from torch_hetero.migration.strategies.jpeg import header_of  # noqa: E402
from torch_hetero.migration.strategy import Strategy, Unsupported  # noqa: E402

# PIL's files stay open until an image is decoded, with and without a plan.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")

STRATEGIES = strategies_of("strategies.decoding")


def pixels(height: int = 33, width: int = 47, channels: int = 3, seed: int = 0) -> np.ndarray:
    """Smooth colors with noise."""
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:height, 0:width]
    waves = [127 + 100 * np.sin(rows / (3 + c) + columns / (7 - c)) for c in range(channels)]
    return (np.stack(waves, -1) + random.normal(0, 15, (height, width, channels))).clip(0, 255).astype(np.uint8)


def jpeg(seed: int = 0, channels: int = 3, **settings: Any) -> bytes:
    """A file as PIL writes it."""
    image, stream = pixels(channels=channels, seed=seed), io.BytesIO()
    Image.fromarray(image if channels == 3 else image[:, :, 0]).save(stream, "JPEG", **settings)
    return stream.getvalue()


def with_orientation(orientation: int, seed: int = 0) -> bytes:
    """A file with EXIF data."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return jpeg(seed, exif=exif)


def png() -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels()).save(stream, "PNG")
    return stream.getvalue()


def cmyk() -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels(channels=4), "CMYK").save(stream, "JPEG")
    return stream.getvalue()


test_random_files_are_decoded_as_the_library_does, test_files_of_one_size_share_batches = shared_tests(STRATEGIES)


def test_files_of_different_lengths_are_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    files = [np.frombuffer(jpeg(seed, quality=30 + 20 * seed), np.uint8) for seed in range(3)]
    assert len({len(file) for file in files}) == 3
    check_one_batch("cv2.imdecode", [((file, 1), {}) for file in files], monkeypatch)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("flags", [-1, 0, 1, 128, 256])
def test_cv2_turns_images_as_their_orientation_says(
    orientation: int, flags: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = np.frombuffer(with_orientation(orientation), np.uint8)
    check_one_batch("cv2.imdecode", [((file, flags), {})], monkeypatch)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("apply", [False, True])
def test_torchvision_turns_images_if_it_is_told_to(
    orientation: int, apply: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = torch.frombuffer(bytearray(with_orientation(orientation)), dtype=torch.uint8)
    calls = [((file,), {"apply_exif_orientation": apply})]
    check_one_batch("torchvision.io.image.decode_image", calls, monkeypatch)


# Files that stay on the CPU, and the beginning of the reason.
OTHER_FILES: dict[str, tuple[Callable[[], bytes], str]] = {
    "PNG": (png, "it is no JPEG file"),
    "text": (lambda: b"no image at all", "it is no JPEG file"),
    "empty": (lambda: b"", "it is no JPEG file"),
    "three bytes": (lambda: jpeg()[:3], "the JPEG file is truncated or damaged"),
    "a cut header": (lambda: jpeg()[:100], "the JPEG file is truncated or damaged"),
    "a cut image": (lambda: jpeg()[:-60], "the JPEG file is truncated or damaged"),
    "no end": (lambda: jpeg()[:-2], "the JPEG file is truncated or damaged"),
    "CMYK": (cmyk, "the JPEG file is damaged, or coded in an unusual way"),
    "no tables": (lambda: jpeg().replace(b"\xff\xc4", b"\xff\xfe"), "the JPEG file is damaged, or coded"),
    "lossless": (lambda: jpeg().replace(b"\xff\xc0", b"\xff\xc3"), "the JPEG file is damaged, or coded"),
    "an unusual orientation": (lambda: with_orientation(9), "the JPEG file's EXIF orientation is unusual"),
}


@pytest.mark.parametrize("kind", OTHER_FILES)
def test_other_files_stay_on_the_cpu_for_a_reason(kind: str, tmp_path: Path) -> None:
    make, reason = OTHER_FILES[kind]
    data = make()
    path = tmp_path / "file.jpg"
    path.write_bytes(data)
    array = np.frombuffer(data, np.uint8)
    tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    for target, file in [("cv2.imdecode", array), ("torchvision.io.image.decode_image", tensor)]:
        assert reason_of(target, file, *[1] * (target == "cv2.imdecode")).startswith(reason)
    for target in ("cv2.imread", "PIL.Image.open", "torchvision.io.image.read_image"):
        assert reason_of(target, str(path)).startswith(reason)
    assert reason_of("PIL.Image.open", io.BytesIO(data)).startswith(reason)


FILE = np.frombuffer(jpeg(), np.uint8)


@pytest.mark.parametrize(
    ("target", "arguments", "reason"),
    [
        ("cv2.imdecode", (FILE, 17), "flags=17 stay on the CPU"),
        ("cv2.imdecode", (FILE, 257), "flags=257 stay on the CPU"),
        ("cv2.imdecode", (FILE, True), "flags=True stay on the CPU"),
        ("cv2.imdecode", (FILE, 1, pixels()), "dst= is given"),
        ("cv2.imdecode", (FILE[None], 1), "buf= is no list of bytes"),
        ("cv2.imdecode", (FILE.view(np.int8), 1), "buf= is no list of bytes"),
        ("cv2.imdecode", (b"bytes", 1), "no argument is an array, an image or a tensor"),
        ("cv2.imread", ("no/such/file.jpg",), "there is no such file"),
        ("cv2.imread", ("\0",), "there is no such file"),
        ("cv2.imread", (7,), "the file has no path"),
        ("PIL.Image.open", (7,), "the file has no path"),
        ("torchvision.io.image.decode_jpeg", (torch.from_numpy(FILE.copy()), tv_io.ImageReadMode.RGB_ALPHA),
         "mode=ImageReadMode.RGB_ALPHA stays on the CPU"),
        ("torchvision.io.image.decode_jpeg", (torch.from_numpy(FILE.copy()), "RGB", "cuda"), "device=cuda is given"),
        ("torchvision.io.image.decode_image", (FILE,), "input= is no tensor"),
    ],
)  # fmt: skip
def test_other_calls_stay_on_the_cpu_for_a_reason(target: str, arguments: tuple[Any, ...], reason: str) -> None:
    assert reason_of(target, *arguments) == reason


def damaged(random: np.random.Generator, data: bytes) -> bytes:
    """Returns a file with some bytes changed, taken out or put in."""
    file = bytearray(data)
    for _ in range(int(random.integers(1, 4))):
        place = int(random.integers(2, len(file) if random.integers(3) else min(len(file), 700)))
        kind = random.integers(3)
        if kind == 0:
            file[place] = int(random.integers(256))
        elif kind == 1:
            del file[place : min(place + int(random.integers(1, 40)), len(file) - 8)]
        else:
            file[place:place] = random.bytes(int(random.integers(1, 9)))
    return bytes(file)


def test_a_damaged_file_that_is_not_refused_has_everyones_pixels() -> None:
    """The operator does not fail, and neither do the libraries: what was promised at the call is kept."""
    random = np.random.default_rng(0)
    settings = [{"progressive": mode, "subsampling": kind} for mode in (False, True) for kind in (0, 2)]
    files = [jpeg(channels=channels, **entry) for channels in (1, 3) for entry in settings]
    decoded = 0
    for number in range(max(200, CALLS)):
        data = damaged(random, files[number % len(files)])
        file = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        try:
            header = header_of(file)
        except Unsupported:
            continue
        decoded += 1
        ours = torch.ops.hetero.decode_jpeg(file, header.height, header.width, allow_damaged=True).numpy()
        assert np.array_equal(ours, cv2.imdecode(file.numpy(), 256 | 128))
        assert np.array_equal(ours, np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))
        assert np.array_equal(ours, tv_io.decode_jpeg(file, tv_io.ImageReadMode.RGB).permute(1, 2, 0).numpy())
    assert decoded > 50


PLAN = {
    key: "hetero"
    for key in ("cv2.imdecode", "cv2.imread", "cv2.resize", "PIL.Image.open", "PIL.Image.Image.convert",
                "PIL.Image.Image.resize", "torchvision.io.decode_image", "torchvision.io.read_image")
}  # fmt: skip


@pytest.fixture
def plan() -> Iterator[PipelineMigrator]:
    with PipelineMigrator(PLAN) as migrator:
        yield migrator


def is_recorded(data: Any) -> bool:
    return type(data) in HANDLES and data._hetero_holder.data is None


@needs_hetero
def test_decoded_images_are_handles_and_the_file_is_what_is_uploaded(plan: PipelineMigrator, tmp_path: Path) -> None:
    path = tmp_path / "file.jpg"
    path.write_bytes(jpeg())
    images = [cv2.imdecode(FILE, 1), cv2.imread(str(path)), tv_io.read_image(str(path)), Image.open(path)]
    assert all(map(is_recorded, images))
    small = torch.stack([torch.from_numpy(cv2.resize(image, (9, 8))) for image in images[:2]]).to("hetero")
    assert torch.equal(small[0].cpu(), small[1].cpu())
    counts = plan.report.total()
    assert counts["cv2.imdecode"].device_calls == counts["cv2.imread"].device_calls == 1
    assert counts["cv2.imdecode"].uploaded == len(FILE)
    assert counts["cv2.resize"].uploaded == 0


@needs_hetero
def test_a_pil_image_stays_pils_own(plan: PipelineMigrator, tmp_path: Path) -> None:
    path = tmp_path / "file.jpg"
    path.write_bytes(with_orientation(6))
    with plan_off(plan):
        original = Image.open(path)
    image = Image.open(path)
    assert is_recorded(image)
    assert isinstance(image, type(original))
    assert image.__class__ is type(original)
    for name in ("format", "format_description", "mode", "size", "filename", "layers", "quantization"):
        assert getattr(image, name) == getattr(original, name)
    assert image.getexif() == original.getexif()
    assert is_recorded(image)
    converted = image.convert("L")
    assert is_recorded(converted)
    assert is_recorded(image)
    assert np.array_equal(np.asarray(converted), np.asarray(original.convert("L")))
    assert image.getpixel((3, 4)) == original.getpixel((3, 4))  # PIL decodes it
    assert not is_recorded(image)
    image.putpixel((0, 0), (1, 2, 3))
    original.putpixel((0, 0), (1, 2, 3))
    assert np.array_equal(np.asarray(image.convert("L")), np.asarray(original.convert("L")))


def plan_off(migrator: PipelineMigrator) -> Any:
    """Within, patched functions are their originals."""
    from torch_hetero.migration.context import untracked

    return untracked()


@needs_hetero
def test_a_file_that_was_closed_or_drafted_is_pils(plan: PipelineMigrator, tmp_path: Path) -> None:
    path = tmp_path / "file.jpg"
    path.write_bytes(jpeg())
    with Image.open(path) as image:
        converted = image.convert("L")
    assert is_recorded(converted)  # the bytes were there in time
    assert is_recorded(image.convert("L"))  # and the image stays decoded
    assert is_recorded(image)
    with Image.open(path) as image:
        pass
    with pytest.raises(AssertionError):  # PIL's, as without a plan
        image.convert("L")
    with path.open("rb") as file:
        image = Image.open(file)
    with pytest.raises(ValueError, match="seek of closed file"):
        image.convert("L")
    image = Image.open(path)
    assert is_recorded(image.convert("L"))
    image.close()
    with pytest.raises(ValueError, match="Operation on closed image"):
        image.convert("L")
    image = Image.open(path)
    image.draft("L", (10, 10))
    small = image.convert("RGB")
    assert not is_recorded(small)
    with plan_off(plan):
        original = Image.open(path)
        original.draft("L", (10, 10))
        assert np.array_equal(np.asarray(small), np.asarray(original.convert("RGB")))
    reasons = plan.report.total()["PIL.Image.Image.convert"].fallbacks
    assert reasons == {"the image is to be decoded in another way, as a draft": 1}


@needs_hetero
def test_a_file_object_is_where_the_original_leaves_it(plan: PipelineMigrator) -> None:
    def places(data: bytes) -> tuple[int, ...]:
        file = io.BytesIO(data)
        file.seek(5)
        image = Image.open(file)
        opened = file.tell()
        image.load()
        return opened, file.tell(), file.closed

    for data in (jpeg(), png()):
        with plan_off(plan):
            expected = places(data)
        assert places(data) == expected


def outcome(function: Callable[[], Any]) -> Any:
    """Returns what a function returns, or the kind and the words of its error."""
    try:
        result = function()
    except Exception as error:
        return type(error), str(error).split("0x")[0]
    return result if result is None else np.asarray(result)


@needs_hetero
@pytest.mark.parametrize("kind", [*OTHER_FILES, "a missing file"])
def test_other_files_give_the_originals_result_or_error_at_the_same_place(
    kind: str, plan: PipelineMigrator, tmp_path: Path
) -> None:
    path = str(tmp_path / "file.jpg")
    data = b"" if kind == "a missing file" else OTHER_FILES[kind][0]()
    if kind != "a missing file":
        Path(path).write_bytes(data)
    array = np.frombuffer(data, np.uint8)
    tensor = torch.tensor(list(data), dtype=torch.uint8)
    calls: list[Callable[[], Any]] = [
        lambda: cv2.imdecode(array, 1),
        lambda: cv2.imread(path),
        lambda: Image.open(path).size,
        lambda: Image.open(path).convert("RGB"),
        lambda: Image.open(io.BytesIO(data)).convert("RGB"),
        lambda: tv_io.decode_image(tensor),
        lambda: tv_io.read_image(path),
    ]
    for call in calls:
        with plan_off(plan):
            expected = outcome(call)
        made = outcome(call)
        assert np.array_equal(made, expected) if isinstance(expected, np.ndarray) else made == expected
    assert {count for counts in plan.report.total().values() for count in counts.fallbacks.values()} != set()


@needs_hetero
def test_a_handle_has_the_files_bytes_of_the_call(plan: PipelineMigrator, tmp_path: Path) -> None:
    path = tmp_path / "file.jpg"
    path.write_bytes(jpeg(seed=1))
    array, tensor, image = cv2.imread(str(path)), tv_io.read_image(str(path)), Image.open(path).convert("RGB")
    path.write_bytes(jpeg(seed=2))
    with plan_off(plan):
        expected = np.asarray(Image.open(io.BytesIO(jpeg(seed=1))))
    assert np.array_equal(np.asarray(image), expected)
    assert np.array_equal(array[:, :, ::-1], expected)
    assert torch.equal(tensor, torch.from_numpy(expected.copy()).permute(2, 0, 1))


@needs_hetero
def test_a_recorded_file_is_pickled_as_the_librarys_object(plan: PipelineMigrator, tmp_path: Path) -> None:
    path = tmp_path / "file.jpg"
    path.write_bytes(jpeg(quality=60))
    handles = [cv2.imread(str(path)), tv_io.read_image(str(path)), Image.open(path)]
    path.unlink()
    for handle in handles:
        data = pickle.dumps(handle)
        again = pickle.loads(data)
        assert not is_recorded(again) and type(again) in (np.ndarray, torch.Tensor, Image.Image)
        assert np.array_equal(np.asarray(again), np.asarray(handle))


class Pictures(torch.utils.data.Dataset):
    """A folder of files, each decoded by one of the libraries."""

    def __init__(self, folder: Path, count: int) -> None:
        self.paths = [str(folder / f"{number}.jpg") for number in range(count)]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        path = self.paths[index]
        if index % 3 == 0:
            return torch.from_numpy(cv2.resize(cv2.imread(path, cv2.IMREAD_COLOR_RGB), (32, 32)))
        if index % 3 == 1:
            with open(path, "rb") as file:
                return torch.from_numpy(np.array(Image.open(file).convert("RGB").resize((32, 32))))
        return tv_io.read_image(path, tv_io.ImageReadMode.RGB)[:, :32, :32].permute(1, 2, 0)


def batches(dataset: Pictures, workers: int) -> list[torch.Tensor]:
    return [batch.cpu() for batch in torch.utils.data.DataLoader(dataset, batch_size=6, num_workers=workers)]


@needs_hetero
@pytest.mark.parametrize("workers", [0, 2])
def test_files_travel_from_workers_and_the_parent_decodes(workers: int, tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"{number}.jpg").write_bytes(jpeg(number, quality=40 + number))
    dataset = Pictures(tmp_path, 12)
    want = batches(dataset, workers)
    with PipelineMigrator(PLAN) as migrator:
        got = batches(dataset, workers)
    assert all(map(torch.equal, got, want))
    counts = migrator.report.total()
    for key in ("cv2.imread", "PIL.Image.open", "torchvision.io.read_image"):
        assert (counts[key].device_calls, counts[key].host_calls, counts[key].cpu_calls) == (4, 0, 0)
        assert 0 < counts[key].uploaded < 4 * 33 * 47 * 3 / 2


@needs_hetero
@pytest.mark.parametrize("workers", [0, 2])
def test_a_truncated_file_in_a_dataset_is_the_librarys_error(workers: int, tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"{number}.jpg").write_bytes(jpeg(number))
    (tmp_path / "7.jpg").write_bytes(jpeg()[:-300])
    dataset = Pictures(tmp_path, 12)
    with PipelineMigrator(PLAN) as migrator:
        with pytest.raises(OSError, match="image file is truncated"):
            batches(dataset, workers)
        (tmp_path / "7.jpg").write_bytes(jpeg(7))
        assert len(batches(dataset, workers)) == 2
    assert migrator.report.total()["PIL.Image.open"].fallbacks == {"the JPEG file is truncated or damaged": 1}


@needs_hetero
def test_debug_mode_finds_no_difference(tmp_path: Path) -> None:
    path = tmp_path / "file.jpg"
    path.write_bytes(with_orientation(8))
    with PipelineMigrator(PLAN, debug=True) as migrator:
        for image in (cv2.imread(str(path)), tv_io.read_image(str(path)), Image.open(path).convert("L")):
            np.asarray(image).tobytes()
    counts = migrator.report.total()
    assert sum(entry.differences for entry in counts.values()) == 0
    assert all(counts[key].device_calls == 1 for key in ("cv2.imread", "PIL.Image.open"))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_unusual_file_has_a_reason_or_an_error_of_types(strategy: Strategy) -> None:
    for file in (None, "x", b"", 3, 2.5, [], {}, (FILE,), np.zeros((2, 2)), torch.zeros(0, dtype=torch.uint8), "\0"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert reason_of(strategy.target, file, *[1] * (strategy.target == "cv2.imdecode"))
