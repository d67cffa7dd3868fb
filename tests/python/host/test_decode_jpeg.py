"""``hetero::decode_jpeg``: Pillow's and cv2's pixels, decoded on the CPU's worker queue while other work goes on."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator

import pytest
import torch
from counters import counting
from helpers import ON_HETERO, needs_hetero, run_python_ok
from torch import Tensor

import torch_hetero  # noqa: F401

cv2 = pytest.importorskip("cv2")
np = pytest.importorskip("numpy")
Image = pytest.importorskip("PIL.Image")

decode_jpeg = torch.ops.hetero.decode_jpeg
decode_jpegs = torch.ops.hetero.decode_jpegs
jpeg_size = torch.ops.hetero.jpeg_size

SIZES = [(1, 1), (7, 9), (8, 8), (17, 33), (64, 48), (123, 77), (240, 321)]
SUBSAMPLINGS = {"4:4:4": 0, "4:2:2": 1, "4:2:0": 2}
TOO_LARGE = 1 << 16
HERE = os.path.dirname(os.path.abspath(__file__))


@pytest.fixture
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def pixels(height: int, width: int, channels: int, seed: int = 0) -> np.ndarray:
    """Smooth colours with noise, so that all coefficients have something to say."""
    generator = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:height, 0:width]
    waves = [127 + 100 * np.sin(rows / (3 + c) + columns / (7 - c)) for c in range(channels)]
    noisy = np.stack(waves, -1) + generator.normal(0, 20, (height, width, channels))
    return np.clip(noisy, 0, 255).astype(np.uint8)


def jpeg(array: np.ndarray, **options: object) -> Tensor:
    """A file as Pillow writes it."""
    out = io.BytesIO()
    Image.fromarray(array.squeeze(-1) if array.shape[-1] == 1 else array).save(out, "JPEG", **options)
    return file_of(out.getvalue())


def file_of(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def by_pillow(file: Tensor, mode: str = "RGB") -> Tensor:
    image = Image.open(io.BytesIO(file.numpy().tobytes())).convert(mode)
    return torch.from_numpy(np.array(image)).reshape(image.height, image.width, -1)


def by_cv2(file: Tensor, flag: int) -> Tensor:
    image = cv2.imdecode(file.numpy(), flag | cv2.IMREAD_IGNORE_ORIENTATION)
    return torch.from_numpy(image).reshape(*image.shape[:2], -1)


def assert_as_pillow_and_cv2(file: Tensor) -> None:
    height, width, _ = jpeg_size(file)
    assert torch.equal(decode_jpeg(file, height, width), by_pillow(file))
    assert torch.equal(decode_jpeg(file, height, width, bgr=True), by_cv2(file, cv2.IMREAD_COLOR))
    assert torch.equal(decode_jpeg(file, height, width, 1), by_cv2(file, cv2.IMREAD_GRAYSCALE))


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
def test_colours_are_those_of_pillow_and_cv2(subsampling: str, progressive: bool) -> None:
    for height, width in SIZES:
        for quality in (30, 75, 95):
            array = pixels(height, width, 3, seed=quality)
            options = {"quality": quality, "subsampling": SUBSAMPLINGS[subsampling], "progressive": progressive}
            assert_as_pillow_and_cv2(jpeg(array, **options))


@pytest.mark.parametrize("progressive", [False, True])
def test_grey_files_are_those_of_pillow_and_cv2(progressive: bool) -> None:
    for height, width in SIZES:
        file = jpeg(pixels(height, width, 1), quality=80, progressive=progressive)
        assert jpeg_size(file) == [height, width, 1]
        assert_as_pillow_and_cv2(file)
        assert torch.equal(decode_jpeg(file, height, width, 1), by_pillow(file, "L"))


def test_files_of_cv2_with_restart_markers_and_other_samplings_decode_alike() -> None:
    for factor in (cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440):
        parameters = [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, factor, cv2.IMWRITE_JPEG_RST_INTERVAL, 3]
        ok, data = cv2.imencode(".jpg", pixels(61, 83, 3), parameters)
        assert ok
        assert_as_pillow_and_cv2(file_of(data.tobytes()))


def test_orientation_is_left_to_the_caller() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    file = jpeg(pixels(40, 24, 3), exif=exif)
    assert jpeg_size(file) == [40, 24, 3]
    assert_as_pillow_and_cv2(file)


def test_a_file_that_is_a_view_with_gaps_decodes() -> None:
    file = jpeg(pixels(20, 30, 3))
    gaps = torch.stack([file, file], 1)[:, 0]
    assert not gaps.is_contiguous()
    assert torch.equal(decode_jpeg(gaps, 20, 30), by_pillow(file))


def cmyk_file() -> Tensor:
    out = io.BytesIO()
    Image.fromarray(pixels(8, 8, 4), "CMYK").save(out, "JPEG")
    return file_of(out.getvalue())


def png_file() -> Tensor:
    out = io.BytesIO()
    Image.fromarray(pixels(8, 8, 3)).save(out, "PNG")
    return file_of(out.getvalue())


BAD_FILES = {
    "truncated": (lambda: jpeg(pixels(8, 8, 3))[:-40], "Premature end"),
    "cut in the header": (lambda: jpeg(pixels(8, 8, 3))[:30], "cannot decode"),
    "empty": (lambda: file_of(b""), "it is empty"),
    "no JPEG": (png_file, "Not a JPEG file"),
    "CMYK": (cmyk_file, "its colours are CMYK"),
    "of another size": (lambda: jpeg(pixels(8, 9, 3)), "it is 8 x 9 pixels, not 8 x 8"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_bad_file_is_one_clear_error(kind: str) -> None:
    make, words = BAD_FILES[kind]
    with pytest.raises(RuntimeError, match=words):
        decode_jpeg(make(), 8, 8)


@needs_hetero
@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_bad_file_fails_its_image_only_and_the_next_one_decodes(kind: str) -> None:
    make, words = BAD_FILES[kind]
    good = jpeg(pixels(8, 8, 3))
    bad_image = decode_jpeg(make().to("hetero"), 8, 8)
    good_image = decode_jpeg(good.to("hetero"), 8, 8)
    dependent = bad_image.float() + 1
    with pytest.raises(RuntimeError, match=words):
        dependent.cpu()
    assert torch.equal(good_image.cpu(), by_pillow(good))
    assert torch.equal(decode_jpeg(good.to("hetero"), 8, 8).cpu(), by_pillow(good))


def damaged_file() -> Tensor:
    """A file with an end, in whose data a piece is missing."""
    data = jpeg(pixels(64, 48, 3)).numpy().tobytes()
    middle = len(data) // 2
    return file_of(data[:middle] + data[-40:])


@pytest.mark.parametrize("device", ["cpu", pytest.param("hetero", marks=needs_hetero)])
def test_a_damaged_file_has_the_pixels_of_pillow_and_cv2_if_it_is_allowed(device: str) -> None:
    file = damaged_file()
    with pytest.raises(RuntimeError, match="cannot decode the JPEG file: Corrupt JPEG data"):
        decode_jpeg(file.to(device), 64, 48).cpu()
    image = decode_jpeg(file.to(device), 64, 48, allow_damaged=True)
    assert torch.equal(image.cpu(), by_pillow(file))
    (image,) = decode_jpegs([file.to(device)], [64], [48], bgr=True, allow_damaged=True)
    assert torch.equal(image.cpu(), by_cv2(file, cv2.IMREAD_COLOR))
    with pytest.raises(RuntimeError, match="Premature end"):
        decode_jpeg(file[:-40].to(device), 64, 48, allow_damaged=True).cpu()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((torch.zeros(4), 8, 8), TypeError),
        ((torch.zeros(2, 2, dtype=torch.uint8), 8, 8), RuntimeError),
        ((torch.zeros(4, dtype=torch.uint8), 0, 8), ValueError),
        ((torch.zeros(4, dtype=torch.uint8), 8, TOO_LARGE), ValueError),
        ((torch.zeros(4, dtype=torch.uint8), 8, 8, 2), ValueError),
        ((torch.zeros(4, dtype=torch.uint8), 8, 8, 4), ValueError),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta", pytest.param("hetero", marks=needs_hetero)])
def test_wrong_arguments_are_errors_of_the_call(arguments: tuple, error: type, device: str) -> None:
    with pytest.raises(error):
        decode_jpeg(arguments[0].to(device), *arguments[1:])


def test_several_files_become_a_list_of_images_of_their_own_sizes() -> None:
    files = [jpeg(pixels(height, width, 3)) for height, width in SIZES]
    heights, widths = [size[0] for size in SIZES], [size[1] for size in SIZES]
    for image, file in zip(decode_jpegs(files, heights, widths), files, strict=True):
        assert torch.equal(image, by_pillow(file))
    assert decode_jpegs([], [], []) == []
    with pytest.raises(RuntimeError, match="there are 7 files, 6 heights and 7 widths"):
        decode_jpegs(files, heights[1:], widths)


@needs_hetero
def test_calls_are_recorded_and_run_on_the_worker_queue_beside_other_work(one_thread: None) -> None:
    files = [jpeg(pixels(240, 320, 3, seed)) for seed in range(4)]
    expected = [by_pillow(file) for file in files]
    with counting() as seen:
        images = decode_jpegs([file.to("hetero") for file in files], [240] * 4, [320] * 4)
        # What is done with one image runs while the next is decoded.
        means = [image.float().mean() for image in images]
        assert seen.kernels == 0
        results = torch.stack(means).cpu()
    assert seen.host_tasks >= 3
    assert torch.equal(results, torch.stack([image.float().mean() for image in expected]))
    for image, wanted in zip(images, expected, strict=True):
        assert torch.equal(image.cpu(), wanted)


@needs_hetero
def test_files_in_a_row_are_decoded_on_all_threads() -> None:
    files = [jpeg(pixels(240 + n, 320, 3, n)) for n in range(9)]
    files.insert(4, files[0][:200])
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with counting() as seen:
            images = [decode_jpeg(file.to("hetero"), 240 + n, 320) for n, file in enumerate(files[:4])]
            torch.hetero.flush()
        assert (seen.parallel_tasks, seen.host_tasks) == (4, 0)
        broken = decode_jpeg(files[4].to("hetero"), 240, 320)
        images += [decode_jpeg(file.to("hetero"), 244 + n, 320) for n, file in enumerate(files[5:])]
        with pytest.raises(RuntimeError, match="cannot decode the JPEG file"):
            broken.cpu()
    finally:
        torch.set_num_threads(threads)
    for image, file in zip(images, [*files[:4], *files[5:]], strict=True):
        assert torch.equal(image.cpu(), by_pillow(file))


@needs_hetero
def test_one_image_that_everything_waits_for_stays_on_the_calling_thread() -> None:
    file = jpeg(pixels(240, 320, 3))
    with counting() as seen:
        image = decode_jpeg(file.to("hetero"), 240, 320)
        assert torch.equal((image.float() / 255).cpu(), by_pillow(file).float() / 255)
    assert seen.host_tasks == 0


@needs_hetero
def test_repeated_programs_replay_with_other_files() -> None:
    for round_number in range(5):
        files = [jpeg(pixels(120, 160, 3, seed=10 * round_number + i), quality=60 + i) for i in range(3)]
        images = decode_jpegs([file.to("hetero") for file in files], [120] * 3, [160] * 3)
        total = sum(image.double().sum() for image in images)
        assert total.item() == sum(by_pillow(file).double().sum().item() for file in files)


@needs_hetero
def test_the_worker_queue_runs_after_an_accelerator_was_taken_away() -> None:
    run_python_ok(
        """
        import torch, torch_hetero
        from counters import counting
        from test_decode_jpeg import by_pillow, decode_jpegs, jpeg, pixels

        files = [jpeg(pixels(240, 320, 3, seed)) for seed in range(4)]
        expected = torch.stack([by_pillow(file).float().mean() for file in files])
        torch.set_num_threads(1)
        for accelerator in "none", "sim", "none":
            torch.hetero.config.accelerator = accelerator
            for _ in range(2):
                with counting() as seen:
                    images = decode_jpegs([file.to("hetero") for file in files], [240] * 4, [320] * 4)
                    means = torch.stack([image.float().mean() for image in images]).cpu()
                assert torch.equal(means, expected)
            assert accelerator == "sim" or seen.host_tasks >= 3, seen.host_tasks
        """,
        {"HETERO_ACCELERATOR": "none", "HETERO_FUSION": "0", "PYTHONPATH": HERE},
    )


@needs_hetero
def test_decoding_overlaps_with_a_simulated_accelerator() -> None:
    out = run_python_ok(
        """
        import torch, torch_hetero
        from counters import counting
        from test_decode_jpeg import by_pillow, decode_jpegs, jpeg, pixels

        torch.hetero.config.keep_plans = True
        files = [jpeg(pixels(240, 320, 3, seed)) for seed in range(4)]
        for _ in range(3):
            with counting() as seen:
                images = decode_jpegs([file.to("hetero") for file in files], [240] * 4, [320] * 4)
                with torch.hetero.placement("accelerator"):
                    sums = [(image.float() / 255).sin().sum() for image in images]
                results = torch.stack(sums).cpu()
            assert seen.host_tasks == 4, seen.host_tasks
        expected = torch.stack([(by_pillow(file).float() / 255).sin().sum() for file in files])
        assert torch.equal(results, expected)
        program = torch.hetero.explain().program
        spans = program["spans"]
        decoded = [span for span in spans if span["queue"] == "cpu worker"]
        assert [span["name"] for span in decoded] == ["hetero::decode_jpeg"] * 4
        there = [span for span in spans if span["queue"].startswith("accelerator compute")]
        first = min(span["measured_begin"] for span in there)
        last = max(span["measured_end"] for span in decoded)
        assert first < last, (first, last)
        assert abs(program["measured_seconds"] / program["predicted_seconds"] - 1) < 1e-3
        print("overlaps")
        """,
        {"HETERO_ACCELERATOR": "sim", "HETERO_FUSION": "0", "HETERO_VERIFY_PLANS": "1", "PYTHONPATH": HERE},
    )
    assert "overlaps" in out


@needs_hetero
def test_a_forked_child_decodes_on_the_cpu_and_the_parent_goes_on() -> None:
    out = run_python_ok(
        """
        import os
        import torch, torch_hetero
        from test_decode_jpeg import by_pillow, decode_jpeg, decode_jpegs, jpeg, pixels

        def total():
            images = decode_jpegs([file.to("hetero") for file in files], [120] * 3, [160] * 3)
            return torch.stack([image.float().mean() for image in images]).cpu()

        files = [jpeg(pixels(120, 160, 3, seed)) for seed in range(3)]
        before = total()
        pid = os.fork()
        if pid == 0:
            os._exit(0 if torch.equal(decode_jpeg(files[0], 120, 160), by_pillow(files[0])) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert torch.equal(total(), before)
        print("goes on")
        """,
        {"PYTHONPATH": HERE},
    )
    assert "goes on" in out


@pytest.mark.skipif(not ON_HETERO, reason="compiles for the device")
@needs_hetero
def test_a_compiled_function_decodes() -> None:
    file = jpeg(pixels(32, 48, 3))

    @torch.compile(backend="hetero")
    def decode(data: Tensor) -> Tensor:
        return decode_jpeg(data, 32, 48).float() * 2

    for _ in range(2):
        assert torch.equal(decode(file.to("hetero")).cpu(), by_pillow(file).float() * 2)
