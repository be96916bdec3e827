"""The data loaders of the PyTorch and WebDataset tutorials, with nothing of the suite in them: what its own are held
against.

Usage: torch_loader.py files FOLDER BATCH WORKERS THREADS, with one subfolder a class, or webdataset …, with
tar shards; then a number of passes on each line of standard input. It answers with the seconds that they took and the
images that came.
"""

import sys
import time
from pathlib import Path

import torch
import webdataset
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import PILToTensor


def files(folder, batch, workers):
    return DataLoader(
        ImageFolder(folder, transform=PILToTensor()),
        batch_size=batch,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        multiprocessing_context="fork" if workers else None,
    )


def shards(folder, batch, workers):
    names = sorted(str(path) for path in Path(folder).glob("*.tar"))
    dataset = (
        webdataset.WebDataset(names, shardshuffle=100)
        .shuffle(1000)
        .decode("pil")
        .to_tuple("jpg", "cls")
        .map_tuple(PILToTensor())
        .batched(batch, partial=False)
    )
    return webdataset.WebLoader(
        dataset,
        batch_size=None,
        num_workers=workers,
        persistent_workers=workers > 0,
        multiprocessing_context="fork" if workers else None,
    )


def main(kind, folder, batch, workers, threads):
    torch.set_num_threads(threads)
    loader = {"files": files, "webdataset": shards}[kind](folder, batch, workers)
    for _ in loader:  # starts the workers
        pass
    for line in sys.stdin:
        count = 0
        started = time.perf_counter()
        for _ in range(int(line)):
            for images, _labels in loader:
                count += len(images)
                images[:, 0, 0, 0].sum().item()
        print(time.perf_counter() - started, count, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
