"""Timing a loader: what counts, what is timed apart, and what a pass must show; on the scripted clock."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from harness.backends import ObservedLoading, fake_backend
from harness.backends.fake_backend import PASS_STEPS, READ_S, STEP_S, FakeLoading
from harness.errors import MeasurementError
from harness.measure.loading import check_level, timed_passes, warm_up
from harness.spec import Cell, Framework, Mode
from harness.techniques import TOGGLES


def cell(mode: Mode = Mode.LOADING, arm: str = "files", **sets: str) -> Cell:
    levels = {name: toggle.default for name, toggle in TOGGLES.items()}
    return Cell(
        study="study",
        mode=mode,
        comparison="study/fake/cnn_photos",
        arm=arm,
        framework=Framework.FAKE,
        workload="cnn_photos",
        size=256,
        toggles={**levels, "device": "cpu", "batch": "32", "format": "files", **sets},
    )


class Even(random.Random):
    """Draws the mean each time."""

    def gauss(self, mu: float = 0.0, sigma: float = 1.0) -> float:
        return mu


class Exact(FakeLoading):
    """Without noise, and with a list of what was called."""

    def __init__(self, wanted: Cell) -> None:
        super().__init__(wanted, seed=0)
        self._launch = 1.0
        self._random = Even()
        self.calls: list[str] = []

    def ready(self) -> None:
        self.calls.append("ready")
        fake_backend._advance(5.0)

    def open(self) -> None:
        self.calls.append("open")
        super().open()

    def run(self, passes: int) -> float:
        self.calls.append(f"run {passes}")
        return super().run(passes)

    def synchronize(self) -> None:
        self.calls.append("synchronize")

    def close(self) -> None:
        self.calls.append("close")
        super().close()
        fake_backend._advance(3.0)


# --- a block


def test_a_block_is_whole_passes_by_a_loader_that_is_started_for_it_and_ended_after_it():
    loading = Exact(cell())
    block = timed_passes(loading, fake_backend.clock, 3)
    assert loading.calls == ["ready", "synchronize", "open", "run 3", "synchronize", "close"]
    assert (block.steps, block.items) == (3 * PASS_STEPS, 3 * PASS_STEPS * 32)
    assert block.seconds == pytest.approx(3 * PASS_STEPS * READ_S["files"] / 2)
    assert block.drain_s == 0


def test_the_start_of_the_workers_and_the_page_cache_are_not_in_the_seconds():
    blocks = {w: timed_passes(Exact(cell(workers=w)), fake_backend.clock, 1) for w in ("none", "cores", "quadruple")}
    assert [b.loader_start_s for b in blocks.values()] == pytest.approx([0.0, 0.02, 0.08])
    assert blocks["quadruple"].seconds == pytest.approx(blocks["cores"].seconds)
    assert blocks["none"].seconds == pytest.approx(2 * blocks["cores"].seconds)


def test_loading_alone_waits_all_the_time_and_training_waits_its_share():
    alone = timed_passes(Exact(cell()), fake_backend.clock, 2)
    assert alone.wait_s == pytest.approx(alone.seconds)
    trained = timed_passes(Exact(cell(Mode.END_TO_END)), fake_backend.clock, 2)
    each = READ_S["files"] / 2
    assert trained.wait_s == pytest.approx(alone.wait_s)
    assert trained.wait_s / trained.seconds == pytest.approx(each / (each + STEP_S))


# --- what was loaded before the clock started


class Preloads(Exact):
    """Cheats: ``open`` loads the first passes, so that ``run`` finds them ready."""

    cached: float = 0.0

    def open(self) -> None:
        super().open()
        fake_backend._advance(super(Exact, self).run(1))
        self.cached = 1.0  # what was read lies in the page cache when the pass begins

    def run(self, passes: int) -> float:
        return 0.0

    def observe(self) -> ObservedLoading:
        return replace(super().observe(), cached=self.cached)


def test_a_cold_pass_that_was_loaded_before_it_began_is_an_error():
    with pytest.raises(MeasurementError, match="asked for 'cold', but 100% of the set was cached"):
        warm_up(Preloads(cell(page_cache="cold")), fake_backend.clock, expect=cell(page_cache="cold"))


def test_loading_ahead_of_a_warm_pass_cannot_hide_it_shows_as_start_of_the_loader():
    """Nothing here can see into a warm loader: that none reads before its gate opens, the backends' own tests hold.

    But the time is not lost: it moves into the column of the loader's start, where it stands out.
    """
    honest = timed_passes(Exact(cell()), fake_backend.clock, 1)
    cheat = timed_passes(Preloads(cell()), fake_backend.clock, 1)
    assert cheat.seconds == 0
    assert cheat.loader_start_s > honest.loader_start_s + honest.seconds


def test_a_second_block_gains_nothing_from_the_first():
    loading = Exact(cell())
    first, second = (timed_passes(loading, fake_backend.clock, 2) for _ in range(2))
    assert second.seconds == pytest.approx(first.seconds)
    assert second.loader_start_s == pytest.approx(first.loader_start_s)
    with pytest.raises(AssertionError):
        loading.run(1)  # it was ended


# --- warm-up


def test_warm_up_makes_one_pass_and_says_what_it_took():
    loading = Exact(cell())
    found = warm_up(loading, fake_backend.clock, expect=cell())
    assert [c for c in loading.calls if c.startswith("run")] == ["run 1"]
    assert found.warmup_steps == PASS_STEPS
    assert found.pass_s == pytest.approx(PASS_STEPS * READ_S["files"] / 2)
    assert found.first_step_s == pytest.approx(READ_S["files"] / 2)
    assert found.observed.workers == 2


def test_where_a_pipeline_keeps_its_images_the_second_pass_says_what_a_pass_takes():
    loading = Exact(cell(tfdata="cache"))
    found = warm_up(loading, fake_backend.clock, expect=cell(tfdata="cache"))
    assert [c for c in loading.calls if c.startswith("run")] == ["run 1", "run 1"]
    assert found.warmup_steps == 2 * PASS_STEPS


# --- what a pass must show

SEEN = ObservedLoading(
    device=None, format="files", batch=32, order="h", workers=2, decoder="pillow", cached=1.0, pinned=False
)


def test_a_pass_that_did_what_was_asked_is_fine():
    check_level(cell(), SEEN, 32)
    check_level(cell(Mode.END_TO_END), replace(SEEN, device="cpu"), 32)
    check_level(cell(page_cache="cold"), replace(SEEN, cached=0.0), 32)
    check_level(cell(format="ram", page_cache="cold"), replace(SEEN, format="ram", decoder="none", cached=None), 32)
    check_level(cell(decoder="dali"), replace(SEEN, decoder="dali"), 32)
    check_level(cell(pin_memory="on"), replace(SEEN, pinned=True), 32)


@pytest.mark.parametrize(
    ("wanted", "seen", "says"),
    [
        (cell(page_cache="cold"), replace(SEEN, cached=0.06), "asked for 'cold', but 6% of the set was cached"),
        (cell(), replace(SEEN, cached=0.94), "asked for 'warm', but only 94% of the set was cached"),
        (cell(), replace(SEEN, batch=16), "batch had no effect: asked for 32, but the pass shows 16"),
        (cell(), replace(SEEN, format="lmdb"), "format had no effect: asked for 'files', but the pass shows 'lmdb'"),
        (cell(decoder="dali"), SEEN, "decoder had no effect: asked for 'dali', but the pass shows 'pillow'"),
        (cell(format="npy"), replace(SEEN, format="npy"), "decoder had no effect: asked for 'none'"),
        (cell(pin_memory="on"), SEEN, "pin_memory had no effect: asked for True, but the pass shows False"),
        (cell(), replace(SEEN, pinned=True), "pin_memory had no effect: asked for False"),
        (cell(Mode.END_TO_END), SEEN, "device had no effect: asked for 'cpu', but the pass shows None"),
        (cell(), replace(SEEN, device="cpu"), "device had no effect: asked for None, but the pass shows 'cpu'"),
    ],
)
def test_a_pass_that_did_something_else_is_an_error(wanted: Cell, seen: ObservedLoading, says: str):
    with pytest.raises(MeasurementError, match=says):
        check_level(wanted, seen, 32)


def test_items_that_are_counted_and_not_delivered_are_an_error():
    with pytest.raises(MeasurementError, match=r"items counted in a step had no effect: asked for 32.*shows 33"):
        check_level(cell(), SEEN, 33)
