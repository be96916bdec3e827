"""Heavy against light models: throughput, memory, parameters, and accuracy from scratch."""

from typing import Any

from harness.spec import Arm, Mode, Study


def pair(kind: str, heavy: str, light: str) -> tuple[Study, Study]:
    """The throughput study of a heavy and a light model, and its accuracy question."""
    arms: dict[str, Any] = {
        "axis": "workload",
        "workloads": (heavy,),
        "baseline": Arm(name=heavy, workload=heavy),
        "treatments": (Arm(name=light, workload=light),),
    }
    return (
        Study(
            id=f"model-{kind}",
            title=f"Light {kind} model",
            question=f"How much faster does {light} train than {heavy}, in how much memory?",
            mode=Mode.STEADY,
            accuracy=f"model-{kind}-accuracy",
            **arms,
        ),
        Study(
            id=f"model-{kind}-accuracy",
            title=f"Accuracy of the light {kind} model",
            question=f"What does {light} lose against {heavy}, both from scratch at equal epochs?",
            mode=Mode.CONVERGENCE,
            **arms,
        ),
    )


STUDIES = (
    *pair("image", heavy="resnet50", light="mobilenet_v2"),
    *pair("text", heavy="text_distilbert", light="text_small"),
)


def test_model(cell, benchmark):
    cell.replay(benchmark)
