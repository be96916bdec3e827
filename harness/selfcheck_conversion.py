"""Converting a set against what reading, decoding and writing it need by themselves.

``python -m harness.selfcheck_conversion FORMAT EXAMPLES ROUNDS``, run in a process of its own for its peak memory,
prints seconds of conversion and seconds of the parts, for each round, as JSON.
"""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from harness.data import cache, formats, photos
from harness.data.formats.base import image_bytes, image_pixels
from harness.selfcheck_bench import Bench, Figure, ratio

FORMATS = ("tfrecord", "webdataset", "lmdb", "arrow", "lmdb_decoded", "npy")
EXAMPLES, ROUNDS, PIXELS = 10_000, 6, 128


def conversion(bench: Bench) -> Iterator[Figure]:
    """Ten thousand JPEG files into every format: the parts alone over the whole, and the peak of the process."""
    peaks = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in FORMATS:
            command = [sys.executable, "-m", "harness.selfcheck_conversion", name, str(EXAMPLES), str(ROUNDS)]
            environment = {**os.environ, "SPEEDPROOF_CACHE": folder, "SPEEDPROOF_IMAGES": ""}
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
            found = json.loads(done.stdout)
            peaks[name] = found["peak"]
            bench.log(f"  {name}: {statistics.median(found['conversion']):.2f} s")
            encoded = formats.format_named(name).encoded
            yield ratio(
                f"converting {EXAMPLES:,} images to {name}: {'read' if encoded else 'decode'} and write alone / all",
                "printed: nothing is decoded" if encoded else "time ratio ≥ 0.9",
                [math.log(a / c) for a, c in zip(found["alone"], found["conversion"], strict=True)],
                lambda i, encoded=encoded: encoded or i.estimate >= 0.9,  # type: ignore[misc]
            )
    worst = max(peaks, key=lambda name: peaks[name])
    yield Figure(
        name=f"peak memory of a conversion of {EXAMPLES:,} images",
        target="≤ 500 MB",
        measured=f"{peaks[worst] / 1e6:.0f} MB ({worst})",
        passed=peaks[worst] <= 500e6,
    )


def _convert(name: str, examples: int) -> tuple[float, Path]:
    """Seconds of a conversion from nothing, as the results record them, and the folder that it made."""
    shutil.rmtree(cache.cache_folder() / "sets", ignore_errors=True)
    seconds = formats.store(name, size=PIXELS, examples=examples).seconds
    (made,) = (path for path in (cache.cache_folder() / "sets").iterdir() if path.is_dir())
    return seconds, made


def _alone(images: photos.ImageSet, *, encoded: bool, made: Path) -> float:
    """Seconds of reading (and decoding) every image for nothing, then of writing the bytes of the finished set."""
    started = time.perf_counter()
    for _ in image_bytes(images) if encoded else image_pixels(images):
        pass
    read_s = time.perf_counter() - started
    contents = [path.read_bytes() for path in made.rglob("*") if path.is_file()]
    copy = made.with_name("written-alone")
    started = time.perf_counter()
    with open(copy, "wb") as file:
        file.writelines(contents)
        file.flush()
        os.fsync(file.fileno())
    write_s = time.perf_counter() - started
    copy.unlink()
    return read_s + write_s


def main(name: str, examples: int, rounds: int) -> None:
    """Convert and take apart, in turns."""
    images = photos.image_set(size=PIXELS, examples=examples)
    encoded = formats.format_named(name).encoded
    found: dict[str, list[float]] = {"conversion": [], "alone": []}
    peak = 0
    for _ in range(rounds):
        seconds, made = _convert(name, examples)
        # Before the parts are timed: to write alone, the set is held in memory, which a conversion never does.
        peak = peak or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        found["conversion"].append(seconds)
        found["alone"].append(_alone(images, encoded=encoded, made=made))
    print(json.dumps({**found, "peak": peak}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
