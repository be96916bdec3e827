"""The training loop of a PyTorch tutorial, with nothing of the suite in it: what its own step is held against.

Usage: torch_loop.py MODEL BATCH PIXELS THREADS, then a number of steps on each line of standard input; it answers with
the seconds that they took. MODEL is resnet50 or cnn_fashion.
"""

import sys
import time

import torch
import torchvision
from torch import nn


def cnn_fashion():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 10),
    )


def resnet50():
    return torchvision.models.resnet50(num_classes=10)


def main(name, batch, pixels, threads):
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = {"cnn_fashion": cnn_fashion, "resnet50": resnet50}[name]()
    channels = 1 if name == "cnn_fashion" else 3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss_function = nn.CrossEntropyLoss()
    x = torch.randn(batch, channels, pixels, pixels)
    y = torch.randint(10, (batch,))
    for line in sys.stdin:
        started = time.perf_counter()
        for _ in range(int(line)):
            optimizer.zero_grad()
            loss = loss_function(model(x), y)
            loss.backward()
            optimizer.step()
        print(time.perf_counter() - started, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
