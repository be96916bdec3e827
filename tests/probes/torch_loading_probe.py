"""What the PyTorch loaders do, as JSON on stdout: run by tests/test_torch_loading.py in a process of its own.

``python torch_loading_probe.py QUESTION…``; the cache folder is that of SPEEDPROOF_CACHE.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import psutil
import torch  # noqa: TID251 - this process runs PyTorch and nothing else
from PIL import Image

from harness import techniques
from harness.backends import torch_backend as backend
from harness.backends.torch_loading import TorchLoading
from harness.data import formats, page_cache
from harness.measure import loading as measure
from harness.spec import Cell, Framework, Mode

DALI = ("dali",) if importlib.util.find_spec("nvidia") and importlib.util.find_spec("nvidia.dali") else ()
DECODERS = ("torchvision", *DALI)
SIZE, BATCH, N = 64, 8, 40  # 8 shards of 5: two workers with 20 each end on 4, which together are the fifth batch


def cell(mode: Mode = Mode.LOADING, **sets: str) -> Cell:
    toggles = {name: toggle.default for name, toggle in techniques.TOGGLES.items()}
    return Cell(
        study="test",
        mode=mode,
        comparison="test/torch/cnn_photos",
        arm="arm",
        framework=Framework.TORCH,
        workload="cnn_photos",
        size=SIZE,
        toggles={**toggles, "device": "cpu", "batch": str(BATCH), "format": "files", **sets},
    )


def opened(asked: Cell, *, n: int | None = N, seed: int = 3) -> TorchLoading:
    assert backend.unavailable(asked) is None
    return backend.open_loading(asked, seed=seed, examples=n)


def delivered_by(loading: TorchLoading) -> Callable[[], Any]:
    """A pass, to be made where its error is caught."""
    return lambda: list(passes(loading))


def passes(loading: TorchLoading, count: int = 1) -> Iterator[list[list[Any]]]:
    """Label and hash of each image, as they are delivered in one timed block of so many passes."""
    delivered: list[list[list[Any]]] = []
    real = loading._loader.batches

    def noting(number: int) -> Iterator[Any]:
        delivered.append([])
        for batch in real(number):
            assert batch.images.shape == (BATCH, SIZE, SIZE, 3)
            assert batch.images.is_contiguous()
            assert (batch.images.dtype, batch.labels.dtype) == (torch.uint8, torch.int64)
            for image, label in zip(batch.images, batch.labels.tolist(), strict=True):
                delivered[-1].append([label, hashlib.md5(image.numpy().tobytes()).hexdigest()])
            yield batch

    with mock.patch.object(loading._loader, "batches", noting):
        loading.ready()
        loading.open()
        loading.run(count)
        loading.close()
    yield from delivered


def delivery() -> dict[str, Any]:
    """Two passes of every format and decoder, and what is observed of the second."""
    found = {}
    for name in (*formats.NAMES, *DECODERS):
        asked = cell(format=name) if name in formats.NAMES else cell(decoder=name)
        loading = opened(asked)
        first, second = passes(loading, 2)
        observed = loading.observe()
        measure.check_level(asked, observed, loading.items_per_step)
        found[name] = {"passes": [first, second], "observed": dataclasses.asdict(observed)}
    return found


def orders() -> dict[str, list[str]]:
    """The order of two passes, by format and seed; twice."""
    found = {}
    for name in ("files", "tfrecord", "webdataset"):
        for run, seed in (("once", 3), ("again", 3), ("other", 4)):
            loading = opened(cell(format=name), seed=seed)
            found[f"{name}-{run}"] = [hashlib.md5(str(pass_).encode()).hexdigest() for pass_ in passes(loading, 2)]
    return found


def rest() -> dict[str, int]:
    """Images of a pass over 37 examples, of which 5 fill no batch."""
    return {f: sum(map(len, passes(opened(cell(format=f), n=37)))) for f in ("files", "tfrecord", "webdataset")}


def gate() -> dict[str, Any]:
    """What was read when the loader is open and the clock has not started, and after the pass."""
    found: dict[str, Any] = {}
    levels: dict[str, dict[str, str]] = {
        "none": {"workers": "none"},
        "cores": {},
        "tfrecord": {"format": "tfrecord"},
        "webdataset": {"format": "webdataset"},
        **{name: {"decoder": name} for name in DALI},
    }
    for name, sets in levels.items():
        loading = opened(cell(Mode.LOADING, page_cache="cold", **sets))
        loading.ready()
        loading.open()
        time.sleep(0.1)
        before = page_cache.cached_share(loading._stored.files)
        loading.run(1)
        after = page_cache.cached_share(loading._stored.files)
        loading.close()
        found[name] = {"before": before, "after": after, "observed": loading.observe().cached}
    return found


def _left() -> dict[str, int]:
    return {"processes": len(psutil.Process().children()), "threads": threading.active_count()}


def scaled() -> dict[str, float]:
    """How far decoders are from Pillow, in mean steps of 255, on images that they must scale and cut."""
    folder = Path(os.environ["SPEEDPROOF_CACHE"]) / "large" / "only"
    folder.mkdir(parents=True)
    ramp = np.linspace(0, 255, 100 * 150 * 3).astype(np.uint8).reshape(100, 150, 3)
    for i in range(BATCH):
        Image.fromarray(ramp).save(folder / f"{i}.jpg", quality=95)
    images = {}
    with mock.patch.dict(os.environ, {"SPEEDPROOF_IMAGES": str(folder.parent)}):
        for name in ("native", *DECODERS):
            loading = opened(cell(decoder=name), n=None)
            loading._loader.start(0)
            images[name] = next(loading._loader.batches(0)).images.double()
            loading.close()
    return {name: float((found - images["native"]).abs().mean()) for name, found in images.items()}


def in_memory() -> list[int]:
    """Images of passes over the set in memory, in which nothing may be decoded any more."""
    found = []
    for level in ("none", "cores"):
        loading = opened(cell(format="ram", workers=level))
        with mock.patch("harness.data.pixels.decode", side_effect=AssertionError("decoded again")):
            found += [len(images) for images in (*passes(loading), *passes(loading))]
    return found


def close() -> dict[str, Any]:
    """What a closed loader leaves, whatever happened to it before."""
    found: dict[str, Any] = {}
    before = _left()
    levels: dict[str, dict[str, str]] = {"cores": {}, "off": {"persistent": "off"}, "npy": {"format": "npy"}}
    for name, sets in levels.items():
        loading = opened(cell(Mode.LOADING, **sets))
        for run in (0, 2):
            loading.ready()
            loading.open()
            while_open = _left()["processes"]
            if run:
                loading.run(run)
            started = time.perf_counter()
            loading.close()
            found[f"{name}-{run}"] = {
                "while_open": while_open,
                "left": _left() == before,
                "seconds": time.perf_counter() - started,
            }
    for name in DALI:
        threads = psutil.Process().num_threads()
        loading = opened(cell(decoder=name))
        list(passes(loading))
        found[name] = {"while_open": 2, "left": psutil.Process().num_threads() <= threads, "seconds": 0.0}
    return found


def _raised(action: Callable[[], Any]) -> list[str]:
    try:
        action()
    except Exception as error:  # its type and text are the answer
        return [type(error).__name__, str(error)]
    return []


def broken() -> dict[str, Any]:
    """What is said of a damaged file, and of a worker that was killed; each by workers and in this process."""
    found: dict[str, Any] = {}
    levels: dict[str, dict[str, str]] = {
        "cores": {},
        "none": {"workers": "none"},
        **{name: {"decoder": name} for name in DECODERS},
    }
    folder = Path(os.environ["SPEEDPROOF_CACHE"]) / "own"
    source = formats.open_set("files", size=SIZE, examples=N)
    for i, path in enumerate(source.files[:40]):
        kind = folder / f"class{source.labels[i] % 2}"
        kind.mkdir(parents=True, exist_ok=True)
        (kind / f"{i:03d}.jpg").write_bytes(path.read_bytes()[: 900 if i == 17 else None])
    with mock.patch.dict(os.environ, {"SPEEDPROOF_IMAGES": str(folder)}):
        for name, sets in levels.items():
            loading = opened(cell(Mode.LOADING, **sets), n=None)
            found[name] = _raised(delivered_by(loading))
            loading.close()
    for name in ("tfrecord", "webdataset"):
        loading = opened(cell(format=name))
        shard = loading._stored.shards[5]
        data = shard.read_bytes()
        shard.write_bytes(data[: len(data) // 2])
        found[name] = _raised(delivered_by(loading))
        loading.close()
        shard.write_bytes(data)
        found[f"{name}-shard"] = str(shard)
    loading = opened(cell())
    loading.ready()
    loading.open()
    found["killed"] = _raised(lambda: _run_without_a_worker(loading))
    loading.close()
    small = SimpleNamespace(f_bavail=100, f_frsize=4096)
    with mock.patch.object(os, "statvfs", return_value=small):
        found["shared_memory"] = _raised(loading.open)
    loading.close()
    found["left"] = len(multiprocessing.active_children())
    return found


def _run_without_a_worker(loading: TorchLoading) -> None:
    os.kill(_pids()[0], signal.SIGKILL)
    loading.run(1)


def toggles() -> dict[str, Any]:
    """What each level of a toggle changes."""
    found: dict[str, Any] = {"workers": {}, "pids": {}, "prefetch": {}, "seconds": {}, "samples": {}}
    for level in ("none", "one", "cores", "double", "quadruple"):
        loading = opened(cell(workers=level))
        list(passes(loading))
        found["workers"][level] = loading.observe().workers
    for level in ("on", "off"):
        loading = opened(cell(persistent=level))
        pids: list[list[int]] = []
        found["pids"][level] = pids
        with mock.patch.object(loading._loader, "workers", side_effect=partial(_note_pids, pids)):
            list(passes(loading, 2))
    for level in ("1", "2", "8"):
        loading = opened(cell(prefetch=level))
        loading.open()
        loader: Any = loading._loader
        found["prefetch"][level] = loader._loader.prefetch_factor
        loading.close()
    for name in ("files", "lmdb", "tfrecord"):
        loading = opened(cell(storage_latency="5ms", format=name, workers="none"))
        found["seconds"][name] = measure.timed_passes(loading, time.perf_counter, 1).seconds
    for level in ("decode", "augment", "prepare", "prepared"):
        random = torch.get_rng_state()
        found["samples"][level] = [next(passes(opened(cell(sample=level, workers=w)))) for w in ("cores", "none")]
        assert torch.equal(random, torch.get_rng_state())  # the training's random stream is left alone
    return found


def _note_pids(seen: list[list[int]]) -> int:
    seen.append(_pids())
    return len(seen[-1])


def _pids() -> list[int]:
    return sorted(child.pid or 0 for child in multiprocessing.active_children())


def unavailable() -> dict[str, str | None]:
    """Why a level does not run here."""
    asked = {
        "half": cell(workers="half"),
        "cores": cell(),
        "pinned": cell(pin_memory="on"),
        "tfdata": cell(tfdata="serial"),
        "dali-packed": cell(decoder="dali", format="lmdb"),
        "dali-none": cell(decoder="dali", workers="none"),
        "dali": cell(decoder="dali"),
        "persistent": cell(persistent="off", workers="none"),
        "sharded": cell(format="tfrecord", workers="quadruple"),
    }
    found = {name: backend.unavailable(c) for name, c in asked.items()}
    torch.set_num_threads(3)
    found["too_few_shards"] = backend.unavailable(cell(format="webdataset", workers="quadruple"))
    torch.set_num_threads(1)
    found["one_core"] = backend.unavailable(cell())
    found["one_core-one"] = backend.unavailable(cell(workers="one"))
    torch.set_num_threads(2)
    return found


def end_to_end() -> dict[str, Any]:
    """What training on the batches does."""
    found: dict[str, Any] = {}
    for name, decoder in {"pillow": "native", **dict(zip(DALI, DALI, strict=True))}.items():
        loading = opened(cell(Mode.END_TO_END, decoder=decoder))
        training = loading._training
        assert training is not None
        before = [p.detach().clone() for p in training.model.parameters()]
        seen: list[torch.Tensor] = []
        hook = training.model[1].register_forward_pre_hook(lambda _, inputs, seen=seen: seen.append(inputs[0].detach()))
        block = measure.timed_passes(loading, time.perf_counter, 2)
        hook.remove()
        loading.reset_memory()
        memory = loading.memory()
        found[name] = {
            "observed": dataclasses.asdict(loading.observe()),
            "learned": all(not torch.equal(a, b) for a, b in zip(before, training.model.parameters(), strict=True)),
            "finite": all(math.isfinite(float(p.detach().sum())) for p in training.model.parameters()),
            "steps": [block.steps, len(seen)],
            "seconds": [block.wait_s, block.seconds],
            "input": [
                list(seen[0].shape),
                str(seen[0].dtype),
                seen[0].is_contiguous(memory_format=torch.channels_last),
            ],
            "range": [float(seen[0].min()), float(seen[0].max())],
            "memory": dataclasses.asdict(memory),
            "parameters": sum(p.numel() for p in training.model.parameters()),
        }
    return found


def shrink() -> dict[str, float]:
    """How far the model's first layer is from its definition."""
    from harness import workloads

    model = workloads.part("cnn_photos", Framework.TORCH).build(workloads.load("cnn_photos"), 256, 11)
    images = torch.randint(0, 256, (2, 256, 256, 3), dtype=torch.uint8)
    mean = (images.double() / 255 - 0.5).div(0.25).reshape(2, 64, 4, 64, 4, 3).mean((2, 4)).permute(0, 3, 1, 2)
    x = images.permute(0, 3, 1, 2)
    return {"off": float((model[0](x) - mean).abs().max()), "logits": model(x).shape[1]}


def stored() -> dict[str, Any]:
    """What making a set says."""
    return {f: dataclasses.asdict(backend.store(cell(format=f), N)) for f in ("files", "npy")}


QUESTIONS: dict[str, Callable[[], Any]] = {
    f.__name__: f
    for f in (
        delivery,
        orders,
        rest,
        gate,
        scaled,
        in_memory,
        close,
        broken,
        toggles,
        unavailable,
        end_to_end,
        shrink,
        stored,
    )
}


def main(questions: list[str]) -> dict[str, Any]:
    """Every answer; one that raises is its traceback."""
    backend.configure(2)
    answers = {}
    for name in questions:
        try:
            answers[name] = QUESTIONS[name]()
        except Exception:  # the test that reads this answer fails with the traceback
            answers[name] = {"raised": traceback.format_exc()}
    return answers


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))  # noqa: T201
