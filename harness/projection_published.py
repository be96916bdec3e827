"""The projection held against published scaling: each row from its own single-device figure, and from assumed links.

Computed, like everything of :mod:`harness.projection`. What the sources do not say is assumed here, once, by name.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.projection import Bucket, Link, Network, Scale, Training, buckets, project, split

GOOD = 0.10  # an error up to this is called near
FLOAT32 = 4
BACKWARD = 2 / 3  # two products for each of the forward pass
DDP_BUCKET, HOROVOD_BUCKET = 25 * 2**20, 64 * 2**20  # the defaults of the two

# Latency of a hop around a ring: NCCL's own tuning model (src/graph/tuning.cc, protocol Simple: NVLink 3.4 us, network
# 14 us). Bandwidth, in each direction: six NVLinks of 25 GB/s on a V100 (alibabacloud.com/help/doc-detail/190482.htm);
# what nccl-tests#149 reports of eight A100 (200 GB/s); the nominal 25 Gbit/s that four P100 share.
V100 = Network(link=Link(latency_s=3.4e-6, bandwidth=150e9))
A100 = Network(link=Link(latency_s=3.4e-6, bandwidth=200e9))
ROCE = Network(link=Link(latency_s=14e-6, bandwidth=25e9 / 8))

PARAMETERS = {
    "ResNet-50": 25_557_032,
    "ResNet-101": 44_549_160,
    "Inception V3": 23_851_784,
    "VGG-16": 138_357_544,
    "BERT-large": 340_000_000,
}
_VGG_DENSE = (16_781_312 + 4_097_000, 102_764_544)  # the backward pass begins with them, and they cost it little

_DLE = "NVIDIA/DeepLearningExamples"
_RESNET = f"{_DLE} PyTorch/Classification/ConvNets/resnet50v1.5/README.md; batch: ../configs.yml"
_BERT = f"{_DLE} TensorFlow2/LanguageModeling/BERT/README.md"
_HOROVOD_16 = "horovod/horovod pull request 44 (README table, RDMA with NCCL)"
_HOROVOD_512 = "horovod docs/benchmarks.rst (efficiency); single GPU: pull request 44"


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """A published scaling: ``one`` and ``many`` are examples a second on 1 and on ``devices`` devices.

    ``batch`` is that of one device for each exchange of gradients; in strong scaling, all examples of an exchange.
    ``left_out`` is what is likely to part the two where the projection is not near; the sources do not measure it.
    """

    claim: str
    model: str
    setting: str
    devices: int
    one: float
    many: float
    batch: int
    gradients: tuple[Bucket, ...]
    network: Network
    source: str
    scale: Scale = Scale.WEAK
    left_out: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of the table: speedups, published and projected.

    ``error`` is projected over published, less 1; ``why`` says what the projection leaves out where that is not near.
    """

    claim: str
    model: str
    setting: str
    devices: int
    published: float
    projected: float
    error: float
    why: str
    source: str


def _ddp(model: str) -> tuple[Bucket, ...]:
    return split(FLOAT32 * PARAMETERS[model], DDP_BUCKET)


def _horovod(model: str) -> tuple[Bucket, ...]:
    if model != "VGG-16":
        return split(FLOAT32 * PARAMETERS[model], HOROVOD_BUCKET)
    small, large = (FLOAT32 * n for n in _VGG_DENSE)
    return (
        Bucket(size=small, ready=0.0),
        Bucket(size=large, ready=0.05),
        Bucket(size=FLOAT32 * PARAMETERS[model] - small - large, ready=1.0),
    )


def _resnet(setting: str, one: float, many: float, *, batch: int, network: Network, left_out: str = "") -> Published:
    return Published(
        claim="scale-8",
        model="ResNet-50",
        setting=setting,
        devices=8,
        one=one,
        many=many,
        batch=batch,
        gradients=_ddp("ResNet-50"),
        network=network,
        source=_RESNET,
        left_out=left_out,
    )


def _bert(claim: str, devices: int, many: float) -> Published:
    return Published(
        claim=claim,
        model="BERT-large",
        setting="V100 (DGX-2), AMP, accumulated to 61,440 sentences",
        devices=devices,
        one=206.5,
        many=many,
        batch=61_440,
        gradients=buckets([FLOAT32 * PARAMETERS["BERT-large"]]),
        network=V100,
        source=_BERT,
        scale=Scale.STRONG,
    )


def _p100(model: str, devices: int, one: float, many: float, source: str, left_out: str = "") -> Published:
    return Published(
        claim="near-linear",
        model=model,
        setting="P100, 4 a server, 25 Gbit/s RoCE, batch 64",
        devices=devices,
        one=one,
        many=many,
        batch=64,
        gradients=_horovod(model),
        network=ROCE,
        source=source,
        left_out=left_out,
    )


# The exchange is a hundredth of such a step, so what is lost is not communication.
_LOADER = "one host decodes the images of all eight GPUs, thousands a second; the projection has no loader"
_RING = "a ring over 128 servers at its nominal 25 Gbit/s; what such a network sustained, the source does not say"

PUBLISHED = (
    _resnet("V100 (DGX-1), FP32, batch 112", 367, 2855, batch=112, network=V100),
    _resnet("V100 (DGX-1), AMP, batch 256", 1200, 8322, batch=256, network=V100, left_out=_LOADER),
    _resnet("A100 (DGX A100), TF32, batch 256", 938, 7248, batch=256, network=A100),
    _resnet("A100 (DGX A100), AMP, batch 256", 2470, 16_621, batch=256, network=A100, left_out=_LOADER),
    _bert("scale-4", 4, 789.75),
    _bert("scale-8", 8, 1561.77),
    _p100("Inception V3", 16, 134.4, 2022.6, _HOROVOD_16),
    _p100("ResNet-101", 16, 119.4, 1746.2, _HOROVOD_16),
    _p100("VGG-16", 16, 130.9, 1787.4, _HOROVOD_16),
    _p100("Inception V3", 512, 134.4, 0.90 * 512 * 134.4, _HOROVOD_512),
    _p100("ResNet-101", 512, 119.4, 0.90 * 512 * 119.4, _HOROVOD_512),
    _p100("VGG-16", 512, 130.9, 0.68 * 512 * 130.9, _HOROVOD_512, _RING),
)


def _row(published: Published) -> Row:
    training = Training(step_s=published.batch / published.one, backward=BACKWARD, buckets=published.gradients)
    found = project(training, published.network, published.devices, published.scale)
    speedup = published.many / published.one
    error = found.speedup / speedup - 1
    return Row(
        claim=published.claim,
        model=published.model,
        setting=published.setting,
        devices=published.devices,
        published=speedup,
        projected=found.speedup,
        error=error,
        why=published.left_out if abs(error) > GOOD else "",
        source=published.source,
    )


def rows() -> list[Row]:
    """Every published scaling beside its projection."""
    return [_row(published) for published in PUBLISHED]
