"""Each method's best setting, chosen on some seeds and reported on the others.

Pure but for `selection.json`, which states the rule, what was chosen, from what, and by which
numbers. A setting counts only where every seed of the choice has a number.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from unlearnbench.bounded import parse_json
from unlearnbench.errors import RecordError
from unlearnbench.front import hypervolume
from unlearnbench.plan import json_ready
from unlearnbench.ranking import (
    Setting,
    average_seeds,
    best_of,
    start_corner,
    start_utility,
)
from unlearnbench.searching import OBJECTIVES, SelectSettings
from unlearnbench.table import Row

SELECTION_FILE = "selection.json"
SCHEMA = 1
UTILITY, QUALITY = OBJECTIVES
NO_NUMBERS = "no setting has numbers for all seeds of the choice"


@dataclass(frozen=True)
class Choice:
    """A method's best setting on one model and forget fraction; without one, why."""

    model: str
    forget_fraction: float
    method: str
    """Label without hyper-parameters."""
    candidates: int
    """Settings that had all seeds of the choice."""
    why_not: str = ""
    setting: str = ""
    """Label with hyper-parameters."""
    hyperparameters: Mapping[str, Any] | None = None
    learning_rate: float | None = None
    epoch: int | None = None
    model_utility: float | None = None
    """Mean over the seeds of the choice, as is the next one."""
    log10_forget_quality: float | None = None
    hypervolume: float | None = None
    runs: tuple[str, ...] = ()
    """Ids of the runs that it was chosen by: a seed each, or with `epochs_as: runs` several."""


@dataclass(frozen=True)
class Reported:
    """A chosen setting on the seeds that had no part in the choice."""

    choice: Choice
    seeds: tuple[int, ...]
    """Those whose run has a number at the chosen epoch."""
    utility: tuple[float, float | None] | None
    """Mean and sample standard deviation (None for one seed); None without a number."""
    quality: tuple[float, float | None] | None


def rule_in_words(select: SelectSettings) -> str:
    """What `choose` does, for people."""
    seeds = ", ".join(map(str, select.seeds))
    if select.rule == "forget-quality":
        rule = (
            "the epoch and setting of highest log10 Forget Quality among those whose Model Utility "
            f"is at least {select.utility:g} of the fine-tuned model's; ties go to the higher "
            "utility, then to the earlier epoch"
        )
    else:
        corner = select.reference
        where = f"({corner[0]:g}, {corner[1]:g})" if corner else "(0, the fine-tuned model's)"
        rule = (
            "the setting whose epochs span the largest area of Model Utility × log10 Forget "
            f"Quality above {where}, and of them the epoch that spans most by itself; ties go to "
            "the higher Forget Quality, then to the higher utility"
        )
    return f"per model, forget fraction and method: {rule}; on means over seeds {seeds}"


def choose(rows: Sequence[Row], select: SelectSettings) -> tuple[Choice, ...]:
    """The best setting of each method by the rule, from runs on the seeds of the choice alone."""
    rule = _by_quality if select.rule == "forget-quality" else _by_hypervolume
    seen: dict[tuple[str, float], list[Row]] = {}
    for row in rows:
        if row.kind != "run" or row.seed in select.seeds:
            seen.setdefault((row.model, row.forget_fraction), []).append(row)
    choices: list[Choice] = []
    for (model, fraction), here in sorted(seen.items()):
        settings = average_seeds(here)
        for family in sorted({s.family for s in settings}):
            own = [s for s in settings if s.family == family]
            known = [s for s in own if s.epoch > 0 and _complete(s, select)]
            tried = len({_trajectory(s) for s in known})
            found = rule(known, select, here) if known else NO_NUMBERS
            if isinstance(found, str):
                choices.append(Choice(model, fraction, family, tried, why_not=found))
            else:
                best, area = found
                choices.append(_choice(best, area, known, tried))
    return tuple(choices)


def _complete(setting: Setting, select: SelectSettings) -> bool:
    numbers = [setting.metrics[name] for name in OBJECTIVES]
    return {row.seed for row in setting.rows} == set(select.seeds) and None not in numbers


def _by_quality(
    settings: Sequence[Setting], select: SelectSettings, rows: Sequence[Row]
) -> tuple[Setting, None] | str:
    """The highest Forget Quality that keeps its utility; or why there is none."""
    start = start_utility(rows, settings[0].model, settings[0].forget_fraction)
    if start is None:
        return "the fine-tuned model was not evaluated: no utility to keep"
    found = best_of(settings, select.utility * start)
    if found is None:
        return f"no setting keeps {select.utility:g} of the fine-tuned model's utility {start:.4g}"
    return found, None


def _by_hypervolume(
    settings: Sequence[Setting], select: SelectSettings, rows: Sequence[Row]
) -> tuple[Setting, float] | str:
    """The largest area, at the epoch that spans most by itself; or why there is none."""
    reference = select.reference or start_corner(
        rows, settings[0].model, settings[0].forget_fraction
    )
    if reference is None:
        return "the fine-tuned model was not evaluated: give select.reference"
    spanned: dict[Any, list[tuple[float, float]]] = {}
    for one in settings:
        spanned.setdefault(_trajectory(one), []).append(_position(one))
    areas = {key: hypervolume(points, reference) for key, points in spanned.items()}
    merits = [
        (areas[_trajectory(one)], hypervolume([(u, q)], reference), q, u, -one.epoch, index)
        for index, one in enumerate(settings)
        for u, q in [_position(one)]
    ]
    area, *_, index = max(merits)
    if area <= 0:
        return f"no setting is above ({reference[0]:g}, {reference[1]:g}) in both"
    return settings[index], area


def _trajectory(setting: Setting) -> tuple[Any, ...]:
    """What the epochs of a setting have in common."""
    return setting.key[:-1]


def _position(setting: Setting) -> tuple[float, float]:
    utility, quality = (setting.metrics[name] or 0.0 for name in OBJECTIVES)
    return utility, quality


def _choice(best: Setting, area: float | None, known: Sequence[Setting], tried: int) -> Choice:
    # A trajectory is one run a seed, but with `epochs_as: runs` one for each count of epochs.
    rows = [row for s in known if _trajectory(s) == _trajectory(best) for row in s.rows]
    chosen = rows if area is not None else best.rows
    return Choice(
        model=best.model,
        forget_fraction=best.forget_fraction,
        method=best.family,
        candidates=tried,
        setting=best.method,
        hyperparameters=best.rows[0].hyperparameters,
        learning_rate=best.learning_rate,
        epoch=best.epoch,
        model_utility=best.metrics[UTILITY],
        log10_forget_quality=best.metrics[QUALITY],
        hypervolume=area,
        runs=tuple(sorted({row.run_id for row in chosen})),
    )


def report(
    choices: Iterable[Choice], rows: Sequence[Row], runs: Mapping[str, Sequence[str]]
) -> tuple[Reported, ...]:
    """The choices on the other seeds, at their epochs.

    runs  ids of the runs on the other seeds, by the id of the run that was chosen
    """
    told: list[Reported] = []
    for choice in choices:
        ids = {one for chosen in choice.runs for one in runs.get(chosen, ())}
        here = [row for row in rows if row.run_id in ids and row.epoch == choice.epoch]
        values = [[r.metrics[name] for r in here] for name in OBJECTIVES]
        seeds = tuple(sorted({row.seed for row in here}))
        utility, quality = (_mean_and_spread(one) for one in values)
        told.append(Reported(choice, seeds, utility, quality))
    return tuple(told)


def _mean_and_spread(values: Sequence[float | None]) -> tuple[float, float | None] | None:
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):  # a collapsed seed is not averaged away
        return None
    return fmean(known), stdev(known) if len(known) > 1 else None


def write_selection(
    folder: Path,
    select: SelectSettings,
    seeds: Sequence[int],
    reported: Sequence[Reported],
    followed: Mapping[str, Sequence[str]],
) -> Path:
    """`selection.json` in a sweep's folder: the rule, the choices, and what came of them.

    seeds     all of the sweep's
    followed  as `runs` of `report`
    """
    document = {
        "schema": SCHEMA,
        "rule": rule_in_words(select),
        "select": select.model_dump(mode="json"),
        "chosen_on_seeds": select.seeds,
        "reported_on_seeds": [seed for seed in seeds if seed not in select.seeds],
        "choices": [
            asdict(one.choice)
            | {
                "reported_runs": sorted({r for c in one.choice.runs for r in followed.get(c, ())}),
                "reported": {
                    "seeds": one.seeds,
                    UTILITY: _told(one.utility),
                    QUALITY: _told(one.quality),
                },
            }
            for one in reported
        ],
    }
    path = folder / SELECTION_FILE
    partial = folder / f".{SELECTION_FILE}.{os.getpid()}"
    text = json.dumps(json_ready(document), indent=1, allow_nan=False)
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
    return path


def _told(value: tuple[float, float | None] | None) -> dict[str, float | None]:
    mean, spread = value or (None, None)
    return {"mean": mean, "standard_deviation": spread}


def read_selection(folder: Path) -> dict[str, Any] | None:
    """What `write_selection` wrote; None where nothing was chosen yet.

    Raises: RecordError where it is damaged.
    """
    path = folder / SELECTION_FILE
    try:
        found: dict[str, Any] = parse_json(path.read_text(encoding="utf-8"))
        _ = found["rule"], found["choices"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(
            f"{path}: damaged ({type(error).__name__}); start the sweep again: it writes it anew"
        ) from None
    return found
