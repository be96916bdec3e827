"""Two convolutions and a dense layer on Fashion-MNIST: the document's own suggestion for a first image model."""

from harness.spec import Optimizer, Workload

WORKLOAD = Workload(
    name="cnn_fashion",
    title="2-conv CNN, Fashion-MNIST",
    task="image",
    data="fashion_mnist",
    channels=1,
    size={"cpu": 28, "gpu": 28},
    batch={"cpu": 64, "gpu": 64},
    optimizer=Optimizer(name="sgd", learning_rate=0.05, momentum=0.9),
    base_batch=64,
    target_accuracy=0.80,
    differences=(
        "layers, initialisation, optimizer, data order and loss are the same; the random streams are not, so one seed"
        " draws other weights; fp16 loss scaling starts at 2^15 in Keras and 2^16 in PyTorch"
    ),
)
