"""Replicas and the whole batch in PyTorch; the devices themselves are the strategy's."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.launcher.api import elastic_launch
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from harness.backends import Check
from harness.backends.torch_group import one_host
from harness.spec import Cell
from harness.techniques.devices import equality as eq
from harness.techniques.devices.equality import Weights


def _trained(replica: int, replicas: int, batchnorm: bool) -> Weights:
    """The weights after the steps on one replica's shard, merged with the others' where there are any."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(8) if batchnorm else nn.GroupNorm(2, 8)
    layers = nn.Sequential(nn.Conv2d(1, 8, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(800, eq.CLASSES)).double()
    merged = dist.is_initialized()
    model: nn.Module = DistributedDataParallel(layers) if merged else layers
    optimizer = torch.optim.SGD(model.parameters(), lr=eq.RATE, momentum=eq.MOMENTUM)
    images, labels = (torch.from_numpy(a)[replica::replicas] for a in eq.examples())
    for _ in range(eq.STEPS):
        optimizer.zero_grad()
        functional.cross_entropy(model(images[:, None]), labels).backward()
        optimizer.step()
    return [p.detach().numpy() for p in layers.parameters()]


def _replica(batchnorm: bool) -> Weights:
    dist.init_process_group("gloo")
    try:
        return _trained(dist.get_rank(), dist.get_world_size(), batchnorm)
    finally:
        dist.destroy_process_group()


def _together(replicas: int, batchnorm: bool) -> Weights:
    """The weights of one of so many replicas, each a process; they must be equal bit for bit on all of them."""
    found = elastic_launch(one_host(replicas), _replica)(batchnorm)
    for rank, weights in found.items():
        if any((a != b).any() for a, b in zip(weights, found[0], strict=True)):
            raise RuntimeError(f"replica {rank} of {replicas} ended with other weights than replica 0")
    first: Weights = found[0]
    return first


def shards_equal_batch(_cell: Cell) -> list[Check]:
    """DistributedDataParallel over gloo against one process with the whole batch."""
    # All processes are forked before this one computes: a fork after a parallel region can hang.
    sharded = {n: _together(n, batchnorm=False) for n in eq.REPLICAS}
    apart = _together(2, batchnorm=True)
    whole, forgotten, batchnorm = itertools.starmap(_trained, [(0, 1, False), (0, 2, False), (0, 1, True)])
    return eq.compare(whole, sharded, forgotten, (batchnorm, apart))


CHECKS: dict[str, Callable[[Cell], list[Check]]] = {"shards_equal_batch": shards_equal_batch}
