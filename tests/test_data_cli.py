"""The commands ``speedproof data`` as a user meets them."""

from __future__ import annotations

import hashlib
import http.server
import io
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import harness
from harness import data_fetch
from harness.data import cache
from harness.errors import ConfigError

CHECKOUT = Path(harness.__file__).resolve().parent.parent
COMMANDS = ("list", "prepare", "fetch", "clean")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder of a test."""
    monkeypatch.setenv("SPEEDPROOF_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SPEEDPROOF_IMAGES", raising=False)
    return tmp_path / "cache"


def speedproof(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a pipe."""
    return subprocess.run(
        [sys.executable, "-m", "harness.cli", "data", *arguments],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def own_images(root: Path) -> Path:
    for name in ("cat/a.jpg", "cat/b.png", "dog/a.jpg"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((300, 280), 80).save(root / name)
    return root


# --- list, prepare, clean ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example(command):
    done = speedproof(command, "--help")
    assert done.returncode == 0
    assert f"Example: speedproof data {command}" in " ".join(done.stdout.split())


def test_sets_are_made_listed_and_removed(folder, tmp_path):
    images = own_images(tmp_path / "own")
    before = {file: file.read_bytes() for file in images.rglob("*.*")}
    done = speedproof("prepare", "--images", str(images), "--format", "lmdb", "--format", "npy")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split(",")[0] for line in done.stdout.splitlines()] == ["lmdb: 3 images", "npy: 3 images"]

    listed = speedproof("list").stdout
    assert str(folder) in listed
    rows = [line.split() for line in listed.splitlines() if "sets/" in line]
    assert [row[:3] for row in rows] == [["lmdb", "3", "256"], ["npy", "3", "256"]]
    assert "mate-backgrounds" in listed

    (folder / "mine.txt").write_text("the user's")
    (folder / "sets" / "mine").mkdir()
    held = sum(file.stat().st_size for path in cache.made() for file in (path, *path.rglob("*")) if file.is_file())
    done = speedproof("clean", "--yes")
    assert done.returncode == 0
    assert done.stdout.startswith(f"{held} bytes freed")
    assert cache.made() == []
    assert (folder / "mine.txt").exists()
    assert (folder / "sets" / "mine").exists()
    assert {file: file.read_bytes() for file in images.rglob("*.*")} == before
    assert speedproof("clean", "--yes").stdout == f"{folder}: holds nothing\n"


def test_embedded_images_can_be_prepared(folder):
    done = speedproof("prepare", "--examples", "11", "--format", "tfrecord")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("tfrecord: 11 images")


def test_clean_asks_first(folder):
    (folder / "sets" / "lmdb-0123456789abcdef.part").mkdir(parents=True)
    done = speedproof("clean")
    assert done.returncode == 1
    assert "Remove" in done.stdout
    assert len(cache.made()) == 1


def test_a_damaged_set_is_listed_as_such(folder):
    broken = folder / "sets" / "lmdb-0123456789abcdef"
    broken.mkdir(parents=True)
    done = speedproof("list")
    assert done.returncode == 0
    assert f"damaged: {broken}" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("prepare", "--format", "lmbd"), "Did you mean 'lmdb'"),
        (("prepare", "--images", "/nowhere"), "/nowhere: cannot be read"),
        (("fetch", "mate", "--url", "x"), "unknown data set 'mate'"),
        (("fetch", "mate-backgrounds", "--url", "/nowhere.deb"), "/nowhere.deb: cannot be read"),
    ],
)
def test_what_the_user_can_mend_is_one_line(arguments, message):
    done = speedproof(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("speedproof: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


# --- fetch ---------------------------------------------------------------------------------------------------------


def jpeg(side: int) -> bytes:
    noise = np.random.default_rng(side).integers(0, 256, (side, side, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, "JPEG")
    return buffer.getvalue()


def debian_package(files: dict[str, bytes]) -> bytes:
    """An ar archive of three members, as Debian packages are."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:xz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    package = b"!<arch>\n"
    for name, content in (("debian-binary", b"2.0\n"), ("control.tar.xz", b"odd"), ("data.tar.xz", data.getvalue())):
        head = f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
        package += head + content + b"\n" * (len(content) % 2)
    return package


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A package that holds two photographs and what is passed over; the suite knows its hash."""
    content = debian_package(
        {
            "./usr/share/backgrounds/lake.jpg": jpeg(300),
            "./usr/share/backgrounds/lake_3840x2160.jpg": jpeg(310),
            "./usr/share/backgrounds/nature/wood.JPEG": jpeg(400),
            "./usr/share/backgrounds/icon.jpg": jpeg(16),
            "./usr/share/doc/copyright": b"free",
        }
    )
    source = data_fetch.Source(file="a.deb", sha256=hashlib.sha256(content).hexdigest(), photographs=2, licence="CC0")
    monkeypatch.setitem(data_fetch.SOURCES, "small", source)
    return content


class Server(http.server.BaseHTTPRequestHandler):
    """Serves one file, from the byte that is asked for."""

    content = b""
    cut = False  # ends the connection half way
    asked: list[str | None]

    def do_GET(self) -> None:
        """Answer a request."""
        wanted = self.headers["Range"]
        type(self).asked.append(wanted)
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(self.content) - start))
        self.end_headers()
        self.wfile.write(self.content[start : len(self.content) // 2 if self.cut else None])

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server(package: bytes) -> Iterator[tuple[type[Server], str]]:
    """A mirror on this machine, and the address of the package on it."""

    class Mirror(Server):
        content = package
        asked: list[str | None] = []  # noqa: RUF012

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mirror) as mirror:
        thread = threading.Thread(target=mirror.serve_forever)
        thread.start()
        yield Mirror, f"http://127.0.0.1:{mirror.server_address[1]}/a.deb"
        mirror.shutdown()
        thread.join()


def test_a_local_file_becomes_an_image_folder(package, tmp_path):
    (tmp_path / "a.deb").write_bytes(package)
    images = data_fetch.fetch("small", str(tmp_path / "a.deb"), size=32, examples=5)
    assert images.classes == ("lake", "wood")
    assert [str(p.relative_to(images.folder)) for p in images.paths[:3]] == [
        "lake/000000.jpg",
        "wood/000000.jpg",
        "lake/000001.jpg",
    ]


def test_a_file_with_another_hash_is_not_used(package, tmp_path):
    (tmp_path / "a.deb").write_bytes(package + b"x")
    with pytest.raises(ConfigError, match="SHA-256"):
        data_fetch.fetch("small", str(tmp_path / "a.deb"), size=32)


def test_a_download_that_was_cut_goes_on_and_is_not_made_again(server, package, folder):
    mirror, address = server
    mirror.cut = True
    with pytest.raises(ConfigError, match="goes on where it stopped"):
        data_fetch.fetch("small", address, size=32, examples=2)
    assert not (folder / "photos").exists()
    mirror.cut = False
    assert len(data_fetch.fetch("small", address, size=32, examples=2).paths) == 2
    assert mirror.asked == [None, f"bytes={len(package) // 2}-"]
    assert len(data_fetch.fetch("small", address, size=32, examples=3).paths) == 3
    assert len(mirror.asked) == 2


def test_a_download_with_another_hash_is_not_kept(server, folder):
    mirror, address = server
    mirror.content += b"x"
    with pytest.raises(ConfigError, match="name another mirror"):
        data_fetch.fetch("small", address, size=32)
    assert list((folder / "downloads").iterdir()) == []


def test_no_server_is_told(package):
    with pytest.raises(ConfigError, match="cannot be fetched"):
        data_fetch.fetch("small", "http://127.0.0.1:1/a.deb", size=32)
