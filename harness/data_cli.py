"""The commands ``speedproof data``: what the cache holds, making it beforehand, fetching more, and cleaning up."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.errors import ConfigError, SpeedproofError, Unavailable
from harness.spec import IMAGES

if TYPE_CHECKING:
    from harness.data.cache import Manifest, Report

SIZE = 256  # side of the images in pixels, that of the workload which reads them

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="The stored data: what there is, making it beforehand, fetching more, cleaning up.",
)

Examples = Annotated[int | None, typer.Option("--examples", help="Number of images.", metavar="N", min=1)]


@app.command("list", short_help="Stored sets, and what can be fetched.")
def list_() -> None:
    """List the sets in the cache with their bytes and what making them took, and what can be fetched.

    Example: speedproof data list
    """
    from harness import data_fetch
    from harness.data import cache

    typer.echo(f"Cache: {cache.cache_path()} (SPEEDPROOF_CACHE chooses another folder)")
    typer.echo(f"{'format':<14}{'images':>8}{'px':>6}{'MB':>10}{'seconds':>9}  folder")
    total = 0
    for folder, manifest in _stored():
        if isinstance(manifest, SpeedproofError):
            typer.echo(f"damaged: {manifest}")
            continue
        total += manifest.bytes
        typer.echo(
            f"{manifest.format:<14}{manifest.examples:>8}{manifest.size:>6}{manifest.bytes / 1e6:>10.1f}"
            f"{manifest.seconds:>9.1f}  {folder.relative_to(cache.cache_path())}"
        )
    typer.echo(f"{total / 1e6:.1f} MB in finished sets")
    typer.echo(
        "\nCan be fetched with `speedproof data fetch NAME --url URL`, where URL is a mirror's address of the file:"
    )
    for name, source in data_fetch.SOURCES.items():
        typer.echo(f"  {name:<20}{source.photographs} photographs, {source.licence}; {source.file}")


def _stored() -> Iterator[tuple[Path, Manifest | SpeedproofError]]:
    from harness.data import cache

    for folder in cache.made():
        if folder.is_dir() and folder.suffix != cache.PART:
            try:
                yield folder, cache.read_manifest(folder)
            except SpeedproofError as error:
                yield folder, error


@app.command(short_help="Make stored sets beforehand.")
def prepare(
    images: Annotated[
        Path | None,
        typer.Option("--images", help="Your own images, one subfolder a class; else embedded ones.", metavar="DIR"),
    ] = None,
    format: Annotated[
        list[str] | None, typer.Option("--format", help="One format; repeat for more. Else all.", metavar="F")
    ] = None,
    examples: Examples = None,
) -> None:
    """Make the stored sets of the data studies, which else are made when a study first needs them.

    An interrupted conversion goes on, or starts again; a finished one is not repeated.

    Example: speedproof data prepare --images ~/flowers --format lmdb --format npy
    """
    from harness.data import formats, photos

    if images is not None:
        os.environ[IMAGES] = str(images)
    wanted = tuple(format or formats.NAMES)
    for name in wanted:
        formats.format_named(name)
    with _os_errors():
        total = formats.store("files", size=SIZE, examples=examples) if images else None
        for name in ("files", *(n for n in wanted if n != "files")):
            try:
                with _progress(name, total.examples if total else examples or photos.EXAMPLES) as report:
                    stored = formats.store(name, size=SIZE, examples=examples, report=report)
            except Unavailable as reason:
                if format:
                    raise
                typer.echo(f"{name}: unavailable: {reason}")
                continue
            if name in wanted:
                typer.echo(
                    f"{name}: {stored.examples} images, {stored.bytes / 1e6:.1f} MB, made in {stored.seconds:.1f} s"
                )


@app.command(short_help="Fetch a larger set of photographs.")
def fetch(
    name: Annotated[str, typer.Argument(help="Its name in `speedproof data list`.", metavar="NAME")],
    url: Annotated[str, typer.Option("--url", help="Address of the file on a mirror, or its path here.")],
    examples: Examples = None,
) -> None:
    """Fetch a package of photographs, check its SHA-256, and cut an image folder from it (10,000 images by default).

    The suite never fetches on its own. It goes on where it was interrupted.

    Example: speedproof data fetch lomiri-wallpapers --url ./lomiri-wallpapers-16.04_20.04.0-2_all.deb
    """
    from harness import data_fetch

    wanted = examples or data_fetch.EXAMPLES
    with _os_errors(), _progress(name, wanted) as report:
        made = data_fetch.fetch(name, url, size=SIZE, examples=wanted, report=report)
    typer.echo(f"{len(made.paths)} images of {len(made.classes)} classes, {made.bytes / 1e6:.1f} MB, in:")
    typer.echo(str(made.folder))


@app.command(short_help="Remove what the cache holds.")
def clean(yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False) -> None:
    """Remove everything that the suite put into its cache; it is made again when needed. Your own images stay.

    Example: speedproof data clean --yes
    """
    from harness.data import cache

    made = cache.made()
    held = sum(_bytes(path) for path in made)
    if not made:
        typer.echo(f"{cache.cache_path()}: holds nothing")
        return
    if not yes:
        typer.confirm(f"Remove {held / 1e6:.1f} MB of stored data from {cache.cache_path()}?", abort=True)
    with _os_errors():
        for path in made:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    typer.echo(f"{held} bytes freed ({held / 1e6:.1f} MB)")


def _bytes(path: Path) -> int:
    if path.is_dir() and not path.is_symlink():
        return sum(_bytes(inside) for inside in path.iterdir())
    return path.lstat().st_size


@contextmanager
def _os_errors() -> Iterator[None]:
    """What the disk refuses is told in one line."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{error.filename or 'the data'}: {error.strerror or error}") from error


@contextmanager
def _progress(name: str, total: int) -> Iterator[Report]:
    """A bar on the terminal; none in a pipe."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=total)
        yield lambda done: bar.advance(task, done)
