"""Two convolutions and a dense layer on crops of photographs, read from storage: which photograph is a crop from?

The step takes what a loader delivers, uint8 pixels, and scales and shrinks them on the device, so that a loader's work
is reading and decoding and nothing else.
"""

from harness.spec import Optimizer, Workload

WORKLOAD = Workload(
    name="cnn_photos",
    title="2-conv CNN, photographs",
    task="image",
    data="photos",
    channels=3,
    size={"cpu": 256, "gpu": 256},
    batch={"cpu": 32, "gpu": 128},
    optimizer=Optimizer(name="sgd", learning_rate=0.005, momentum=0.9),
    base_batch=32,
    target_accuracy=0.6,
    differences=(
        "layers, initialisation, optimizer and loss are the same; pixels are equal bit for bit between the frameworks'"
        " own decoders; the random streams are not, so one seed draws other weights and another order"
    ),
)
