"""The metrics of a record's epochs: those in it, and those that can be computed from its files.

An earlier version has stored fewer columns, and a retain model's record none that is relative to
the start model, which is evaluated after it. Such columns are computed from the stored evaluations
when they are read; nothing is stored, and a record that has a column is not computed again, unless
the configuration has come to give its metric other settings (`evaluation.metrics`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from unlearnbench.api.benchmark import SplitKey
from unlearnbench.api.observations import Evaluation
from unlearnbench.api.registry import Offer, offers
from unlearnbench.config.metric_plan import NO_CHOICES, MetricChoices
from unlearnbench.config.profiles import profile_of_id
from unlearnbench.errors import UnlearnbenchError
from unlearnbench.evaluation.summary import plan_of, summarize
from unlearnbench.evaluation.tofu_log import FILES
from unlearnbench.results.records import EpochResult, Record, StoredEvaluations

Values = Mapping[str, float | None]
References = Mapping[tuple[str, str, SplitKey], Record]
"""Records of start and retain models by kind, model and split."""


class Numbers(dict[str, float | None]):
    """Numbers by column, None where undefined; a column that is not there is undefined, too."""

    def __missing__(self, name: str) -> None:
        return None


def finite(metrics: Values, columns: Iterable[str]) -> Numbers:
    """The numbers of `columns`; None for those that are not finite."""
    get, low, high = metrics.get, -math.inf, math.inf
    return Numbers(
        {
            name: value if (value := get(name)) is None or low < value < high else None
            for name in columns
        }
    )


def references_of(records: Iterable[Record]) -> References:
    """The start and retain models among `records`; none where there are two for one place."""
    found: dict[tuple[str, str, SplitKey], list[Record]] = {}
    for record in records:
        if record.kind != "run":
            place = (record.kind, record.model, record.forget_fraction)
            found.setdefault(place, []).append(record)
    return {place: ones[0] for place, ones in found.items() if len(ones) == 1}


def metrics_of(
    record: Record,
    result: EpochResult,
    references: References,
    columns: Sequence[str],
    chosen: MetricChoices | None = None,
) -> Values:
    """The `columns` of an epoch of `record`; None where undefined or not finite.

    A column that the record lacks is computed when it is read for the first time: from the files of
    the record and of its start and retain model, if they are whole.

    chosen  metrics that the configuration names now; default: those that it named for the record
    """
    now = chosen_of(record) if chosen is None else chosen
    stored = finite(result.metrics, columns)
    fill = {name for name in columns if name not in result.metrics}
    if record.kind == "retain":
        fill |= {name for name in columns if stored[name] is None}
    if changed := _changed(chosen_of(record), now):
        fill |= plan_of(profile_of_id(record.profile), None, now).affected(changed) & {*columns}
    fill_in = partial(computed, record, result, references, now)
    return _Filled(stored, fill, fill_in) if fill else stored


def chosen_of(record: Record) -> MetricChoices:
    """The metrics that the configuration named when a record was made."""
    return named_metrics(record.spec if record.kind == "run" else {"evaluation": record.spec})


def named_metrics(stored: Mapping[str, Any]) -> MetricChoices:
    """The metrics that a stored configuration names; none in those of earlier versions."""
    settings = stored.get("evaluation")
    found = settings.get("metrics") if isinstance(settings, Mapping) else None
    return found if isinstance(found, Mapping) else NO_CHOICES


def _changed(before: MetricChoices, now: MetricChoices) -> frozenset[str]:
    """Metrics with other settings."""
    names = before.keys() | now.keys()
    return frozenset(name for name in names if before.get(name, {}) != now.get(name, {}))


def computed(
    record: Record,
    result: EpochResult,
    references: References,
    chosen: MetricChoices = NO_CHOICES,
) -> Values:
    """All metrics of an epoch, from the files; empty where they do not give them."""
    place = (record.model, record.forget_fraction)
    others = (references.get((kind, *place)) for kind in ("retain", "fine-tuned"))
    own = _file_of(record, result.epoch)
    retain, start = (None if one is None else _file_of(one, 0) for one in others)
    if own is None:
        return {}
    try:
        return _compute(offers("metrics"), json.dumps(chosen), own, retain, start)
    # Damage is reported where the files are needed; other versions may have other sets and rules.
    except (UnlearnbenchError, OSError, LookupError):
        return {}


class _Filled(Mapping[str, float | None]):
    """Stored numbers, and those to fill in."""

    def __init__(self, stored: Numbers, fill: set[str], compute: Callable[[], Values]) -> None:
        self._stored, self._fill, self._compute = stored, fill, compute

    @cached_property
    def _computed(self) -> Numbers:
        return finite(self._compute(), self._fill)

    def __getitem__(self, name: str) -> float | None:
        return self._computed[name] if name in self._fill else self._stored[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)


class _File(NamedTuple):
    """An evaluation on disk."""

    folder: Path
    epoch: int
    digest: str
    precision: str | None

    def read(self) -> Evaluation:
        return StoredEvaluations(self.folder, {self.epoch: self.digest}, self.precision)[self.epoch]


def _file_of(record: Record, epoch: int) -> _File | None:
    stored = record.evaluations
    if not isinstance(stored, StoredEvaluations) or epoch not in stored:
        return None
    return _File(stored.folder, epoch, stored.digests[epoch], stored.precision)


@lru_cache(maxsize=4096)
def _compute(
    _on_offer: tuple[Offer, ...],
    chosen: str,
    own: _File,
    retain: _File | None,
    start: _File | None,
) -> Values:
    """All metrics of an evaluation; kept for a page that is drawn again and again.

    None of a benchmark with other sets than TOFU's: records do not name theirs.
    """
    evaluation = own.read()
    if not FILES.keys() <= evaluation.sets.keys():
        return {}
    others = (None if file is None else _reference(file) for file in (retain, start))
    retained, started = others
    profile = profile_of_id(evaluation.profile)
    return summarize(evaluation, retained, profile, started, chosen=json.loads(chosen))


@lru_cache(maxsize=8)
def _reference(file: _File) -> Evaluation:
    return file.read()
