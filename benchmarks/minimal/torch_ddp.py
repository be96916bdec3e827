"""Data parallel training as PyTorch's own tutorial writes it, with nothing of the suite in it: what its own is held
against.

Usage: torchrun --nproc-per-node 2 torch_ddp.py MODEL BATCH PIXELS, then a number of steps on each line of standard
input; it answers with the seconds that they took. BATCH is that of each process, MODEL is resnet50 or cnn_fashion.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_loop import cnn_fashion, resnet50


def main(name, batch, pixels):
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DistributedDataParallel({"cnn_fashion": cnn_fashion, "resnet50": resnet50}[name]())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss_function = nn.CrossEntropyLoss()
    torch.manual_seed(dist.get_rank())
    x = torch.randn(batch, 1 if name == "cnn_fashion" else 3, pixels, pixels)
    y = torch.randint(10, (batch,))
    steps = torch.zeros(1, dtype=torch.int64)
    while True:
        if dist.get_rank() == 0:
            steps[0] = int(sys.stdin.readline() or 0)
        dist.broadcast(steps, 0)
        if not steps:
            break
        started = time.perf_counter()
        for _ in range(steps):
            optimizer.zero_grad()
            loss = loss_function(model(x), y)
            loss.backward()
            optimizer.step()
        dist.barrier()
        if dist.get_rank() == 0:
            print(time.perf_counter() - started, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
