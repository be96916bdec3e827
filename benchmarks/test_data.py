"""The data path of images: formats, page cache, decoders, loader processes, tf.data, preprocessing.

Each question is asked of loading alone and of training end to end: a loader's gain that training does not notice is no
gain.
"""

from collections.abc import Mapping

from harness.spec import Arm, Framework, Mode, Study

BOTH = (Framework.TORCH, Framework.TENSORFLOW)
FORMATS = ("tfrecord", "lmdb", "webdataset", "arrow", "lmdb_decoded", "npy", "ram")
BESIDE = ("one", "half", "cores", "double", "quadruple")
FILES: Mapping[str, str] = {"format": "files"}


def study(
    name: str,
    question: str,
    axis: str,
    levels: tuple[str, ...],
    *,
    mode: Mode = Mode.LOADING,
    frameworks: tuple[Framework, ...] = BOTH,
    fixed: Mapping[str, str] = FILES,
) -> Study:
    """One toggle on the photographs: its first level is the baseline, and the arms are named as the levels."""
    baseline, *treatments = [Arm(name=level, sets={**fixed, axis: level}) for level in levels]
    return Study(
        id=name,
        title=question.removesuffix("?"),
        question=question,
        mode=mode,
        axis=axis,
        workloads=("cnn_photos",),
        baseline=baseline,
        treatments=tuple(treatments),
        frameworks=frameworks,
    )


def pair(name: str, question: str, axis: str, levels: tuple[str, ...], **fixed: str) -> tuple[Study, Study]:
    """The question asked of loading alone and of training end to end, in PyTorch."""
    sets, torch = {**FILES, **fixed}, (Framework.TORCH,)
    return (
        study(f"{name}-load", f"Loading alone: {question}", axis, levels, frameworks=torch, fixed=sets),
        study(
            f"{name}-train",
            f"Training end to end: {question}",
            axis,
            levels,
            mode=Mode.END_TO_END,
            frameworks=torch,
            fixed=sets,
        ),
    )


STUDIES = (
    study("format-load", "Which format loads fastest when the page cache holds it?", "format", ("files", *FORMATS)),
    study(
        "format-load-cold",
        "Which format loads fastest from the disk?",
        "format",
        ("files", *FORMATS),
        fixed={"page_cache": "cold"},
    ),
    study(
        "format-train",
        "Does training notice the format?",
        "format",
        ("files", *FORMATS),
        mode=Mode.END_TO_END,
    ),
    study("ram-load", "Does a set in memory load faster than the same pixels on disk?", "format", ("npy", "ram")),
    study(
        "ram-load-cold",
        "Does a set in memory load faster than the same pixels on a disk that was not read before?",
        "format",
        ("npy", "ram"),
        fixed={"page_cache": "cold"},
    ),
    # A tf.data pipeline takes no decoder but TensorFlow's; its rate is that of format-load.
    *pair("decoder", "which JPEG decoder is fastest?", "decoder", ("native", "torchvision", "dali")),
    *pair("workers", "how many loader processes are best?", "workers", ("none", *BESIDE)),
    *pair("workers-costly", "and when samples are costly?", "workers", ("none", *BESIDE), sample="augment"),
    *pair("workers-slow", "and when each read takes 5 ms?", "workers", ("none", *BESIDE), storage_latency="5ms"),
    *pair("workers-double", "are twice as many as cores better?", "workers", ("cores", "double")),
    *pair("persistent", "what does restarting the processes each epoch cost?", "persistent", ("off", "on")),
    *pair("prefetch", "does a deeper queue help?", "prefetch", ("2", "1", "4", "8")),
    study(
        "pin-memory",
        "Does page-locked memory speed training up?",
        "pin_memory",
        ("off", "on"),
        mode=Mode.END_TO_END,
        frameworks=(Framework.TORCH,),
    ),
    study(
        "tfdata-load",
        "What do parallel map, prefetch and cache do for loading?",
        "tfdata",
        ("serial", "parallel", "prefetch", "autotune", "cache"),
        frameworks=(Framework.TENSORFLOW,),
    ),
    study(
        "tfdata-train",
        "What do parallel map, prefetch and cache do for training?",
        "tfdata",
        ("serial", "parallel", "prefetch", "autotune", "cache"),
        mode=Mode.END_TO_END,
        frameworks=(Framework.TENSORFLOW,),
    ),
    study("offline-load", "What does preprocessing once save a loader?", "sample", ("prepare", "prepared")),
    study(
        "offline-train",
        "What does preprocessing once save training?",
        "sample",
        ("prepare", "prepared"),
        mode=Mode.END_TO_END,
    ),
)


def test_data(cell, benchmark):
    cell.replay(benchmark)
