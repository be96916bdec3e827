"""The tf.data pipelines: every format gives the same images, nothing is loaded unseen, every level is what it says.

TensorFlow runs in processes of its own (tests/probes/tensorflow_loading_probe.py); the tests read their reports.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

NEEDED = ("tensorflow", "lmdb", "datasets", "crc32c", "sklearn", "skimage")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
]

PROBE = "tensorflow_loading_probe"
BATCH, N, THREADS = 8, 40, 2
FORMATS = ("files", "tfrecord", "lmdb", "webdataset", "arrow", "lmdb_decoded", "npy", "ram")
DECODED = ("lmdb_decoded", "npy", "ram")
QUESTIONS = (  # of tests/conftest.py: a process for each line
    ("delivery", "gate", "close", "samples", "unavailable"),
    ("orders", "levels", "cache", "scaled", "broken", "end_to_end", "stored"),
)


@pytest.mark.asks("delivery")
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_pillows_pixels_once_in_a_pass_in_another_order_each(answer: Any, name: str) -> None:
    first, second = answer[name]["passes"]
    assert len({digest for _, digest in answer["source"]}) == N
    assert sorted(first) == sorted(second) == answer["source"]
    assert first != second


@pytest.mark.asks("delivery")
def test_a_pass_is_observed(answer: Any) -> None:
    for name in FORMATS:
        decoder = "none" if name in DECODED else "tensorflow"
        seen = answer[name]["observed"]
        assert (seen["format"], seen["decoder"], seen["batch"], seen["workers"]) == (name, decoder, BATCH, THREADS)
        assert (seen["device"], seen["pinned"]) == (None, False)
        assert seen["cached"] == (None if name == "ram" else 1.0)
    assert len({answer[name]["observed"]["order"] for name in FORMATS}) > 1


@pytest.mark.asks("delivery")
def test_no_format_brings_in_pytorch(answer: Any) -> None:
    assert answer["other_framework"] is False


@pytest.mark.asks("orders")
@pytest.mark.parametrize("name", ["files", "tfrecord", "webdataset", "lmdb", "npy"])
def test_the_seed_fixes_the_order_of_each_pass_of_a_serial_pipeline(answer: Any, name: str) -> None:
    once, again, other = (answer[f"{name}-{run}"] for run in ("once", "again", "other"))
    assert once == again
    assert once[0] != once[1]
    assert once[0] != other[0]
    assert sorted(once[0]) == sorted(other[0])


@pytest.mark.asks("levels")
@pytest.mark.parametrize("name", ["files", "tfrecord", "lmdb"])
def test_a_level_maps_and_makes_ahead_what_it_says(answer: Any, name: str) -> None:
    most, ahead, made, workers = zip(
        *(answer[f"{name}-{level}"] for level in ("serial", "parallel", "prefetch", "autotune")), strict=True
    )
    assert made == (N, N, N, N)
    assert most == workers == (1, THREADS, 1, THREADS)
    assert ahead[0] == BATCH  # serial: the batch that was asked for, and not one image more
    assert ahead[1] <= BATCH + 2 * THREADS  # parallel: those that are worked on and those that are done
    assert ahead[2] >= 2 * BATCH
    assert ahead[3] >= 2 * BATCH


@pytest.mark.asks("gate")
def test_nothing_is_read_before_the_clock_runs(answer: Any) -> None:
    for name, blocks in answer.items():
        for begun, opened, ended in blocks:
            if begun > 0 and name == "files":
                pytest.skip("the file system does not let go of its pages")
            assert (begun, opened) == (0.0, 0.0), name
            assert ended > 0.95, name  # npy's labels are in a file of their own, which is not read


@pytest.mark.asks("close")
def test_nothing_goes_on_after_closing_amid_a_pass(answer: Any) -> None:
    for name, seen in answer.items():
        assert seen["read"] == 0, name
        assert seen["busy_s"] < 0.02, name


@pytest.mark.asks("cache")
@pytest.mark.parametrize("name", ["files", "tfrecord"])
def test_a_cache_outlives_its_block_and_gives_every_image_without_reading(answer: Any, name: str) -> None:
    seen = answer[name]
    assert seen["cached"] == [1.0, None, None]
    assert [sorted(made) for made in seen["passes"]] == [answer["source"]] * 3
    assert seen["passes"][0] != seen["passes"][1] != seen["passes"][2]


@pytest.mark.asks("samples")
def test_preparing_and_reading_what_was_prepared_give_equal_pixels(answer: Any) -> None:
    assert sorted(answer["prepare"]) == sorted(answer["prepared"]) == answer["source"]
    assert answer["source"] != answer["plain"]


@pytest.mark.asks("samples")
def test_augmentation_is_random_in_each_pass_and_fixed_by_the_seed(answer: Any) -> None:
    first, second = ({digest for _, digest in made} for made in answer["augment"])
    assert len(first) == len(second) == N
    assert not first & second
    assert not first & {digest for _, digest in answer["plain"]}
    assert answer["augment"] == answer["augment-again"]


@pytest.mark.asks("samples")
@pytest.mark.parametrize("name", ["files", "tfrecord"])
def test_a_delay_is_slept_for_each_record(answer: Any, name: str) -> None:
    assert N * 0.005 < answer[f"{name}-slow"] < N * 0.015


@pytest.mark.asks("end_to_end")
def test_a_pass_trains_bit_for_bit_what_fit_trains(answer: Any) -> None:
    assert answer["batches"] == 2 * N // BATCH
    assert answer["moved"]
    assert answer["same"]


@pytest.mark.asks("end_to_end")
def test_training_is_traced_once_and_waiting_told_apart(answer: Any) -> None:
    waited, seconds = answer["wait"]
    assert 0 < waited < seconds
    assert answer["trace_s"] > 0
    assert answer["traces"] == 1
    assert answer["observed"]["device"] == "cpu"
    assert answer["memory"]["peak"] > 0
    assert answer["memory"]["optimizer"] == answer["memory"]["parameters"] > 0


@pytest.mark.asks("scaled")
@pytest.mark.parametrize("name", ["files", "tfrecord"])
def test_the_users_images_of_any_kind_and_size_equal_pillows(answer: Any, name: str) -> None:
    assert answer[name] == answer["source"]


@pytest.mark.asks("broken")
@pytest.mark.parametrize("name", ["files", "lost", "tfrecord", "webdataset", "empty"])
def test_a_damaged_file_is_an_error_that_names_it(answer: Any, name: str) -> None:
    kind, text, file = answer[name]
    assert kind == "MeasurementError"
    assert file in text
    assert "{{" not in text


@pytest.mark.asks("unavailable")
def test_a_level_that_is_not_tensorflows_says_why(answer: Any) -> None:
    assert "has threads" in answer["workers"]
    assert "no worker processes" in answer["persistent"]
    assert "see tfdata" in answer["prefetch"]
    assert "no such switch" in answer["pin_memory"]
    assert answer["torchvision"] == "torchvision belongs to PyTorch"
    assert "DALI" in answer["dali"] or "dali" in answer["dali"]
    assert "formats of image files" in answer["augment-npy"]
    assert "files and tfrecord only" in answer["latency-lmdb"]
    assert "mapped" in answer["cache-lmdb"]


@pytest.mark.asks("stored")
def test_storing_says_what_it_took(answer: Any) -> None:
    assert answer["files"]["examples"] == answer["npy"]["examples"] == N
    assert answer["files"]["sha256"] == answer["npy"]["sha256"]
    assert answer["npy"]["bytes"] > answer["files"]["bytes"] > 0
