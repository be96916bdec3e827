"""The image set: loose JPEG files in one folder a class, made from installed photographs, or the user's own.

The embedded set needs no network: square crops of photographs that ship inside matplotlib, scikit-learn and
scikit-image, none of which is imported. The class is the photograph, "which picture is this cut from": a real task, on
real JPEG files. ``$SPEEDPROOF_IMAGES`` names a folder of the user's in its place, with one subfolder a class, as
torchvision's ``ImageFolder`` and Keras' ``image_dataset_from_directory`` read it; it is only ever read.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from harness.data import cache
from harness.errors import ConfigError, Unavailable
from harness.spec import IMAGES

T = TypeVar("T")
R = TypeVar("R")

INSTALL = "pip install 'speedproof[data]'"
EXAMPLES = 2048
RECIPE = 1  # raise it when the way of cutting changes
SMALLEST, LARGEST = 256, 768  # side of a crop before scaling, in the photograph's pixels
QUALITY = 90
WAITING = 64  # images made ahead of the one that is written: bounds the memory

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp")  # those that both frameworks' folder readers take
_OTHER_IMAGES = (".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp", ".avif", ".heic", ".jfif")
_ALLOWED = f"allowed is a folder with one subfolder a class, which hold {', '.join(EXTENSIONS)} files"


@dataclass(frozen=True, kw_only=True, slots=True)
class Photo:
    """A photograph inside an installed package; the class is its name."""

    module: str
    distribution: str
    path: str

    @property
    def name(self) -> str:
        """The class."""
        return Path(self.path).stem


# Sorted by name, as the folder readers sort classes.
PHOTOS = (
    Photo(module="skimage", distribution="scikit-image", path="data/astronaut.png"),
    Photo(module="skimage", distribution="scikit-image", path="data/chelsea.png"),
    Photo(module="sklearn", distribution="scikit-learn", path="datasets/images/china.jpg"),
    Photo(module="skimage", distribution="scikit-image", path="data/coffee.png"),
    Photo(module="sklearn", distribution="scikit-learn", path="datasets/images/flower.jpg"),
    Photo(module="matplotlib", distribution="matplotlib", path="mpl-data/sample_data/grace_hopper.jpg"),
    Photo(module="skimage", distribution="scikit-image", path="data/hubble_deep_field.jpg"),
    Photo(module="skimage", distribution="scikit-image", path="data/ihc.png"),
    Photo(module="skimage", distribution="scikit-image", path="data/motorcycle_left.png"),
    Photo(module="skimage", distribution="scikit-image", path="data/retina.jpg"),
    Photo(module="skimage", distribution="scikit-image", path="data/rocket.jpg"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageSet:
    """Loose image files; ``labels`` int64 [n] are indices into ``classes``, which take turns.

    ``size`` is the side that the images are brought to when decoded. ``sha256`` is that of the content (labels and
    bytes of the files in their order). ``folder`` holds one folder a class; ``seconds`` is what making it took, 0 for
    the user's own.
    """

    paths: tuple[Path, ...]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    size: int
    sha256: str
    folder: Path
    bytes: int
    seconds: float


def image_set(*, size: int, examples: int | None, report: cache.Report = cache.no_report) -> ImageSet:
    """The embedded crops, or the user's folder; the first ``examples`` of it, in which classes are balanced.

    ``None`` stands for 2,048 crops, or for all images of the user. Raises :class:`~harness.errors.Unavailable` where a
    package is missing, :class:`~harness.errors.ConfigError` where the user's folder cannot be used.
    """
    if examples is not None and examples < 1:
        raise ConfigError(f"examples {examples}: allowed is a number from 1")
    own = os.environ.get(IMAGES)
    if own:
        return own_images(Path(own), size=size, examples=examples)
    return embedded_crops(size=size, examples=EXAMPLES if examples is None else examples, report=report)


def in_order(function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """``function`` of each item, by as many threads as there are cores, in order, few results waiting at a time."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        waiting: deque[Future[R]] = deque()
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) == WAITING:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


# --- crops of photographs ------------------------------------------------------------------------------------------


def embedded_crops(*, size: int, examples: int, report: cache.Report = cache.no_report) -> ImageSet:
    """The crops of the installed photographs, cut where they are not in the cache."""
    return crops({photo.name: photo_file(photo) for photo in PHOTOS}, size=size, examples=examples, report=report)


def photo_file(photo: Photo) -> Path:
    """The file of a photograph; raises :class:`~harness.errors.Unavailable` where its package does not have it."""
    found = importlib.util.find_spec(photo.module)
    file = Path(found.origin).parent / photo.path if found and found.origin else None
    if file is None or not file.is_file():
        raise Unavailable(f"the image set needs {photo.path} of {photo.distribution}: not installed; {INSTALL}")
    return file


def crops(
    photographs: Mapping[str, Path], *, size: int, examples: int, report: cache.Report = cache.no_report
) -> ImageSet:
    """JPEG crops, ``size`` x ``size``, of photographs by class; the classes take turns in the order of their names.

    They lie in the cache as ``CLASS/RANK.jpg``, in a folder named after all that decides their bytes.
    """
    classes = tuple(sorted(photographs))
    sources = [hashlib.sha256(photographs[name].read_bytes()).hexdigest() for name in classes]
    recipe = (RECIPE, SMALLEST, LARGEST, QUALITY, cache.codec(), np.__version__)
    folder = cache.cache_folder() / "photos" / cache.digest(recipe, size, examples, classes, sources)
    labels = np.arange(examples, dtype=np.int64) % len(classes)
    names = [f"{classes[i % len(classes)]}/{i // len(classes):06d}.jpg" for i in range(examples)]

    def build(job: cache.Job) -> str:
        for label, name in enumerate(classes):  # one photograph decoded at a time
            (job.folder / name).mkdir()
            mine = names[label :: len(classes)]
            made = in_order(_cutter(photographs[name], label, size), range(len(mine)))
            for path, data in zip(mine, made, strict=True):
                (job.folder / path).write_bytes(data)
                report(1)
        return content_sha256(labels, ((job.folder / path).read_bytes() for path in names))

    manifest = cache.make_once(folder, build, format="files", examples=examples, size=size)
    return ImageSet(
        paths=tuple(folder / name for name in names),
        labels=labels,
        classes=classes,
        size=size,
        sha256=manifest.sha256,
        folder=folder,
        bytes=manifest.bytes,
        seconds=manifest.seconds,
    )


def _cutter(file: Path, label: int, size: int) -> Callable[[int], bytes]:
    """Cuts crop ``rank`` of a photograph: its own generator draws place and side, so any prefix stays the same."""
    with Image.open(file) as image:
        photo = image.convert("RGB")

    def cut(rank: int) -> bytes:
        draw = np.random.default_rng([RECIPE, label, rank])
        side = int(draw.integers(SMALLEST, min(LARGEST, *photo.size) + 1))
        left = int(draw.integers(0, photo.width - side + 1))
        top = int(draw.integers(0, photo.height - side + 1))
        crop = photo.resize((size, size), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side))
        buffer = io.BytesIO()
        crop.save(buffer, "JPEG", quality=QUALITY)
        return buffer.getvalue()

    return cut


def content_sha256(labels: NDArray[np.int64], files: Iterable[bytes]) -> str:
    """Hash of a set's labels, then of its image files in their order."""
    content = hashlib.sha256(labels.astype("<i8").tobytes())
    for data in files:
        content.update(data)
    return content.hexdigest()


# --- the user's own ------------------------------------------------------------------------------------------------


def own_images(root: Path, *, size: int, examples: int | None) -> ImageSet:
    """The images of a folder with one subfolder a class; classes take turns as long as each has images left."""
    root = root.absolute()
    by_class = _scan(root)
    turns = [
        (path, label)
        for same_rank in zip_longest(*by_class.values())
        for label, path in enumerate(same_rank)
        if path is not None
    ][:examples]
    paths = tuple(path for path, _ in turns)
    labels = np.array([label for _, label in turns], np.int64)
    try:
        stats = [path.stat() for path in paths]
    except OSError as error:
        raise _unreadable(error, root) from error
    names = [str(path.relative_to(root)) for path in paths]
    key = cache.digest(names, [s.st_size for s in stats], [s.st_mtime_ns for s in stats])
    return ImageSet(
        paths=paths,
        labels=labels,
        classes=tuple(by_class),
        size=size,
        sha256=_own_sha256(key, paths, labels),
        folder=root,
        bytes=sum(s.st_size for s in stats),
        seconds=0.0,
    )


def _scan(root: Path) -> dict[str, list[Path]]:
    """Images by class, both sorted."""
    try:
        folders = sorted(f for f in root.iterdir() if f.is_dir() and not f.name.startswith("."))
        by_class = {folder.name: sorted(_images(folder)) for folder in folders}
    except OSError as error:
        raise _unreadable(error, root) from error
    if not by_class:
        raise ConfigError(f"{root}: has no subfolder, hence no class; {_ALLOWED}")
    for name, files in by_class.items():
        if not files:
            raise ConfigError(f"{root / name}: holds no image; {_ALLOWED}. Add images or remove the subfolder")
    return by_class


def _unreadable(error: OSError, root: Path) -> ConfigError:
    return ConfigError(f"{error.filename or root}: cannot be read ({error.strerror}); {_ALLOWED}")


def _images(folder: Path) -> Iterator[Path]:
    def fail(error: OSError) -> None:  # os.walk would pass over it
        raise error

    for place, _, names in os.walk(folder, followlinks=True, onerror=fail):
        for name in names:
            ending = os.path.splitext(name)[1].lower()
            if ending in _OTHER_IMAGES:
                raise ConfigError(
                    f"{os.path.join(place, name)}: not every framework reads {ending} files; "
                    f"allowed are {', '.join(EXTENSIONS)}. Convert it or take it out of the folder"
                )
            if ending in EXTENSIONS and not name.startswith("."):
                yield Path(place, name)


def _own_sha256(key: str, paths: Sequence[Path], labels: NDArray[np.int64]) -> str:
    """Hash of the content, read once for each state of the folder; that first reading also looks at every file."""
    file = cache.cache_folder() / "images" / f"{key}.json"
    try:
        return str(json.loads(file.read_text())["sha256"])
    except (OSError, ValueError, KeyError):
        pass
    sha256 = content_sha256(labels, in_order(_checked, paths))
    file.parent.mkdir(exist_ok=True)
    part = file.with_suffix(f".{os.getpid()}{cache.PART}")
    part.write_text(json.dumps({"sha256": sha256}))
    os.replace(part, file)
    return sha256


def _checked(path: Path) -> bytes:
    """The bytes of a file whose head is an image's; its pixels are decoded, and judged, when they are needed."""
    try:
        data = path.read_bytes()
        with Image.open(io.BytesIO(data)):
            return data
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ConfigError(f"{path}: is not a readable image ({error}); replace it or take it out") from error
