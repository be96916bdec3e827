"""Arrow, as Hugging Face datasets saves it: a table with the columns image (binary) and label (int64)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.data.cache import Job
from harness.data.formats.base import Format, damaged, image_bytes, load
from harness.data.photos import ImageSet


class Table:
    """A saved dataset, memory-mapped."""

    def __init__(self, folder: Path, examples: int) -> None:
        datasets = load("datasets")
        arrow = load("pyarrow")
        self._folder, self._error = folder, arrow.ArrowException
        try:
            table = datasets.load_from_disk(str(folder)).data.table
        except (arrow.ArrowException, OSError, ValueError, KeyError) as error:
            raise damaged(folder, error) from error
        if len(table) != examples:
            raise damaged(folder, f"holds {len(table)} records, not {examples}")
        self._images = table.column("image")

    def read(self, index: int) -> bytes:
        """A copy of the image file's bytes."""
        try:
            return bytes(self._images[index].as_py())
        except self._error as error:
            raise damaged(self._folder, error) from error

    def close(self) -> None:
        """Unmap, so that the page cache can let go."""
        del self._images


def write(images: ImageSet, job: Job) -> None:
    """Generate the dataset and save it; its intermediate files stay inside the folder and are removed from it."""
    datasets = load("datasets")
    labels = images.labels.tolist()

    def records() -> Iterator[dict[str, Any]]:
        for data, label in zip(image_bytes(images), labels, strict=True):
            yield {"image": data, "label": label}
            job.report(1)

    features = datasets.Features({"image": datasets.Value("binary"), "label": datasets.Value("int64")})
    between = job.folder / "cache"
    datasets.disable_progress_bars()
    try:
        made = datasets.Dataset.from_generator(
            records, features=features, cache_dir=str(between), fingerprint=images.sha256
        )
    except datasets.exceptions.DatasetGenerationError as error:
        if isinstance(error.__cause__, OSError):  # a full disk: what the library hides is what the user needs
            raise error.__cause__ from None
        raise
    made.save_to_disk(str(job.folder))
    del made
    shutil.rmtree(between)


def open_table(images: ImageSet, folder: Path) -> Table:
    """Map what :func:`write` saved."""
    return Table(folder, len(images.paths))


ARROW = Format(
    name="arrow",
    encoded=True,
    write=write,
    open=open_table,
    packages=("datasets", "pyarrow"),
)
