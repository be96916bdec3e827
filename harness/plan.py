"""From studies to the cells that one machine will run, under one profile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal

from harness import workloads
from harness.errors import ConfigError, unknown
from harness.profiles import Hardware, Profile, own
from harness.spec import CONTROL, Arm, Cell, Comparison, Framework, Mode, Study
from harness.techniques import TOGGLES

LARGEST = "largest"  # a batch level that the runner replaces by what a search finds

DeviceKind = Literal["cpu", "gpu"]


def plan(studies: Iterable[Study], profile: Profile, devices: Mapping[Framework, DeviceKind]) -> tuple[Comparison, ...]:
    """Every comparison of the studies that the profile measures, in the order of declaration.

    ``devices`` gives the best kind of device that each framework shows here; it sets the sizes and the default device.
    """
    made = []
    for study in studies:
        for framework in study.frameworks:
            device = devices[framework]
            hardware = profile.on(device)
            for name in study.workloads:
                if f"{study.id}/{name}" in hardware.skip:
                    continue
                if study.mode is Mode.CONVERGENCE and hardware.training_of(study.id, name) is None:
                    continue
                made.append(_comparison(study, framework, name, device, hardware))
    return tuple(made)


def thin_controls(comparisons: Iterable[Comparison], profile: Profile) -> tuple[Comparison, ...]:
    """Where the profile has ``controls: once``, leave one A/A arm for each framework, workload and mode.

    It stays in the comparison with the most arms, and speaks for the others too.
    """
    made = list(comparisons)
    keepers: dict[tuple[object, ...], Comparison] = {}
    for comparison in made:
        kind = _kind(comparison)
        if kind not in keepers or len(comparison.cells) > len(keepers[kind].cells):
            keepers[kind] = comparison
    return tuple(
        comparison
        if comparison is keepers[_kind(comparison)] or not profile.controls_once
        else replace(comparison, cells=tuple(cell for cell in comparison if cell.arm != CONTROL))
        for comparison in made
    )


def _kind(comparison: Comparison) -> tuple[object, ...]:
    return comparison.framework, comparison.baseline.workload, comparison.study.mode


def _comparison(
    study: Study, framework: Framework, workload: str, device: DeviceKind, hardware: Hardware
) -> Comparison:
    id_ = f"{study.id}/{framework}/{workload}"
    arms = list(study.arms)
    arms = [arm for arm in arms if f"{study.id}/{workload}/{arm.name}" not in hardware.skip]
    if study.mode is Mode.CHECK:
        arms = [Arm(name=name, sets=study.baseline.sets) for name in study.checks]
    if study.mode.takes_turns:
        arms.append(Arm(name=CONTROL, sets={**study.baseline.sets, "null": "on"}, workload=study.baseline.workload))
    cells = tuple(_cell(study, id_, arm, framework, workload, device, hardware) for arm in arms)
    return Comparison(id=id_, study=study, framework=framework, cells=cells)


def _cell(
    study: Study, comparison: str, arm: Arm, framework: Framework, base: str, device: DeviceKind, hardware: Hardware
) -> Cell:
    workload = workloads.load(arm.workload or base)
    # Both sides of a comparison of models get the size and batch of its baseline: unequal inputs are no comparison.
    recipe = workloads.load(base)
    batch = own(hardware.batches, comparison) or recipe.batch[device]
    toggles = {name: toggle.default for name, toggle in TOGGLES.items()}
    toggles |= {"device": device, "batch": str(batch)}
    for name, level in arm.sets.items():
        where = f"study {study.id}, arm {arm.name}"
        if name not in TOGGLES:
            raise unknown("toggle", name, TOGGLES, where=where)
        if not (TOGGLES[name].allows(level) or (name, level) == ("batch", LARGEST)):
            allowed = TOGGLES[name].levels or ("a positive whole number", LARGEST)
            raise unknown(f"level of {name}", level, allowed, where=where)
        toggles[name] = level
    return Cell(
        study=study.id,
        mode=study.mode,
        comparison=comparison,
        arm=arm.name,
        framework=framework,
        workload=workload.name,
        size=own(hardware.sizes, comparison) or recipe.size[device],
        toggles=toggles,
    )


def check_studies(studies: Iterable[Study]) -> None:
    """Raise :class:`ConfigError` for a duplicate arm, or a workload or accuracy study that does not exist."""
    seen: dict[str, Study] = {}
    for study in studies:
        arms = [arm.name for arm in study.arms]
        for arm in arms:
            if arms.count(arm) > 1 or arm == CONTROL:
                raise ConfigError(f"study {study.id}: arm name {arm!r} is taken; names are unique and not {CONTROL!r}")
        for name in study.workloads:
            workloads.load(name)
        seen[study.id] = study
    for study in seen.values():
        if study.accuracy and study.accuracy not in seen:
            raise unknown("accuracy study", study.accuracy, seen, where=f"study {study.id}")
