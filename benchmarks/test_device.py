"""CPU against accelerator."""

from harness.spec import Arm, Mode, Study

STUDIES = (
    Study(
        id="device",
        title="CPU against GPU",
        question="How much faster does a GPU train than this machine's CPU?",
        mode=Mode.STEADY,
        axis="device",
        workloads=("cnn_fashion", "resnet50"),
        baseline=Arm(name="cpu", sets={"device": "cpu"}),
        treatments=(Arm(name="gpu", sets={"device": "gpu"}),),
    ),
)


def test_device(cell, benchmark):
    cell.replay(benchmark)
