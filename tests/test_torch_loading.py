"""The PyTorch loaders: every format gives the same images, nothing is loaded unseen, every level does what it says.

PyTorch runs in processes of its own (tests/probes/torch_loading_probe.py), which report; the tests read their reports.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

NEEDED = ("torch", "torchvision", "lmdb", "webdataset", "tfrecord", "datasets", "crc32c", "sklearn", "skimage")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
DALI = importlib.util.find_spec("nvidia") is not None and importlib.util.find_spec("nvidia.dali") is not None

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
]
needs_dali = pytest.mark.skipif(not DALI, reason="DALI is not installed")
DECODERS = ("torchvision", pytest.param("dali", marks=needs_dali))

PROBE = "torch_loading_probe"
BATCH, N = 8, 40
INDEXED = ("files", "lmdb", "arrow", "lmdb_decoded", "npy", "ram")
SHARDED = ("tfrecord", "webdataset")
DECODED = ("lmdb_decoded", "npy", "ram")
QUESTIONS = (  # of tests/conftest.py: a process for each line
    ("delivery", "gate", "in_memory", "rest", "unavailable", "shrink", "stored"),
    ("orders", "close", "scaled", "broken", "toggles", "end_to_end"),
)


@pytest.mark.asks("delivery")
@pytest.mark.parametrize("name", [*INDEXED, *SHARDED, *DECODERS])
def test_every_format_and_decoder_gives_the_same_images_once_in_a_pass_in_another_order_each(
    answer: Any, name: str
) -> None:
    first, second = answer[name]["passes"]
    images = sorted(answer["files"]["passes"][0])
    assert len({tuple(image) for image in images}) == N
    assert sorted(first) == sorted(second) == images
    assert first != second


@pytest.mark.asks("delivery")
@pytest.mark.parametrize("name", INDEXED)
def test_formats_with_an_index_share_one_order(answer: Any, name: str) -> None:
    assert answer[name]["passes"] == answer["files"]["passes"]
    assert answer[name]["observed"]["order"] == answer["files"]["observed"]["order"]


@pytest.mark.asks("delivery")
def test_a_pass_is_observed(answer: Any) -> None:
    for name in (*INDEXED, *SHARDED):
        decoder = "none" if name in DECODED else "pillow"
        seen = answer[name]["observed"]
        assert (seen["format"], seen["decoder"], seen["batch"], seen["workers"]) == (name, decoder, BATCH, 2)
        assert (seen["device"], seen["pinned"]) == (None, False)
        assert seen["cached"] == (None if name == "ram" else 1.0)
    assert answer["torchvision"]["observed"]["decoder"] == "torchvision"


@pytest.mark.asks("orders")
@pytest.mark.parametrize("name", ["files", *SHARDED])
def test_seed_and_pass_fix_the_order(answer: Any, name: str) -> None:
    assert answer[f"{name}-once"] == answer[f"{name}-again"]
    assert len({*answer[f"{name}-once"], *answer[f"{name}-other"]}) == 4


@pytest.mark.asks("rest")
def test_only_what_fills_no_batch_is_dropped_however_many_workers_read_shards(answer: Any) -> None:
    assert answer == {"files": 32, "tfrecord": 32, "webdataset": 32}


@pytest.mark.asks("gate")
def test_nothing_is_read_before_the_clock_runs(answer: Any) -> None:
    for name, seen in answer.items():
        if seen["observed"] > 0:
            pytest.skip("the file system does not let go of its pages")
        assert (seen["before"], seen["after"]) == (0.0, 1.0), name


@pytest.mark.asks("scaled")
@pytest.mark.parametrize("name", DECODERS)
def test_images_of_another_size_are_scaled_and_cut_alike(answer: Any, name: str) -> None:
    assert answer[name] < 1


@pytest.mark.asks("in_memory")
def test_a_set_in_memory_is_decoded_once_for_all_blocks_and_workers(answer: Any) -> None:
    assert answer == [N] * 4


@pytest.mark.asks("close")
def test_nothing_is_left_of_a_closed_loader_whether_it_ran_or_not(answer: Any) -> None:
    for name, seen in answer.items():
        assert seen["while_open"] == 2, name
        assert seen["left"], name
        assert seen["seconds"] < 5, name


@pytest.mark.asks("broken")
@pytest.mark.parametrize("name", ["cores", "none", *DECODERS])
def test_a_damaged_image_is_an_error_that_names_it(answer: Any, name: str) -> None:
    kind, text = answer[name]
    assert kind == "MeasurementError"
    assert "class0/017.jpg" in text[:300]  # no more of a reason is kept
    assert "\n" not in text


@pytest.mark.asks("broken")
@pytest.mark.parametrize("name", SHARDED)
def test_a_cut_shard_is_an_error_that_names_it(answer: Any, name: str) -> None:
    kind, text = answer[name]
    assert kind == "MeasurementError"
    assert text.startswith(f"{answer[f'{name}-shard']}: damaged")


@pytest.mark.asks("broken")
def test_a_killed_worker_is_an_error_and_the_rest_can_be_ended(answer: Any) -> None:
    assert "DataLoader worker" in answer["killed"][1]
    assert answer["left"] == 0


@pytest.mark.asks("broken")
def test_too_little_shared_memory_is_said_before_a_worker_starts(answer: Any) -> None:
    kind, text = answer["shared_memory"]
    assert kind == "MeasurementError"
    assert text.startswith("/dev/shm has 0 MB free")
    assert "--shm-size" in text


@pytest.mark.asks("toggles")
def test_levels_of_workers_are_numbers_of_processes(answer: Any) -> None:
    assert answer["workers"] == {"none": 0, "one": 1, "cores": 2, "double": 4, "quadruple": 8}


@pytest.mark.asks("toggles")
def test_persistent_workers_live_from_pass_to_pass(answer: Any) -> None:
    kept, renewed = ({tuple(pids) for pids in answer["pids"][level]} for level in ("on", "off"))
    assert len(kept) == 1
    assert len(renewed) == 2
    assert not set.intersection(*map(set, renewed))


@pytest.mark.asks("toggles")
def test_prefetch_is_the_depth_of_the_queue(answer: Any) -> None:
    assert answer["prefetch"] == {"1": 1, "2": 2, "8": 8}


@pytest.mark.asks("toggles")
@pytest.mark.parametrize("name", ["files", "lmdb", "tfrecord"])
def test_each_read_waits_for_the_storage(answer: Any, name: str) -> None:
    assert answer["seconds"][name] > N * 0.005


@pytest.mark.asks("toggles")
def test_samples_are_changed_in_the_same_way_wherever_they_are_made(answer: Any) -> None:
    samples = answer["samples"]
    for level, (beside, here) in samples.items():
        assert beside == here, level
    decoded, augmented, prepared = ({image for _, image in samples[s][0]} for s in ("decode", "augment", "prepare"))
    assert len(decoded | augmented | prepared) == 3 * N
    assert samples["prepared"] == samples["prepare"]


@pytest.mark.asks("unavailable")
def test_a_level_that_is_another_one_or_means_nothing_here_says_why(answer: Any) -> None:
    runs = ["cores", "sharded", "one_core", *(["dali"] if DALI else [])]
    assert [answer[name] for name in runs] == [None] * len(runs)
    assert answer["half"] == "workers 'half' comes to 1 with 2 core(s), the same as 'one'"
    assert answer["one_core-one"] == "workers 'one' comes to 1 with 1 core(s), the same as 'cores'"
    assert "8 shards, and each of 12 workers" in answer["too_few_shards"]
    assert "DataLoader" in answer["tfdata"]
    assert "no worker processes" in answer["persistent"]
    assert answer["pinned"] is None or "no device to copy to" in answer["pinned"]


@pytest.mark.asks("unavailable")
@needs_dali
def test_dali_says_what_its_pipeline_does_not_do(answer: Any) -> None:
    assert "format 'files' only" in answer["dali-packed"]
    assert "threads of its own" in answer["dali-none"]


@pytest.mark.asks("end_to_end")
@pytest.mark.parametrize("name", ["pillow", pytest.param("dali", marks=needs_dali)])
def test_each_batch_is_trained_on(answer: Any, name: str) -> None:
    seen = answer[name]
    assert seen["observed"]["device"] == "cpu"
    assert seen["learned"]
    assert seen["finite"]
    assert seen["steps"] == [2 * N // BATCH] * 2
    assert 0 < seen["seconds"][0] < seen["seconds"][1]
    assert seen["input"] == [[BATCH, 3, 64, 64], "torch.float32", True]
    assert seen["range"] == pytest.approx([-2, 2], abs=0.3)
    assert seen["memory"]["parameters"] == seen["memory"]["optimizer"] == 4 * seen["parameters"]


@pytest.mark.asks("shrink")
def test_the_model_sees_scaled_means_of_squares_of_pixels(answer: Any) -> None:
    assert answer["off"] < 1e-6
    assert answer["logits"] == 11


@pytest.mark.asks("stored")
def test_a_stored_set_says_what_it_took(answer: Any) -> None:
    files, npy = answer["files"], answer["npy"]
    assert npy["bytes"] > N * 64 * 64 * 3
    assert files["examples"] == npy["examples"] == N
    assert files["sha256"] == npy["sha256"]
    assert npy["seconds"] > 0
