"""MobileNetV2 (width 1.0), from scratch."""

from harness.spec import Optimizer, Workload

WORKLOAD = Workload(
    name="mobilenet_v2",
    title="MobileNetV2, Fashion-MNIST scaled up",
    task="image",
    data="fashion_mnist",
    channels=3,
    size={"cpu": 64, "gpu": 224},
    batch={"cpu": 16, "gpu": 128},
    optimizer=Optimizer(name="sgd", learning_rate=0.01, momentum=0.9),
    base_batch=16,
    target_accuracy=0.70,
    differences=(
        "the same layers, parameters, initialisation and dropout; Keras' epsilon and momentum are set to "
        "torchvision's; Keras pads stride-2 convolutions at the right and bottom edge only, PyTorch on all sides, so "
        "outputs on copied weights differ; the moving variance of batch normalisation is biased in Keras and unbiased"
        " in PyTorch; fp16 loss scaling starts at 2^15 in Keras and 2^16 in PyTorch"
    ),
)
