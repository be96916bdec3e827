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
    optimizer=Optimizer(name="sgd", learning_rate=0.05, momentum=0.9),
    base_batch=32,
    target_accuracy=0.70,
    differences="to be stated",
)
