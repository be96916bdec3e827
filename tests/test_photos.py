"""The image set: what it is made of, and what is said of a folder that cannot be one."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from harness.data import cache, photos, pixels
from harness.errors import ConfigError, MeasurementError, Unavailable
from harness.spec import IMAGES

SIZE = 32


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPEEDPROOF_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(IMAGES, raising=False)


def write_image(file: Path, *, shape: tuple[int, int] = (40, 60), seed: int = 0) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 256, (*shape, 3), np.uint8)
    Image.fromarray(noise).save(file)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two classes of 3 and 2 images, in every extension that is read."""
    root = tmp_path / "own"
    for seed, name in enumerate(("cat/a.jpg", "cat/b.PNG", "cat/c.bmp", "dog/a.jpeg", "dog/deeper/b.jpg")):
        write_image(root / name, seed=seed)
    (root / "dog" / "notes.txt").write_text("not an image, and not called one")
    monkeypatch.setenv(IMAGES, str(root))
    return root


# --- embedded ------------------------------------------------------------------------------------------------------


def test_crops_are_square_jpegs_whose_classes_take_turns():
    images = photos.image_set(size=SIZE, examples=24)
    assert images.labels.tolist() == [i % 11 for i in range(24)]
    assert images.classes == tuple(sorted(p.name for p in photos.PHOTOS))
    assert all(
        path.parent.name == images.classes[label] for path, label in zip(images.paths, images.labels, strict=True)
    )
    for path in images.paths:
        with Image.open(path) as image:
            assert (image.format, image.size, image.mode) == ("JPEG", (SIZE, SIZE), "RGB")


def test_the_same_bytes_come_again_and_a_longer_set_begins_with_the_shorter(monkeypatch, tmp_path):
    first = photos.image_set(size=SIZE, examples=12)
    longer = photos.image_set(size=SIZE, examples=23)
    monkeypatch.setenv("SPEEDPROOF_CACHE", str(tmp_path / "another"))
    again = photos.image_set(size=SIZE, examples=12)
    contents = [path.read_bytes() for path in first.paths]
    assert contents == [path.read_bytes() for path in again.paths]
    assert contents == [path.read_bytes() for path in longer.paths[:12]]
    assert len(set(contents)) == 12
    assert first.sha256 == again.sha256 != longer.sha256
    assert first.sha256 == hashlib.sha256(first.labels.tobytes() + b"".join(contents)).hexdigest()


def test_a_set_is_cut_once(monkeypatch):
    made = photos.image_set(size=SIZE, examples=11)
    monkeypatch.setattr(photos, "_cutter", None)
    assert photos.image_set(size=SIZE, examples=11).paths == made.paths


def test_a_package_that_is_not_there_is_named_with_the_line_that_installs_it():
    lost = photos.Photo(module="no_such_module", distribution="no-such", path="x.jpg")
    with pytest.raises(Unavailable, match=r"no-such.*pip install 'speedproof\[data\]'"):
        photos.photo_file(lost)


def test_a_file_that_lost_bytes_in_the_cache_is_named():
    damaged = photos.image_set(size=SIZE, examples=11).paths[4]
    os.truncate(damaged, 100)
    with pytest.raises(MeasurementError, match=f"{damaged}.*100 bytes.*data clean"):
        photos.image_set(size=SIZE, examples=11)


def test_zero_examples_are_refused():
    with pytest.raises(ConfigError, match="examples 0"):
        photos.image_set(size=SIZE, examples=0)


# --- the user's own ------------------------------------------------------------------------------------------------


def test_own_images_are_read_where_they_are_and_classes_take_turns(own):
    images = photos.image_set(size=SIZE, examples=None)
    assert images.classes == ("cat", "dog")
    assert images.labels.tolist() == [0, 1, 0, 1, 0]
    assert [str(p.relative_to(own)) for p in images.paths] == [
        "cat/a.jpg",
        "dog/a.jpeg",
        "cat/b.PNG",
        "dog/deeper/b.jpg",
        "cat/c.bmp",
    ]
    assert (images.folder, images.seconds) == (own, 0.0)
    assert images.bytes == sum(p.stat().st_size for p in images.paths)
    assert photos.image_set(size=SIZE, examples=2).labels.tolist() == [0, 1]


def test_a_changed_folder_is_another_set(own):
    before = photos.image_set(size=SIZE, examples=None).sha256
    assert photos.image_set(size=SIZE, examples=None).sha256 == before
    write_image(own / "cat" / "a.jpg", seed=77)
    assert photos.image_set(size=SIZE, examples=None).sha256 != before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda root: (root / "empty").mkdir(), "own/empty: holds no image"),
        (lambda root: (root / "cat" / "d.webp").write_bytes(b"x"), r"cat/d\.webp: not every framework reads \.webp"),
        (lambda root: (root / "cat" / "d.jpg").write_bytes(b"no image"), r"cat/d\.jpg: is not a readable image"),
        (lambda root: (root / "cat" / "d.jpg").write_bytes(b""), r"cat/d\.jpg: is not a readable image"),
        (lambda root: (root / "cat" / "d.jpg").symlink_to(root / "gone"), r"cat/d\.jpg: cannot be read"),
    ],
)
def test_what_cannot_be_used_is_named(own, change, message):
    change(own)
    with pytest.raises(ConfigError, match=message):
        photos.image_set(size=SIZE, examples=None)


@pytest.mark.parametrize("kind", ["missing", "empty", "a file"])
def test_a_folder_that_is_none_is_named(tmp_path, monkeypatch, kind):
    root = tmp_path / "own"
    if kind == "empty":
        root.mkdir()
    elif kind == "a file":
        root.write_text("x")
    monkeypatch.setenv(IMAGES, str(root))
    with pytest.raises(ConfigError, match=f"{root}: .*one subfolder a class"):
        photos.image_set(size=SIZE, examples=None)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_class_is_named(own):
    (own / "dog").chmod(0)
    try:
        with pytest.raises(ConfigError, match="dog: cannot be read"):
            photos.image_set(size=SIZE, examples=None)
    finally:
        (own / "dog").chmod(0o755)


# --- the cache -----------------------------------------------------------------------------------------------------


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    assert cache.cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("SPEEDPROOF_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.cache_folder() == tmp_path / "xdg" / "speedproof"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache.cache_folder() == tmp_path / "home" / ".cache" / "speedproof"


def test_a_cache_folder_that_cannot_be_made_is_unavailable(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPEEDPROOF_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(Unavailable, match="SPEEDPROOF_CACHE"):
        cache.cache_folder()


# --- pixels --------------------------------------------------------------------------------------------------------


def as_file(image: Image.Image, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def test_an_image_of_another_size_is_scaled_and_cut_to_its_centre():
    wide = np.zeros((20, 60, 3), np.uint8)
    wide[:, 20:40] = 200
    decoded = pixels.decode(as_file(Image.fromarray(wide)), 40)
    assert decoded.shape == (40, 40, 3)
    assert (decoded[:, 1:-1] == 200).all()  # at the cut, the scaling has mixed in what lies beside it


def test_grey_and_transparent_images_become_rgb():
    for mode in ("L", "RGBA", "P", "1"):
        assert pixels.decode(as_file(Image.new(mode, (8, 8))), 8).shape == (8, 8, 3)


def test_a_truncated_jpeg_is_named():
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    data = as_file(Image.fromarray(noise), "JPEG")
    with pytest.raises(MeasurementError, match=r"class/7\.jpg: is not a readable image"):
        pixels.decode(data[: len(data) // 2], 64, name="class/7.jpg")


def test_preprocessing_is_deterministic_and_survives_a_lossless_file():
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    prepared = pixels.prepare(noise)
    assert prepared.shape == noise.shape
    assert (prepared != noise).any()
    assert (prepared == pixels.prepare(noise)).all()
    assert (prepared == pixels.decode(pixels.encode_png(prepared), 64)).all()
