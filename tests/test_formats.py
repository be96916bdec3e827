"""Every format: equal pixels, made once and whole, and a name for what is damaged."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

import harness
from harness.data import cache, formats, photos, pixels
from harness.data.formats import base, lmdb, shards
from harness.errors import ConfigError, MeasurementError, Unavailable
from harness.spec import IMAGES

SIZE, EXAMPLES = 32, 150  # more than two chunks
SMALL: dict[str, Any] = {"size": SIZE, "examples": EXAMPLES}
BY_INDEX = ("files", "lmdb", "arrow", "lmdb_decoded", "npy", "ram")
SEQUENTIAL = ("tfrecord", "webdataset")
ON_DISK = tuple(name for name in formats.NAMES if name not in ("files", "ram"))
CHECKOUT = Path(harness.__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that holds every format."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPEEDPROOF_CACHE", str(folder))
        patch.delenv(IMAGES, raising=False)
        for name in formats.NAMES:
            formats.store(name, **SMALL)
    return folder


@pytest.fixture
def full(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPEEDPROOF_CACHE", str(made))
    monkeypatch.delenv(IMAGES, raising=False)
    return made


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPEEDPROOF_CACHE", str(tmp_path))
    monkeypatch.delenv(IMAGES, raising=False)
    return tmp_path


def pixels_of(stored: formats.StoredSet, index: int) -> np.ndarray:
    record = stored.read(index)
    return pixels.decode(record, stored.size) if isinstance(record, bytes) else record


def in_a_child(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), "SPEEDPROOF_CACHE": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


# --- equal content -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BY_INDEX)
def test_every_index_has_the_same_pixels_in_every_format(full, name):
    files, stored = formats.open_set("files", **SMALL), formats.open_set(name, **SMALL)
    assert len(stored) == EXAMPLES
    assert stored.labels.tolist() == files.labels.tolist()
    assert (stored.classes, stored.sha256) == (files.classes, files.sha256)
    for index in reversed(range(EXAMPLES)):
        wanted = pixels_of(files, index)
        found = pixels_of(stored, index)
        assert found.dtype == np.uint8
        assert np.array_equal(found, wanted)
    stored.close()


READ_SHARDS = """
import sys, warnings
warnings.simplefilter("ignore")
from pathlib import Path
from harness.data import formats
stored = formats.open_set(sys.argv[1], size={SIZE}, examples={EXAMPLES})
files = formats.open_set("files", size={SIZE}, examples={EXAMPLES})
found = []
for shard in stored.shards:
    if sys.argv[1] == "tfrecord":
        from tfrecord.reader import tfrecord_loader
        wanted = {"image/encoded": "byte", "image/class/label": "int"}
        for record in tfrecord_loader(str(shard), None, wanted):
            found.append((bytes(record["image/encoded"]), int(record["image/class/label"][0])))
    else:
        import webdataset
        for record in webdataset.WebDataset(str(shard), shardshuffle=False):
            found.append((record["jpg"], int(record["cls"])))
assert found == [(files.read(i), int(files.labels[i])) for i in range({EXAMPLES})], "differs"
print(len(stored.shards), len(found))
""".replace("{SIZE}", str(SIZE)).replace("{EXAMPLES}", str(EXAMPLES))


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("name", SEQUENTIAL)
def test_the_formats_own_library_reads_the_shards(full, name):
    """In a child: these libraries import PyTorch."""
    done = in_a_child(f"import sys; sys.argv = ['', {name!r}]\n{READ_SHARDS}", full)
    assert (done.returncode, done.stdout.split()) == (0, ["8", str(EXAMPLES)]), done.stderr


READ_TFRECORDS = """
import tensorflow as tf
from harness.data import formats
stored = formats.open_set("tfrecord", size={SIZE}, examples={EXAMPLES})
files = formats.open_set("files", size={SIZE}, examples={EXAMPLES})
what = {"image/encoded": tf.io.FixedLenFeature([], tf.string), "image/class/label": tf.io.FixedLenFeature([], tf.int64)}
records = tf.data.TFRecordDataset([str(s) for s in stored.shards]).map(lambda r: tf.io.parse_single_example(r, what))
found = [(r["image/encoded"], int(r["image/class/label"])) for r in records.as_numpy_iterator()]
assert found == [(files.read(i), int(files.labels[i])) for i in range({EXAMPLES})], "differs"
""".replace("{SIZE}", str(SIZE)).replace("{EXAMPLES}", str(EXAMPLES))


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_tensorflow_reads_the_tfrecords(full):
    done = in_a_child(READ_TFRECORDS, full)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("label", [0, 1, 127, 128, 10**6, 2**62])
def test_a_message_holds_any_label(label):
    message = shards.example(b"image", label)
    assert message == shards.example(b"image", label)
    assert len({shards.example(b"image", other) for other in (label, label + 1)}) == 2


def test_prepared_images_are_stored_as_lossless_files(full):
    source = formats.open_set("files", **SMALL)
    prepared = formats.open_set("files", **SMALL, sample="prepared")
    assert prepared.files != source.files
    for index in (0, 77, EXAMPLES - 1):
        wanted = pixels.prepare(pixels_of(source, index))
        assert np.array_equal(pixels_of(prepared, index), wanted)
    with pytest.raises(ConfigError, match="take format 'files'"):
        formats.open_set("npy", **SMALL, sample="prepared")


def test_own_images_of_any_size_have_equal_pixels_in_every_format(empty, tmp_path, monkeypatch):
    from PIL import Image

    for index, shape in enumerate(((40, 70, 3), (200, 33, 3), (32, 32, 3))):
        file = tmp_path / "own" / f"class{index % 2}" / f"{index}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(index).integers(0, 256, shape, np.uint8)).save(file)
    monkeypatch.setenv(IMAGES, str(tmp_path / "own"))
    sets = {name: formats.open_set(name, size=SIZE, examples=None) for name in BY_INDEX}
    for index in range(3):
        found = {name: pixels_of(stored, index).tobytes() for name, stored in sets.items()}
        assert len(set(found.values())) == 1
    source = formats.store("files", size=SIZE, examples=None)
    assert (source.examples, source.seconds) == (3, 0.0)


# --- access --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SEQUENTIAL)
def test_a_sequential_format_is_eight_shards_and_has_no_index(full, name):
    stored = formats.open_set(name, **SMALL)
    assert (len(stored.shards), stored.shards) == (8, stored.files)
    with pytest.raises(ConfigError, match="shards"):
        stored.read(0)


def test_the_files_of_a_set_are_what_a_pass_reads(full):
    for name in ON_DISK:
        stored, manifest = formats.open_set(name, **SMALL), formats.store(name, **SMALL)
        assert sum(file.stat().st_size for file in stored.files) == manifest.bytes
    assert formats.open_set("ram", **SMALL).files == ()
    assert formats.store("ram", **SMALL).bytes == EXAMPLES * SIZE * SIZE * 3


@pytest.mark.parametrize("name", BY_INDEX)
def test_a_set_that_is_open_can_be_pickled(full, name):
    stored = formats.open_set(name, **SMALL)
    wanted = pixels_of(stored, 3).tobytes()
    stored.close()
    assert pixels_of(pickle.loads(pickle.dumps(stored)), 3).tobytes() == wanted


FORKED = f"""
import os
from harness.data import formats
for name in {BY_INDEX!r}:
    stored = formats.open_set(name, size={SIZE}, examples={EXAMPLES})
    def first(): return bytes(stored.read(5)), bytes(stored.read({EXAMPLES - 1}))
    wanted = first()
    children = []
    for _ in range(2):
        child = os.fork()
        if not child:
            os._exit(0 if first() == wanted else 1)
        children.append(child)
    assert [os.waitpid(c, 0)[1] for c in children] == [0, 0], name
    assert first() == wanted, name
    stored.close()
    assert first() == wanted, name
"""


def test_forked_processes_read_a_set_that_their_parent_has_open(full):
    done = in_a_child(FORKED, full)
    assert done.returncode == 0, done.stdout + done.stderr


def test_unknown_names_are_told(empty):
    with pytest.raises(ConfigError, match="Did you mean 'lmdb'"):
        formats.store("lmbd", **SMALL)
    with pytest.raises(ConfigError, match="sample"):
        formats.store("lmdb", **SMALL, sample="raw")


def test_a_missing_library_is_named_with_the_line_that_installs_it():
    with pytest.raises(Unavailable, match=r"no_such_library.*pip install 'speedproof\[data\]'"):
        base.load("no_such_library")


# --- making --------------------------------------------------------------------------------------------------------


def test_a_set_is_made_once_and_its_manifest_says_what_it_took(full):
    before = {path: path.stat().st_mtime_ns for path in full.rglob("*") if path.is_file()}
    first = formats.store("lmdb", **SMALL)
    assert formats.store("lmdb", **SMALL) == first
    assert first.seconds > 0
    assert first.sha256 == formats.store("npy", **SMALL).sha256 == formats.store("files", **SMALL).sha256
    changed = {p for p, time in before.items() if p.stat().st_mtime_ns != time}
    assert {p.suffix for p in changed} <= {cache.LOCK}
    versions = json.loads((formats.open_set("lmdb", **SMALL).folder / cache.MANIFEST).read_text())["versions"]
    assert set(versions) == {"lmdb", "numpy", "pillow"}


def test_nothing_is_left_beside_what_was_made(full):
    assert not list(full.rglob(f"*{cache.PART}"))
    arrow = formats.open_set("arrow", **SMALL)
    assert {file.suffix for file in arrow.files} == {".arrow", ".json"}


@pytest.mark.parametrize("name", ON_DISK)
def test_progress_counts_every_image_once(empty, name):
    done: list[int] = []
    formats.store(name, **SMALL, report=done.append)
    assert sum(done) == EXAMPLES


INTERRUPTED = """
import os, signal
from harness.data import formats
done = 0
def report(n):
    global done
    done += n
    if done >= 100: os.kill(os.getpid(), signal.SIGKILL)
formats.store({name!r}, size={size}, examples={examples}, report=report)
"""


@pytest.mark.parametrize("name", ON_DISK)
def test_a_killed_conversion_leaves_no_set_and_goes_on_or_starts_again(empty, monkeypatch, name):
    photos.image_set(**SMALL)
    done = in_a_child(INTERRUPTED.format(name=name, **SMALL), empty)
    assert done.returncode == -9, done.stderr
    assert [f.name for f in (empty / "sets").glob("*") if f.suffix not in (cache.PART, cache.LOCK)] == []
    told: list[int] = []
    formats.store(name, **SMALL, report=told.append)
    resumes = name in ("lmdb", "lmdb_decoded", "npy")
    assert (told[0] == 128) is resumes  # two whole chunks were there
    assert sum(told) == EXAMPLES
    if name in BY_INDEX:
        files, stored = formats.open_set("files", **SMALL), formats.open_set(name, **SMALL)
        for index in range(EXAMPLES):
            assert np.array_equal(pixels_of(stored, index), pixels_of(files, index))
        stored.close()


def test_what_was_begun_before_a_restart_of_the_machine_is_not_gone_on_with(empty, monkeypatch):
    photos.image_set(**SMALL)
    in_a_child(INTERRUPTED.format(name="npy", **SMALL), empty)
    monkeypatch.setattr(cache, "_boot", lambda: "another boot")
    told: list[int] = []
    formats.store("npy", **SMALL, report=told.append)
    assert told[0] == 0


@pytest.mark.parametrize("name", ["lmdb", "lmdb_decoded"])
def test_a_map_that_is_too_small_grows(empty, monkeypatch, name):
    monkeypatch.setattr(lmdb, "map_size", lambda _: 64 << 10)
    formats.store(name, **SMALL)
    stored = formats.open_set(name, **SMALL)
    assert stored.files[0].stat().st_size > 64 << 10
    assert len(stored.read(EXAMPLES - 1)) > 0
    stored.close()


def test_the_first_map_size_suffices(empty, monkeypatch):
    monkeypatch.setattr(lmdb, "_put", _refuse_growth(lmdb._put))
    formats.store("lmdb", **SMALL)
    formats.store("lmdb_decoded", **SMALL)


def _refuse_growth(put):
    def checked(environment, records):
        before = environment.info()["map_size"]
        put(environment, records)
        assert environment.info()["map_size"] == before

    return checked


FULL_DISK = """
import errno, resource
from harness.data import formats
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    formats.store({name!r}, size={size}, examples={examples})
except OSError as error:
    assert error.errno in (errno.EFBIG, errno.EIO), error
    print(error.filename)
"""


@pytest.mark.parametrize("name", ON_DISK)
def test_a_disk_that_takes_no_more_is_an_error_that_names_the_folder(empty, name):
    """A limit on a file's length stands for it: the write fails in the same place, with another number."""
    photos.image_set(**SMALL)
    done = in_a_child(FULL_DISK.format(name=name, **SMALL), empty)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).parent == empty / "sets"
    assert [f for f in (empty / "sets").iterdir() if f.suffix != cache.LOCK] == []


def test_a_set_that_does_not_fit_the_memory_is_unavailable(full, monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    with pytest.raises(Unavailable, match="1,000 are free"):
        formats.open_set("ram", **SMALL)


# --- damage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ON_DISK)
def test_a_file_that_lost_its_end_is_named(empty, name):
    formats.store(name, **SMALL)
    file = max(formats.open_set(name, **SMALL).files, key=lambda f: f.stat().st_size)
    os.truncate(file, file.stat().st_size - 100)
    with pytest.raises(MeasurementError, match=f"{file}: damaged.*data clean"):
        formats.open_set(name, **SMALL)
    with pytest.raises(MeasurementError, match=str(file)):
        formats.store(name, **SMALL)


@pytest.mark.parametrize("name", ["lmdb", "lmdb_decoded", "npy", "arrow"])
def test_a_file_whose_head_was_overwritten_is_named(empty, name):
    formats.store(name, **SMALL)
    stored = formats.open_set(name, **SMALL)
    file = max(stored.files, key=lambda f: f.stat().st_size)
    with open(file, "r+b") as damaged:
        damaged.write(b"\0" * 8192)
    with pytest.raises(MeasurementError, match=str(stored.folder)):
        stored.read(0)


def test_an_lmdb_whose_records_changed_is_named(empty):
    import lmdb as library

    formats.store("lmdb", **SMALL)
    stored = formats.open_set("lmdb", **SMALL)
    with (
        library.open(str(stored.files[0]), subdir=False, lock=False) as environment,
        environment.begin(write=True) as t,
    ):
        t.put(lmdb.key(3), (999).to_bytes(8, "little") + b"x")
        t.delete(lmdb.key(4))
        t.put(lmdb.key(EXAMPLES), b"one more")
    with pytest.raises(MeasurementError, match=f"{stored.files[0]}.*record 3 does not have the source's label"):
        stored.read(3)
    with pytest.raises(MeasurementError, match="record 4 is missing"):
        stored.read(4)
    stored.close()


@pytest.mark.parametrize("name", ["lmdb_decoded", "npy", "ram"])
def test_a_corrupt_image_of_the_source_is_named_by_what_decodes_it(empty, tmp_path, monkeypatch, name):
    from PIL import Image

    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    for index in range(3):
        file = tmp_path / "own" / "class" / f"{index}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise).save(file)
    file.write_bytes(file.read_bytes()[:1500])  # its head is whole
    monkeypatch.setenv(IMAGES, str(tmp_path / "own"))
    with pytest.raises(MeasurementError, match=f"{file}: is not a readable image"):
        formats.store(name, size=SIZE, examples=None)


def test_a_file_of_the_source_that_is_gone_is_named(empty):
    stored = formats.open_set("files", **SMALL)
    stored.files[9].unlink()
    with pytest.raises(MeasurementError, match=str(stored.files[9])):
        stored.read(9)
