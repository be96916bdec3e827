"""ResNet-50 (v1.5: the stride in the 3x3 convolution), from scratch."""

from harness.spec import Optimizer, Workload

WORKLOAD = Workload(
    name="resnet50",
    title="ResNet-50, Fashion-MNIST scaled up",
    task="image",
    data="fashion_mnist",
    channels=3,
    size={"cpu": 64, "gpu": 224},
    batch={"cpu": 16, "gpu": 128},
    optimizer=Optimizer(name="sgd", learning_rate=0.01, momentum=0.9),
    base_batch=16,
    target_accuracy=0.70,
    differences=(
        "the same network (keras-hub's equals torchvision's, outputs agree on copied weights) and initialisation; the"
        " moving variance of batch normalisation is biased in Keras and unbiased in PyTorch; weights of one seed "
        "differ; fp16 loss scaling starts at 2^15 in Keras and 2^16 in PyTorch"
    ),
)
