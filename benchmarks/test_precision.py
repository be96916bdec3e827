"""Mixed precision, apart from what it is usually bundled with: layout and a larger batch."""

from harness.spec import Arm, Mode, Study

STUDIES = (
    Study(
        id="precision",
        title="Precision of the training step",
        question="How much faster and smaller is training in TF32 or 16 bits, alone and with layout or batch?",
        mode=Mode.STEADY,
        axis="precision",
        workloads=("cnn_fashion", "resnet50", "text_distilbert"),
        baseline=Arm(name="fp32", sets={"precision": "fp32"}),
        treatments=(
            Arm(name="tf32", sets={"precision": "tf32"}),
            Arm(name="bf16", sets={"precision": "bf16"}),
            Arm(name="fp16", sets={"precision": "fp16"}),
            Arm(name="bf16_nhwc", sets={"precision": "bf16", "layout": "channels_last"}),
            Arm(name="fp16_nhwc", sets={"precision": "fp16", "layout": "channels_last"}),
            Arm(name="fp16_largest", sets={"precision": "fp16", "batch": "largest"}),
        ),
        accuracy="precision-accuracy",
    ),
    Study(
        id="precision-accuracy",
        title="Accuracy under mixed precision",
        question="Does training in 16 bits cost accuracy, on the same seeds and data order?",
        mode=Mode.CONVERGENCE,
        axis="precision",
        workloads=("cnn_fashion",),
        baseline=Arm(name="fp32", sets={"precision": "fp32"}),
        treatments=(
            Arm(name="bf16", sets={"precision": "bf16"}),
            Arm(name="fp16", sets={"precision": "fp16"}),
        ),
    ),
    Study(
        id="loss-scaling",
        title="fp16 with and without loss scaling",
        question="Does loss scaling keep fp16 training from losing small gradients?",
        mode=Mode.CONVERGENCE,
        axis="scaling",
        workloads=("cnn_fashion",),
        baseline=Arm(name="unscaled", sets={"precision": "fp16", "scaling": "off"}),
        treatments=(Arm(name="scaled", sets={"precision": "fp16", "scaling": "auto"}),),
    ),
    Study(
        id="memory-fit",
        title="Largest batch that trains",
        question="Does mixed precision, or a smaller batch, fit where float32 runs out of memory?",
        mode=Mode.FIT,
        axis="precision",
        workloads=("cnn_fashion", "resnet50"),
        baseline=Arm(name="fp32", sets={"precision": "fp32"}),
        treatments=(
            Arm(name="bf16", sets={"precision": "bf16"}),
            Arm(name="fp16", sets={"precision": "fp16"}),
        ),
    ),
    Study(
        id="numerics",
        title="Resolution of the float types, and what mixed precision really sets",
        question="Are the documents' statements about float types and the mixed-precision policy true?",
        mode=Mode.CHECK,
        axis="precision",
        workloads=("cnn_fashion",),
        baseline=Arm(name="fp32"),
        checks=("float_eps", "mixed_policy", "gradient_underflow"),
    ),
)


def test_precision(cell, benchmark):
    cell.replay(benchmark)
