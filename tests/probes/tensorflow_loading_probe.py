"""What the tf.data pipelines do, as JSON on stdout: run by tests/test_tensorflow_loading.py in a process of its own.

``python tensorflow_loading_probe.py QUESTION…``; the cache folder is that of SPEEDPROOF_CACHE.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from PIL import Image

from harness import techniques, workloads
from harness.backends import tensorflow_backend as backend
from harness.backends.tensorflow_loading import KerasLoading
from harness.backends.tensorflow_step import Step, build_optimizer, compile_model, keras, tf
from harness.data import formats, page_cache, photos, pixels
from harness.measure import loading as measure
from harness.spec import IMAGES, Cell, Framework, Mode

SIZE, BATCH, N = 64, 8, 40
ENCODED = ("files", "tfrecord", "lmdb", "webdataset", "arrow")
LEVELS = ("serial", "parallel", "prefetch", "autotune")


def cell(mode: Mode = Mode.LOADING, **sets: str) -> Cell:
    toggles = {name: toggle.default for name, toggle in techniques.TOGGLES.items()}
    return Cell(
        study="test",
        mode=mode,
        comparison="test/tensorflow/cnn_photos",
        arm="arm",
        framework=Framework.TENSORFLOW,
        workload="cnn_photos",
        size=SIZE,
        toggles={**toggles, "device": "cpu", "batch": str(BATCH), "format": "files", **sets},
    )


def opened(asked: Cell, *, n: int | None = N, seed: int = 3) -> KerasLoading:
    assert backend.unavailable(asked) is None
    return backend.open_loading(asked, seed=seed, examples=n)


def noting(loading: KerasLoading, note: Callable[[Any], None]) -> Any:
    """Have ``note`` see every batch as it is delivered, and ``None`` at the end of a pass."""
    real = loading._next

    def seen() -> Any:
        batch = real()
        note(batch)
        return batch

    return mock.patch.object(loading, "_next", seen)


def passes(loading: KerasLoading, count: int = 1) -> list[list[list[Any]]]:
    """Label and hash of each image, as they are delivered in one timed block of so many passes."""
    delivered: list[list[list[Any]]] = [[]]

    def note(batch: Any) -> None:
        if batch is None:
            delivered.append([])
            return
        images, labels = (part.numpy() for part in batch)
        assert images.shape == (BATCH, SIZE, SIZE, 3)
        assert (images.dtype, labels.dtype) == (np.uint8, np.int64)
        delivered[-1] += [[int(label), digest(image)] for image, label in zip(images, labels, strict=True)]

    with noting(loading, note):
        measure.timed_passes(loading, time.perf_counter, count)
    return delivered[:-1]


def digest(image: Any) -> str:
    return hashlib.md5(image.tobytes()).hexdigest()


def source(change: Callable[[Any], Any] = lambda image: image) -> list[list[Any]]:
    """Label and hash of each image as Pillow decodes it, sorted."""
    images = photos.image_set(size=SIZE, examples=N)
    decoded = (change(pixels.decode(path.read_bytes(), SIZE)) for path in images.paths)
    return sorted([int(label), digest(image)] for label, image in zip(images.labels, decoded, strict=True))


def delivery() -> dict[str, Any]:
    """Two passes of each format in one block, and what Pillow makes of the same images."""
    found: dict[str, Any] = {"source": source()}
    for name in formats.NAMES:
        loading = opened(cell(format=name))
        found[name] = {"passes": passes(loading, 2), "observed": dataclasses.asdict(loading.observe())}
    found["other_framework"] = "torch" in sys.modules
    return found


def orders() -> dict[str, Any]:
    """Two passes of a serial pipeline, each a block of its own, under one seed twice and under another."""
    found = {}
    for name in ("files", "tfrecord", "webdataset", "lmdb", "npy"):
        for run, seed in (("once", 3), ("again", 3), ("other", 4)):
            loading = opened(cell(format=name, tfdata="serial"), seed=seed)
            found[f"{name}-{run}"] = [passes(loading)[0] for _ in range(2)]
    return found


class Calls:
    """A costly preparation that counts how many of it run, and ran at once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.made = self.now = self.most = 0

    def __call__(self, image: Any) -> Any:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.003)
        with self.lock:
            self.now -= 1
            self.made += 1
        return image


def levels() -> dict[str, Any]:
    """How many images a level works on at a time, and how many it has made when the first batch is delivered."""
    found = {}
    for name in ("files", "tfrecord", "lmdb"):
        for level in LEVELS:
            calls, ahead = Calls(), list[int]()

            def note(_batch: Any, calls: Calls = calls, ahead: list[int] = ahead) -> None:
                if not ahead:
                    time.sleep(0.1)
                    ahead.append(calls.made)

            with mock.patch.object(pixels, "prepare", calls):
                loading = opened(cell(format=name, tfdata=level, sample="prepare"))
            with noting(loading, note):
                measure.timed_passes(loading, time.perf_counter, 1)
            found[f"{name}-{level}"] = [calls.most, ahead[0], calls.made, loading.observe().workers]
    return found


def gate() -> dict[str, Any]:
    """The share of a cold set that is cached: as it begins, some time after opening, and after the pass."""
    found = {}
    for name in (n for n in formats.NAMES if n != "ram"):
        loading = opened(cell(format=name, page_cache="cold"))
        files = loading._stored.files
        shares = []
        for _ in range(2):  # the second would fail if the first's pages were still mapped
            loading.ready()
            loading.open()
            time.sleep(0.1)
            before = page_cache.cached_share(files)
            loading.run(1)
            loading.close()
            shares.append([loading.observe().cached, before, page_cache.cached_share(files)])
        found[name] = shares
    return found


def close() -> dict[str, Any]:
    """What still happens after a block was broken off amid a pass: bytes read, and seconds of the processor."""
    found = {}
    for name in formats.NAMES:
        loading = opened(cell(format=name, sample="prepare" if name in ENCODED else "decode"))
        loading.ready()
        loading.open()
        loading._next()
        loading.close()
        page_cache.evict(loading._stored.files)
        share, busy = page_cache.cached_share(loading._stored.files), time.process_time()
        time.sleep(0.2)
        later = page_cache.cached_share(loading._stored.files)
        found[name] = {"busy_s": time.process_time() - busy, "read": later - share}
    return found


def cache() -> dict[str, Any]:
    """Three blocks of a pipeline that keeps decoded images, with the cache folder's files gone after the first."""
    found: dict[str, Any] = {"source": source()}
    for name in ("files", "tfrecord"):
        loading = opened(cell(format=name, tfdata="cache"))
        made, cached = [], []
        for _ in range(3):
            made += passes(loading)
            cached.append(loading.observe().cached)
        found[name] = {"passes": made, "cached": cached}
    return found


def samples() -> dict[str, Any]:
    """What is delivered when images are prepared, stored prepared, or changed at random."""
    found: dict[str, Any] = {"source": source(pixels.prepare), "plain": source()}
    for level in ("prepare", "prepared"):
        found[level] = passes(opened(cell(sample=level)))[0]
    found["augment"] = passes(opened(cell(sample="augment", tfdata="serial")), 2)
    found["augment-again"] = passes(opened(cell(sample="augment", tfdata="serial")), 2)
    for name in ("files", "tfrecord"):
        loading = opened(cell(format=name, storage_latency="5ms", tfdata="serial"))
        found[f"{name}-slow"] = measure.timed_passes(loading, time.perf_counter, 1).seconds
    return found


def end_to_end() -> dict[str, Any]:
    """Two passes that train, against Keras' fit over the same batches."""
    loading = opened(cell(Mode.END_TO_END, tfdata="serial"))
    batches: list[Any] = []
    with noting(loading, batches.append):
        timed = measure.timed_passes(loading, time.perf_counter, 2)
    training = loading._training
    assert training is not None
    workload = workloads.load("cnn_photos")
    keras.utils.set_random_seed(3)
    classes = len(loading._stored.classes)
    model = workloads.part("cnn_photos", Framework.TENSORFLOW).build(workload, SIZE, classes)
    before = [v.numpy() for v in model.trainable_variables]
    compile_model(model, build_optimizer(workload.optimizer), Step())
    given = [batch for batch in batches if batch is not None]
    x, y = (np.concatenate([batch[part].numpy() for batch in given]) for part in (0, 1))
    model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH), epochs=1, shuffle=False, verbose=0)
    weights = list(zip(model.trainable_variables, training.model.trainable_variables, before, strict=True))
    return {
        "batches": len(given),
        "same": all(np.array_equal(v, w) for v, w, _ in weights),
        "moved": not any(np.array_equal(v, b) for v, _, b in weights),
        "wait": [timed.wait_s, timed.seconds],
        "trace_s": loading.trace_s,
        "traces": training._step.experimental_get_tracing_count(),
        "observed": dataclasses.asdict(loading.observe()),
        "memory": dataclasses.asdict(loading.memory()),
    }


def own(folder: Path) -> Any:
    """Have the user's own images in ``folder``: as many as of the others, of three kinds and several sizes."""
    rng = np.random.default_rng(0)
    for i in range(N):
        place = folder / f"class{i % 2}"
        place.mkdir(exist_ok=True)
        shape = (SIZE, SIZE, 3) if i % 4 else (SIZE + 3 * i, SIZE + i, 3)
        image = Image.fromarray(rng.integers(0, 256, shape, np.uint8))
        kind, mode = (("jpg", "RGB"), ("png", "RGB"), ("bmp", "RGB"), ("jpg", "L"))[i // 2 % 4]
        image.convert(mode).save(place / f"{i:03d}.{kind}")
    return mock.patch.dict(os.environ, {IMAGES: str(folder)})


def scaled() -> dict[str, Any]:
    """Images of several kinds and sizes as they are delivered, and as Pillow decodes and scales them."""
    with tempfile.TemporaryDirectory() as folder, own(Path(folder)):
        return {"source": source(), **{f: sorted(passes(opened(cell(format=f)))[0]) for f in ("files", "tfrecord")}}


def failure(act: Callable[[], Any]) -> list[str]:
    try:
        act()
    except Exception as error:  # whatever it is, is the question
        return [type(error).__name__, str(error)]
    return ["nothing", ""]


def broken() -> dict[str, Any]:
    """The error that a pass ends with when a file was damaged or lost after the set had been opened."""

    def told(asked: Cell, which: int, harm: Callable[[Path], Any], n: int = N) -> list[str]:
        loading = opened(asked, n=n)
        file = loading._stored.files[which]
        loading.ready()
        loading.open()
        harm(file)
        return [*failure(lambda: loading.run(1)), str(file)]

    def cut(file: Path) -> None:
        os.truncate(file, file.stat().st_size // 2)

    found = {}
    with tempfile.TemporaryDirectory() as folder, own(Path(folder)):
        found["files"] = told(cell(), 4, cut)
    with tempfile.TemporaryDirectory() as folder, own(Path(folder)):
        found["lost"] = told(cell(), 5, Path.unlink)
    for name in ("tfrecord", "webdataset"):
        found[name] = told(cell(format=name), 3, cut)
    # A shard that ends where a record may end: nothing but the count of the batches tells.
    kind, text, file = told(cell(format="tfrecord"), 3, lambda file: file.write_bytes(b""), n=24)
    found["empty"] = [kind, text, str(Path(file).parent)]
    return found


def unavailable() -> dict[str, Any]:
    """Why levels cannot run."""
    asked: dict[str, dict[str, str]] = {
        "workers": {"workers": "double"},
        "persistent": {"persistent": "off"},
        "prefetch": {"prefetch": "4"},
        "pin_memory": {"pin_memory": "on"},
        "torchvision": {"decoder": "torchvision"},
        "dali": {"decoder": "dali"},
        "augment-npy": {"sample": "augment", "format": "npy"},
        "latency-lmdb": {"storage_latency": "5ms", "format": "lmdb"},
        "cache-lmdb": {"tfdata": "cache", "format": "lmdb"},
    }
    return {name: backend.unavailable(cell(Mode.LOADING, **sets)) for name, sets in asked.items()}


def stored() -> dict[str, Any]:
    """What storing says."""
    return {name: dataclasses.asdict(backend.store(cell(format=name), N)) for name in ("files", "npy")}


QUESTIONS: dict[str, Callable[[], Any]] = {
    f.__name__: f
    for f in (
        delivery,
        orders,
        levels,
        gate,
        close,
        cache,
        samples,
        end_to_end,
        scaled,
        broken,
        unavailable,
        stored,
    )
}


def attempt(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Exception:  # the test that asked shows it
        return {"raised": traceback.format_exc()}


if __name__ == "__main__":
    backend.configure(2)
    print(json.dumps({name: attempt(QUESTIONS[name]) for name in sys.argv[1:]}))  # noqa: T201 - the report
