"""Batch size: throughput and memory on the way up, accuracy at equal epochs, and the linear learning-rate rule."""

from harness.spec import Arm, Mode, Study

SIZES = (8, 16, 64, 128, 256, 512, 1024)


def sweep(precision: str) -> Study:
    """The batch sweep in one precision; 32 is the documents' starting point."""
    fixed = {"precision": precision}
    return Study(
        id=f"batch-{precision}",
        title=f"Batch size, {precision}",
        question=f"Does a larger batch train more examples a second in {precision}, and at what memory?",
        mode=Mode.STEADY,
        axis="batch",
        workloads=("cnn_fashion", "resnet50"),
        baseline=Arm(name="b32", sets={**fixed, "batch": "32"}),
        treatments=tuple(Arm(name=f"b{n}", sets={**fixed, "batch": str(n)}) for n in SIZES),
        accuracy="batch-accuracy",
    )


STUDIES = (
    sweep("fp32"),
    sweep("bf16"),
    Study(
        id="batch-accuracy",
        title="Accuracy of a very large batch at equal epochs",
        question="Does a very large batch at the same learning rate converge more slowly?",
        mode=Mode.CONVERGENCE,
        axis="batch",
        workloads=("cnn_fashion",),
        baseline=Arm(name="b64", sets={"batch": "64"}),
        treatments=(Arm(name="b1024", sets={"batch": "1024"}),),
    ),
    Study(
        id="lr-linear",
        title="Learning rate scaled with the batch",
        question="Does doubling the learning rate with each doubling of the batch keep the accuracy?",
        mode=Mode.CONVERGENCE,
        axis="lr_rule",
        workloads=("cnn_fashion",),
        baseline=Arm(name="fixed", sets={"batch": "512", "lr_rule": "fixed"}),
        treatments=(Arm(name="linear", sets={"batch": "512", "lr_rule": "linear"}),),
    ),
)


def test_batch(cell, benchmark):
    cell.replay(benchmark)
