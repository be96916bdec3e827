"""The text set: docstrings of installed packages, to be told apart by package.

Nine packages that every installation of speedproof has are read as source text with :mod:`ast`; none is imported.
Their names are taken out of the texts, since they would give the answer away. Each class gives as many texts, so
guessing gets 11%. The content is fixed by the installed versions, hence by the lock file; :attr:`Arrays.sha256` says
which content a result belongs to, and only equal hashes compare.

Reading takes some seconds, so the texts are cached outside the checkout: in ``$SPEEDPROOF_CACHE``, else in
``$XDG_CACHE_HOME/speedproof``, else in ``~/.cache/speedproof``. The folder may be deleted at any time.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.data import VOCABULARY, Arrays, cache
from harness.errors import Unavailable

TRAIN_PER_CLASS = 400
TEST_PER_CLASS = 100

PAD, UNKNOWN, START, FIRST_WORD = range(4)
# A word seen once in training teaches nothing but itself; as "unknown" it trains the token that new words of the test
# set will get.
MIN_COUNT = 2
MIN_WORDS = 6

MAX_CHARACTERS = 800  # about 170 tokens: more than the longest row of tokens that a workload takes
MAX_FILE_BYTES = 150_000  # larger ones are generated tables: slow to parse, hardly a docstring
RECIPE = 1  # raise when the same packages would give other texts: it is part of the cache key

_WORD = re.compile(r"[a-z]+|[0-9]+|[^\w\s]")
_CREDITS = re.compile(r":copyright:.*", re.DOTALL)  # names the package's authors
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Package:
    """One class: the import name, the distribution it comes from, and the names by which texts would give it away."""

    module: str
    distribution: str
    names: tuple[str, ...]


PACKAGES = (
    Package(module="_pytest", distribution="pytest", names=("pytest", "pytester")),
    Package(module="fontTools", distribution="fonttools", names=("fonttools", "ttlib", "ttx")),
    Package(module="matplotlib", distribution="matplotlib", names=("matplotlib", "mpl", "plt", "pyplot", "pylab")),
    Package(module="numpy", distribution="numpy", names=("numpy", "np", "ndarray")),
    Package(module="pandas", distribution="pandas", names=("pandas", "pd", "dataframe", "dataframes")),
    Package(module="pydantic", distribution="pydantic", names=("pydantic", "basemodel")),
    Package(module="pygments", distribution="pygments", names=("pygments",)),
    Package(module="rich", distribution="rich", names=("rich",)),
    Package(module="scipy", distribution="scipy", names=("scipy", "sp")),
)

_NAMES = re.compile(r"(?<![a-z])(?:" + "|".join(n for p in PACKAGES for n in p.names) + r")(?![a-z])", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """Texts with their labels (indices into :data:`PACKAGES`), classes taking turns."""

    train: tuple[tuple[str, int], ...]
    test: tuple[tuple[str, int], ...]

    def sha256(self) -> str:
        """Hash of all texts and labels in their order."""
        return hashlib.sha256(json.dumps([self.train, self.test]).encode()).hexdigest()


@functools.cache
def load(size: int) -> Arrays:
    """The set with ``size`` tokens to a row.

    Raises :class:`~harness.errors.Unavailable` where a package's sources hold too few docstrings.
    """
    corpus = texts()
    train, test = ([words(text) for text, _ in part] for part in (corpus.train, corpus.test))
    vocabulary = build_vocabulary(train)
    return Arrays(
        train_x=encode(train, vocabulary, size),
        train_y=np.array([label for _, label in corpus.train], np.int64),
        test_x=encode(test, vocabulary, size),
        test_y=np.array([label for _, label in corpus.test], np.int64),
        classes=len(PACKAGES),
        sha256=corpus.sha256(),
    )


def texts() -> Corpus:
    """The texts themselves, read once per process; raises as :func:`load` does."""
    return _corpus()


@functools.cache
def _corpus() -> Corpus:
    file = cache_file()
    if file is None:
        return read_corpus()
    corpus = read_cache(file)
    if corpus is None:
        corpus = read_corpus()
        write_cache(file, corpus)
    return corpus


# --- texts ---------------------------------------------------------------------------------------------------------


def read_corpus() -> Corpus:
    """Read the packages' sources; takes some seconds. Each text is in the corpus once, whatever its class."""
    seen: set[str] = set()
    wanted = TRAIN_PER_CLASS + TEST_PER_CLASS
    classes = []
    for package in PACKAGES:
        texts = _texts_of(package, wanted, seen)
        seen.update(texts)
        classes.append(texts)
    turns = [(text, label) for same_rank in zip(*classes, strict=True) for label, text in enumerate(same_rank)]
    cut = TRAIN_PER_CLASS * len(PACKAGES)
    return Corpus(train=tuple(turns[:cut]), test=tuple(turns[cut:]))


def _texts_of(package: Package, wanted: int, seen: set[str]) -> list[str]:
    """The ``wanted`` texts of a package, in the order of their hashes."""
    texts: set[str] = set()
    for file in _sources(package):
        texts.update(text for text in docstrings_of(file.read_bytes()) if text not in seen)
        if len(texts) >= wanted:
            return sorted(texts, key=_hash)[:wanted]
    raise Unavailable(
        f"the text set needs {wanted} docstrings of {package.module}, its installed sources hold {len(texts)}; "
        f"reinstall it with pip install --force-reinstall {package.distribution}"
    )


def _sources(package: Package) -> list[Path]:
    """Python files of a package, tests left out, in the order of their paths' hashes: a fixed, unbiased sample."""
    found = importlib.util.find_spec(package.module)
    if found is None or found.origin is None:
        raise Unavailable(
            f"the text set reads the sources of {package.module}, which is not installed; "
            f"pip install {package.distribution}"
        )
    root = Path(found.origin).parent
    names = {f.relative_to(root).as_posix(): f for f in root.rglob("*.py")}
    kept = [n for n, f in names.items() if "tests" not in n.split("/") and f.stat().st_size <= MAX_FILE_BYTES]
    return [names[name] for name in sorted(kept, key=_hash)]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def docstrings_of(source: bytes) -> Iterator[str]:
    """The docstrings of a module and of the classes and functions in it, package names removed, white space evened."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other people's escape sequences
            pending: list[ast.AST] = [ast.parse(source)]
    except SyntaxError:  # a template, or written for another Python: no text of this installation
        return
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = _clean(ast.get_docstring(node, clean=False) or "")
            if len(_WORD.findall(text.lower())) >= MIN_WORDS:
                yield text
        # Definitions hang in bodies only; walking the expressions too would take most of the time.
        for block in ("body", "orelse"):
            inner = getattr(node, block, ())
            pending.extend(inner if isinstance(inner, list) else ())


def _clean(docstring: str) -> str:
    return " ".join(_NAMES.sub(" ", _CREDITS.sub("", docstring)).split())[:MAX_CHARACTERS]


# --- tokens --------------------------------------------------------------------------------------------------------


def words(text: str) -> list[str]:
    """Runs of letters, runs of digits and single signs, in lower case; underscores only separate."""
    return _WORD.findall(text.lower())


def build_vocabulary(texts: Iterable[list[str]]) -> dict[str, int]:
    """Ids from :data:`FIRST_WORD` for the most frequent words, ties in alphabetical order, below ``VOCABULARY``."""
    counts = Counter(word for text in texts for word in text)
    ranked = sorted((word for word, n in counts.items() if n >= MIN_COUNT), key=lambda word: (-counts[word], word))
    return {word: FIRST_WORD + rank for rank, word in enumerate(ranked[: VOCABULARY - FIRST_WORD])}


def encode(texts: Sequence[list[str]], vocabulary: dict[str, int], size: int) -> NDArray[np.int32]:
    """Token ids, int32 [texts, size]: the start token, the first ``size - 1`` words, padding."""
    rows = np.full((len(texts), size), PAD, np.int32)
    rows[:, 0] = START
    for row, text in zip(rows, texts, strict=True):
        ids = [vocabulary.get(word, UNKNOWN) for word in text[: size - 1]]
        row[1 : 1 + len(ids)] = ids
    return rows


def tokenise(texts: Iterable[str], vocabulary: dict[str, int], size: int) -> NDArray[np.int32]:
    """Texts to token ids: :func:`words`, then :func:`encode`."""
    return encode([words(text) for text in texts], vocabulary, size)


# --- cache ---------------------------------------------------------------------------------------------------------


def cache_file() -> Path | None:
    """Where the texts of the installed versions are cached; ``None`` where there is no home folder to cache in."""
    try:
        folder = cache.cache_path()
    except Unavailable:
        return None
    return folder / f"docstrings-{_key()[:16]}.json"


def _key() -> str:
    """Hash of all that decides the texts: the recipe and the installed versions."""
    versions = [[p.module, importlib.metadata.version(p.distribution), *p.names] for p in PACKAGES]
    return _hash(
        json.dumps([RECIPE, TRAIN_PER_CLASS, TEST_PER_CLASS, MIN_WORDS, MAX_CHARACTERS, MAX_FILE_BYTES, versions])
    )


def read_cache(file: Path) -> Corpus | None:
    """The cached corpus, or ``None`` where there is none or its content does not have the hash it was stored with."""
    try:
        stored = json.loads(file.read_text("utf-8"))
        corpus = Corpus(**{part: tuple((str(t), int(y)) for t, y in stored[part]) for part in ("train", "test")})
        if corpus.sha256() == stored["sha256"]:
            return corpus
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        _log.info("%s: unreadable (%s)", file, error)
    _log.warning("%s: damaged, read again from the installed packages", file)
    return None


def write_cache(file: Path, corpus: Corpus) -> None:
    """Store a corpus so that a reader sees all or nothing; an unwritable folder only costs the time of reading."""
    content = json.dumps({"sha256": corpus.sha256(), "train": corpus.train, "test": corpus.test})
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=file.parent, suffix=".part", delete=False) as part:
            part.write(content)
        os.replace(part.name, file)
    except OSError as error:
        _log.warning("%s: the text set is not cached (%s); set SPEEDPROOF_CACHE to a writable folder", file, error)
