"""Several devices: data parallel, model parallel, TPU, and what a second program on the same device costs."""

from collections.abc import Mapping

from harness.spec import Arm, Framework, Mode, Study

TORCH, TENSORFLOW = (Framework.TORCH,), (Framework.TENSORFLOW,)


def scaling(strategy: str, scale: str, frameworks: tuple[Framework, ...], sets: Mapping[str, str]) -> Study:
    """From one device to eight; the single device runs the plain step, with the threads that each of them has."""
    fixed = {"strategy": strategy, "scale": scale, **sets}
    return Study(
        id=f"{strategy}-{scale}",
        title=f"Data parallel, {strategy}, {scale} scaling",
        question="How much faster do 2, 4 and 8 devices train than one?",
        mode=Mode.STEADY,
        axis="devices",
        workloads=("cnn_fashion", "resnet50"),
        baseline=Arm(name="d1", sets={**fixed, "devices": "1"}),
        treatments=tuple(Arm(name=f"d{n}", sets={**fixed, "devices": str(n)}) for n in (2, 4, 8)),
        frameworks=frameworks,
    )


def batches(strategy: str, frameworks: tuple[Framework, ...]) -> Study:
    """A small and a large global batch on the same two devices."""
    fixed = {"strategy": strategy, "scale": "strong", "devices": "2"}
    return Study(
        id=f"global-batch-{strategy}",
        title=f"Global batch on two devices, {strategy}",
        question="Does a small global batch leave several devices idle?",
        mode=Mode.STEADY,
        axis="batch",
        workloads=("cnn_fashion",),
        baseline=Arm(name="b32", sets={**fixed, "batch": "32"}),
        treatments=(Arm(name="b128", sets={**fixed, "batch": "128"}), Arm(name="b512", sets={**fixed, "batch": "512"})),
        frameworks=frameworks,
    )


def against(
    id_: str, title: str, question: str, baseline: str, treatment: str, frameworks: tuple[Framework, ...]
) -> Study:
    """Two strategies on the same two devices."""
    return Study(
        id=id_,
        title=title,
        question=question,
        mode=Mode.STEADY,
        axis="strategy",
        workloads=("cnn_fashion", "resnet50"),
        baseline=Arm(name=baseline, sets={"strategy": baseline, "devices": "2"}),
        treatments=(Arm(name=treatment, sets={"strategy": treatment, "devices": "2"}),),
        frameworks=frameworks,
    )


def calls(id_: str, title: str, fixed: Mapping[str, str]) -> Study:
    """One, eight and thirty-two training steps in one call of Keras' train function."""
    return Study(
        id=id_,
        title=title,
        question="Do 8 or 32 steps in one call train a small model faster?",
        mode=Mode.STEADY,
        axis="steps_per_execution",
        workloads=("cnn_fashion",),
        baseline=Arm(name="s1", sets=fixed),
        treatments=tuple(Arm(name=f"s{n}", sets={**fixed, "steps_per_execution": str(n)}) for n in (8, 32)),
        frameworks=TENSORFLOW,
    )


GLOBAL_BATCH = {"batch": "512"}  # D4's four devices of 128
TWO = {"strategy": "ddp", "devices": "2"}
PIPELINE = {"strategy": "pipeline"}

STUDIES = (
    scaling("ddp", "weak", TORCH, {}),
    scaling("ddp", "strong", TORCH, GLOBAL_BATCH),
    scaling("mirrored", "weak", TENSORFLOW, {}),
    scaling("mirrored", "strong", TENSORFLOW, GLOBAL_BATCH),
    batches("ddp", TORCH),
    batches("mirrored", TENSORFLOW),
    against(
        "dp-vs-ddp",
        "DataParallel and DistributedDataParallel",
        "Is a process for each device faster than a thread?",
        "dp",
        "ddp",
        TORCH,
    ),
    against("fsdp", "DDP and fully sharded data parallel", "What do sharded parameters cost?", "ddp", "fsdp", TORCH),
    against(
        "multiworker",
        "MirroredStrategy and MultiWorkerMirroredStrategy",
        "What does it cost to be ready for several hosts?",
        "mirrored",
        "multiworker",
        TENSORFLOW,
    ),
    Study(
        id="gradient-exchange",
        title="The exchange of gradients on two devices",
        question="How much of a step is communication, how much is hidden, and do 16 bits help?",
        mode=Mode.STEADY,
        axis="gradient_sync",
        workloads=("cnn_fashion", "resnet50"),
        baseline=Arm(name="overlap", sets=TWO),
        treatments=(
            Arm(name="after", sets={**TWO, "gradient_sync": "after"}),
            Arm(name="none", sets={**TWO, "gradient_sync": "none"}),
            Arm(name="bf16", sets={**TWO, "gradient_dtype": "bfloat16"}),
        ),
        frameworks=TORCH,
    ),
    Study(
        id="exchange-cost",
        title="What an exchange of gradients costs here",
        question="How fast is the link between two devices, and what of a step can hide a transfer?",
        mode=Mode.CHECK,
        axis="gradient_sync",
        workloads=("cnn_fashion", "resnet50"),
        baseline=Arm(name="two", sets=TWO),
        checks=("exchange_cost",),
        frameworks=TORCH,
    ),
    Study(
        id="shards",
        title="Shards and the whole batch",
        question="Do replicas on shards make the update of the whole batch on one device?",
        mode=Mode.CHECK,
        axis="devices",
        workloads=("cnn_fashion",),
        baseline=Arm(name="whole"),
        checks=("shards_equal_batch",),
    ),
    Study(
        id="model-parallel",
        title="Layers spread over two devices",
        question="What do spread layers save in memory on the fullest device, and what do they cost in time?",
        mode=Mode.STEADY,
        axis="devices",
        workloads=("cnn_fashion", "resnet50"),
        baseline=Arm(name="d1", sets={**PIPELINE, "devices": "1"}),
        treatments=(Arm(name="d2", sets={**PIPELINE, "devices": "2"}),),
    ),
    Study(
        id="model-parallel-fit",
        title="Largest batch of one device and of two that share the layers",
        question="Does a model that does not fit one device train on two?",
        mode=Mode.FIT,
        axis="devices",
        workloads=("cnn_fashion", "resnet50"),
        baseline=Arm(name="d1", sets={**PIPELINE, "devices": "1"}),
        treatments=(Arm(name="d2", sets={**PIPELINE, "devices": "2"}),),
    ),
    Study(
        id="tpu",
        title="From the machine's own device to a TPU",
        question="How much faster does a TPU train?",
        mode=Mode.STEADY,
        axis="strategy",
        workloads=("cnn_fashion", "resnet50"),
        baseline=Arm(name="own"),
        treatments=(Arm(name="tpu", sets={"strategy": "tpu", "precision": "bf16"}),),
    ),
    calls("steps-per-execution", "Steps in one call of the train function", {}),
    calls("steps-per-execution-tpu", "Steps in one call of the train function, on a TPU", {"strategy": "tpu"}),
    Study(
        id="shared-device",
        title="A second training on the same device",
        question="How much faster is training without another program on the device?",
        mode=Mode.STEADY,
        axis="neighbour",
        workloads=("cnn_fashion", "resnet50"),
        baseline=Arm(name="shared", sets={"neighbour": "training"}),
        treatments=(Arm(name="alone"),),
    ),
)


def test_devices(cell, benchmark):
    cell.replay(benchmark)
