"""The page cache of real files. Where the file system does not let go of its pages, the tests say so and skip."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from harness.data import page_cache
from harness.errors import Unavailable

MB = 1 << 20


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """One page and a bit, an empty file, and 4 MB; none of them cached."""
    found = []
    for name, length in (("small", 5000), ("empty", 0), ("large", 4 * MB)):
        found.append(tmp_path / name)
        found[-1].write_bytes(os.urandom(length))
    page_cache.evict(found)
    if page_cache.cached_share(found) > 0.5:
        pytest.skip(f"{tmp_path}: the file system keeps its pages (tmpfs, or an overlay)")
    return found


def test_evicted_files_are_gone_and_warmed_files_are_there(files):
    assert page_cache.cached_share(files) == 0.0
    page_cache.warm(files)
    assert page_cache.cached_share(files) == 1.0
    page_cache.evict(files)
    assert page_cache.cached_share(files) == 0.0


def test_the_share_goes_by_bytes_not_by_files(files):
    page_cache.warm(files[:1])
    assert page_cache.cached_share(files) == pytest.approx(2 / (2 + 1024))


def test_fresh_writes_are_flushed_before_they_are_dropped(files):
    files[0].write_bytes(b"x" * 5000)
    page_cache.evict(files)
    assert page_cache.cached_share(files) == 0.0
    assert files[0].read_bytes() == b"x" * 5000


def test_a_mapping_holds_its_pages_until_it_is_closed(files):
    mapped = np.memmap(files[2], np.uint8, "r")
    assert int(mapped.max()) > 0
    page_cache.evict(files)
    assert page_cache.cached_share(files) > 0.5
    del mapped
    page_cache.evict(files)
    assert page_cache.cached_share(files) == 0.0


def test_both_ways_of_looking_see_the_same(files):
    page_cache.warm(files)
    with open(files[2], "rb") as file:
        os.posix_fadvise(file.fileno(), 0, MB, os.POSIX_FADV_DONTNEED)
        counted = page_cache.mincore(file.fileno(), 1024)
        assert 0 < counted < 1024
        try:
            assert page_cache.cachestat(file.fileno()) == counted
        except OSError as error:
            pytest.skip(f"this kernel has no cachestat: {error}")


def test_no_file_at_all_counts_as_cached():
    assert page_cache.cached_share([]) == 1.0


@pytest.mark.skipif(os.geteuid() == 0, reason="the kernel shows root the pages of every file")
def test_the_pages_of_another_users_file_are_not_guessed():
    with pytest.raises(Unavailable, match="another user"):
        page_cache.cached_share([Path("/etc/passwd")])


def test_thousands_of_small_files_are_looked_at_quickly(tmp_path):
    files = [tmp_path / str(i) for i in range(2000)]
    for file in files:
        file.write_bytes(b"x" * 100)
    started = time.process_time()
    page_cache.cached_share(files)
    assert time.process_time() - started < 0.3
