"""The data sets: what a workload gets, and that nothing altered, half-written or ambiguous ever reaches it."""

from __future__ import annotations

import ast
import gzip
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage

from harness import data
from harness.data import docstrings, fashion_mnist, make_fashion_mnist
from harness.errors import ConfigError, MeasurementError, Unavailable

# --- images --------------------------------------------------------------------------------------------------------


def test_embedded_images_are_balanced_and_every_prefix_is_too() -> None:
    images = data.load("fashion_mnist", size=28)
    assert images.train_x.shape == (6000, 28, 28)
    assert images.test_x.shape == (1000, 28, 28)
    assert images.train_x.dtype == np.uint8
    assert images.train_y.dtype == np.int64
    assert np.bincount(images.train_y).tolist() == [600] * 10
    assert np.bincount(images.test_y).tolist() == [100] * 10
    assert np.bincount(images.train_y[:50]).tolist() == [5] * 10


def test_no_test_image_is_a_training_image() -> None:
    images = data.load("fashion_mnist", size=28)
    train = {image.tobytes() for image in images.train_x}
    assert not train & {image.tobytes() for image in images.test_x}


def test_images_are_loaded_once_per_process_whatever_the_size() -> None:
    assert data.load("fashion_mnist", size=28) is data.load("fashion_mnist", size=64)


def test_an_altered_image_file_is_refused(tmp_path: Path) -> None:
    altered = tmp_path / "fashion_mnist.npz"
    content = bytearray(fashion_mnist.FILE.read_bytes())
    content[len(content) // 2] ^= 1
    altered.write_bytes(content)
    with pytest.raises(Unavailable, match=r"fashion_mnist\.npz: has SHA-256 .* allowed is only .*altered"):
        fashion_mnist.read(altered)


def test_a_missing_image_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"absent\.npz: cannot be read \(No such file or directory\)"):
        fashion_mnist.read(tmp_path / "absent.npz")


def test_the_subset_takes_the_first_images_of_each_class_in_turns() -> None:
    labels = np.array([9, 1, 1, 0, *range(10), *range(10)], np.uint8)
    chosen = make_fashion_mnist.balanced(labels, 2)
    assert labels[chosen].tolist() == [*range(10), *range(10)]
    assert chosen[:2].tolist() == [3, 1]
    assert chosen[10:12].tolist() == [4, 2]


def test_the_script_refuses_files_that_are_not_the_original(tmp_path: Path) -> None:
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 1, 7])))
    with pytest.raises(ConfigError, match=r"train-labels-idx1-ubyte\.gz: its content has SHA-256"):
        make_fashion_mnist.make(tmp_path, tmp_path / "out.npz")


# --- preparing images ----------------------------------------------------------------------------------------------


def test_prepared_images_at_their_own_size_are_only_normalised() -> None:
    x = np.array([[[0, 255], [51, 102]]], np.uint8)
    prepared = data.prepare_images(x, 2, 1)
    expected = (x / 255 - data.IMAGE_MEAN) / data.IMAGE_STD
    assert prepared.dtype == np.float32
    np.testing.assert_allclose(prepared[..., 0], expected, atol=1e-6)


def test_the_training_set_is_normalised() -> None:
    images = data.load("fashion_mnist", size=28)
    prepared = data.prepare_images(images.train_x, 28, 1)
    assert abs(prepared.mean()) < 0.02
    assert abs(prepared.std() - 1) < 0.02


def test_resizing_matches_a_known_bilinear_result() -> None:
    # Doubling [0, 100] between pixel centres: 0, 25, 75, 100.
    x = np.array([[[0, 100], [0, 100]]], np.uint8)
    grey = data.prepare_images(x, 4, 1)[0, :, :, 0] * data.IMAGE_STD + data.IMAGE_MEAN
    np.testing.assert_allclose(grey * 255, [[0, 25, 75, 100]] * 4, atol=1e-3)


@pytest.mark.parametrize("size", [14, 28, 64])
def test_resizing_agrees_with_an_independent_implementation(size: int) -> None:
    x = data.load("fashion_mnist", size=28).train_x[:3]
    centres = (np.arange(size) + 0.5) * 28 / size - 0.5
    grid = np.meshgrid(centres, centres, indexing="ij")
    expected = np.stack([ndimage.map_coordinates(i.astype(float), grid, order=1, mode="nearest") for i in x])
    grey = data.prepare_images(x, size, 1)[..., 0] * data.IMAGE_STD + data.IMAGE_MEAN
    np.testing.assert_allclose(grey * 255, expected, atol=1e-3)


def test_grey_is_repeated_over_the_channels() -> None:
    prepared = data.prepare_images(data.load("fashion_mnist", size=28).train_x[:2], 64, 3)
    assert prepared.shape == (2, 64, 64, 3)
    assert prepared.flags.c_contiguous
    assert np.array_equal(prepared[..., 0], prepared[..., 1])
    assert np.array_equal(prepared[..., 0], prepared[..., 2])


def test_an_image_is_prepared_alike_in_any_batch() -> None:
    x = data.load("fashion_mnist", size=28).train_x[:40]
    assert np.array_equal(data.prepare_images(x, 64, 1)[7:9], data.prepare_images(x[7:9], 64, 1))


# --- order ---------------------------------------------------------------------------------------------------------


def test_an_epoch_takes_each_example_at_most_once_and_drops_the_rest() -> None:
    order = data.epoch_order(103, 10, seed=0, epoch=0)
    assert order.shape == (10, 10)
    assert order.dtype == np.int64
    assert len(np.unique(order)) == 100
    assert order.max() < 103


def test_order_is_fixed_by_seed_and_epoch_and_changes_with_each() -> None:
    order = data.epoch_order(64, 8, seed=3, epoch=1)
    assert np.array_equal(order, data.epoch_order(64, 8, seed=3, epoch=1))
    assert not np.array_equal(order, data.epoch_order(64, 8, seed=4, epoch=1))
    assert not np.array_equal(order, data.epoch_order(64, 8, seed=3, epoch=2))


def test_arms_with_other_batches_see_the_examples_in_the_same_order() -> None:
    small, large = data.epoch_order(96, 8, seed=1, epoch=2), data.epoch_order(96, 32, seed=1, epoch=2)
    assert np.array_equal(small.ravel(), large.ravel())


@pytest.mark.parametrize("batch", [0, 11])
def test_a_batch_that_cannot_be_filled_is_refused(batch: int) -> None:
    with pytest.raises(MeasurementError, match=rf"a batch of {batch} cannot be filled from 10 .* allowed: 1 to 10"):
        data.epoch_order(10, batch, seed=0, epoch=0)


# --- text ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def corpus() -> docstrings.Corpus:
    """The corpus of this installation, from the user's cache where there is one."""
    return docstrings._corpus()


def test_text_is_balanced_and_every_prefix_is_too(corpus: docstrings.Corpus) -> None:
    classes = len(docstrings.PACKAGES)
    assert np.bincount([y for _, y in corpus.train]).tolist() == [docstrings.TRAIN_PER_CLASS] * classes
    assert np.bincount([y for _, y in corpus.test]).tolist() == [docstrings.TEST_PER_CLASS] * classes
    assert [y for _, y in corpus.train[:classes]] == list(range(classes))


def test_no_text_occurs_twice(corpus: docstrings.Corpus) -> None:
    texts = [text for text, _ in corpus.train + corpus.test]
    assert len(set(texts)) == len(texts)


def test_no_text_names_its_package(corpus: docstrings.Corpus) -> None:
    names = {name for package in docstrings.PACKAGES for name in package.names}
    assert not [t for t, _ in corpus.train + corpus.test if names & set(docstrings.words(t))]


def test_rows_begin_with_the_start_token_and_end_with_padding() -> None:
    text = data.load("docstrings", size=32)
    assert text.train_x.shape[1] == 32
    assert text.train_x.dtype == np.int32
    assert (text.train_x[:, 0] == docstrings.START).all()
    assert (text.train_x[:, 1:] != docstrings.START).all()
    assert text.train_x.max() < data.VOCABULARY
    padded = text.test_x == docstrings.PAD
    assert (padded[:, :-1] <= padded[:, 1:]).all()
    assert padded.any()
    assert not padded.all(axis=1).any()


def test_a_longer_row_continues_a_shorter_one() -> None:
    short, long = data.load("docstrings", size=16), data.load("docstrings", size=64)
    assert np.array_equal(short.train_x, long.train_x[:, :16])
    assert short.sha256 == long.sha256


def test_the_text_task_can_be_learnt_from_its_words() -> None:
    """Naive Bayes over the words in a row of 32 tokens is far above guessing (11%) and below certainty."""
    text = data.load("docstrings", size=32)

    def occurs(x: NDArray[np.generic]) -> NDArray[np.float32]:
        found = np.zeros((len(x), data.VOCABULARY), np.float32)
        np.put_along_axis(found, x.astype(np.int64), 1, axis=1)
        return found

    train, test = occurs(text.train_x), occurs(text.test_x)
    counts = np.stack([train[text.train_y == label].sum(0) for label in range(text.classes)]) + 0.3
    guess = np.argmax(test @ np.log(counts / counts.sum(1, keepdims=True)).T, axis=1)
    assert 0.6 < (guess == text.test_y).mean() < 0.95


def test_the_hash_depends_on_texts_and_labels() -> None:
    one = docstrings.Corpus(train=(("a b", 0),), test=(("c", 1),))
    relabelled = docstrings.Corpus(train=(("a b", 1),), test=(("c", 1),))
    moved = docstrings.Corpus(train=(("a b", 0), ("c", 1)), test=())
    assert len({one.sha256(), relabelled.sha256(), moved.sha256()}) == 3


def test_docstrings_are_those_of_modules_classes_and_functions_without_package_names() -> None:
    source = '''"""The module about numpy arrays and their many uses."""
class A:
    """A class that holds a pd.Series of np.float32 values."""
    if True:
        async def f(self):
            """Short."""
            def g():
                """An inner function of NumPy_testing,\n            on two lines, it has."""
    text = """Assigned text is not a docstring at all, is it."""
'''
    assert sorted(docstrings.docstrings_of(source.encode())) == [
        "A class that holds a .Series of .float32 values.",
        "An inner function of _testing, on two lines, it has.",
        "The module about arrays and their many uses.",
    ]


def test_a_source_that_this_python_cannot_parse_holds_no_text() -> None:
    assert list(docstrings.docstrings_of(b'"""A template with enough words to count."""\nprint {{ x }} y')) == []


def test_words_seen_once_in_training_are_unknown() -> None:
    vocabulary = docstrings.build_vocabulary([["b", "a", "once"], ["b", "a", "b"]])
    assert vocabulary == {"b": 3, "a": 4}
    rows = docstrings.encode([["a", "once", "b", "b"], []], vocabulary, 4)
    assert rows.tolist() == [[2, 4, 1, 3], [2, 0, 0, 0]]


def test_words_are_runs_of_letters_or_digits_and_single_signs() -> None:
    assert docstrings.words("Use snake_case[10], é!") == ["use", "snake", "case", "[", "10", "]", ",", "!"]


def test_a_package_with_too_few_docstrings_is_unavailable_with_the_fix() -> None:
    package = docstrings.PACKAGES[0]
    with pytest.raises(Unavailable, match=f"needs 1000000 docstrings of {package.module}.*pip install"):
        docstrings._texts_of(package, 1_000_000, set())


def test_a_package_that_is_not_installed_is_unavailable_with_the_fix() -> None:
    package = docstrings.Package(module="no_such_module", distribution="no-such", names=())
    with pytest.raises(Unavailable, match="no_such_module, which is not installed; pip install no-such"):
        docstrings._texts_of(package, 1, set())


# --- cache ---------------------------------------------------------------------------------------------------------

SMALL = docstrings.Corpus(train=(("ä text", 0), ("another", 1)), test=(("third", 0),))


def test_the_cache_gives_back_what_was_written_and_leaves_no_other_file(tmp_path: Path) -> None:
    file = tmp_path / "new folder" / "docstrings.json"
    docstrings.write_cache(file, SMALL)
    assert docstrings.read_cache(file) == SMALL
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: content.replace(b"another", b"altered"),
        lambda content: b"\xff\xfe",
        lambda content: b"[]",
        lambda content: b"",
    ],
    ids=["half", "altered", "not-utf8", "other-json", "empty"],
)
def test_a_damaged_cache_is_read_again_from_the_packages(
    damage: Callable[[bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SPEEDPROOF_CACHE", str(tmp_path))
    file = docstrings.cache_file()
    assert file is not None
    docstrings.write_cache(file, SMALL)
    file.write_bytes(damage(file.read_bytes()))
    monkeypatch.setattr(docstrings, "read_corpus", lambda: SMALL)
    with caplog.at_level(logging.WARNING):
        assert docstrings._corpus.__wrapped__() == SMALL
    assert "damaged, read again" in caplog.text
    assert docstrings.read_cache(file) == SMALL


def test_an_unwritable_cache_costs_a_warning_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SPEEDPROOF_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(docstrings, "read_corpus", lambda: SMALL)
    assert docstrings._corpus.__wrapped__() == SMALL
    assert "not cached" in caplog.text
    assert "SPEEDPROOF_CACHE" in caplog.text


def test_the_cache_lies_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPEEDPROOF_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = docstrings.cache_file()
    assert file is not None
    assert file.parent == tmp_path / "speedproof"
    monkeypatch.setenv("SPEEDPROOF_CACHE", str(tmp_path / "own"))
    own = docstrings.cache_file()
    assert own is not None
    assert own == tmp_path / "own" / file.name


def test_another_version_of_a_package_is_another_cache_file(monkeypatch: pytest.MonkeyPatch) -> None:
    before = docstrings.cache_file()
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.0.test")
    assert docstrings.cache_file() != before


# --- names ---------------------------------------------------------------------------------------------------------


def test_an_unknown_data_set_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown data set 'fashion_minst'; allowed: .* Did you mean 'fashion_mnist'"
    ):
        data.load("fashion_minst", size=28)


def test_nothing_of_the_data_can_reach_the_network() -> None:
    folder = Path(data.__file__).parent
    for file in folder.glob("*.py"):
        imported = {
            name.split(".")[0]
            for node in ast.walk(ast.parse(file.read_text("utf-8")))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
        }
        assert not imported & {"urllib", "http", "socket", "requests", "pooch", "ftplib", "subprocess"}, file


def test_the_licence_of_the_images_lies_beside_them() -> None:
    text = fashion_mnist.FILE.with_name("fashion_mnist.LICENSE").read_text("utf-8")
    assert "MIT License" in text
    assert "Zalando" in text
