"""Text features: computed or read back, and how many of them."""

from harness.spec import Arm, Framework, Mode, Study

SKLEARN = (Framework.SKLEARN,)


def half(name: str, title: str, question: str, mode: Mode, workload: str) -> Study:
    """5,000 TF-IDF features in place of 10,000."""
    return Study(
        id=name,
        title=title,
        question=question,
        mode=mode,
        axis="max_features",
        workloads=(workload,),
        baseline=Arm(name="f10000", sets={"max_features": "10000"}),
        treatments=(Arm(name="f5000", sets={"max_features": "5000"}),),
        frameworks=SKLEARN,
        accuracy="" if mode is Mode.CONVERGENCE else "tfidf-accuracy",
    )


STUDIES = (
    Study(
        id="npy-cache",
        title="Features computed or read back",
        question="Does loading saved text features save time against computing them?",
        mode=Mode.LOADING,
        axis="features",
        workloads=("tfidf_features", "token_ids"),
        baseline=Arm(name="computed", sets={"features": "computed"}),
        treatments=(Arm(name="saved", sets={"features": "saved"}),),
        frameworks=SKLEARN,
    ),
    half(
        "tfidf-vectorize",
        "TF-IDF features halved, vectorising",
        "Do half as many features halve the time of vectorising?",
        Mode.STEADY,
        "tfidf_vectorize",
    ),
    half(
        "tfidf-fit",
        "TF-IDF features halved, fitting",
        "Do half as many features halve the time of fitting?",
        Mode.STEADY,
        "tfidf_fit",
    ),
    half(
        "tfidf-accuracy",
        "TF-IDF features halved, accuracy",
        "What do half as many features cost in accuracy?",
        Mode.CONVERGENCE,
        "tfidf_fit",
    ),
)


def test_text_data(cell, benchmark):
    cell.replay(benchmark)
