"""The checks of a benchmark: its declarations, and the rows of every split that it has.

They need the rows, and so the files that a benchmark reads, but no model.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cached_property
from itertools import chain
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from unlearnbench.api.benchmark import Benchmark, Dataset, Question, Split
from unlearnbench.api.plugin_code import address
from unlearnbench.config.benchmark_rules import (
    headline_faults,
    reference_faults,
    undefined_metrics,
)
from unlearnbench.config.messages import describe_errors
from unlearnbench.config.metric_plan import COLUMN_NAME, MetricPlan, benchmark_plan
from unlearnbench.config.profiles import PROFILES, TOFU
from unlearnbench.config.yaml_tree import YamlReader
from unlearnbench.data import dataset_rules as rules
from unlearnbench.data.loading import fingerprint
from unlearnbench.errors import DataError
from unlearnbench.evaluation.metric_trial import try_metrics
from unlearnbench.files.hub import HubError
from unlearnbench.testing.check import (
    Check,
    Outcome,
    benchmark_check,
    fault,
    not_applicable,
    passed,
)
from unlearnbench.testing.declarations import accepts, outside

_ROWS = 2
"""Rows of each part that are changed, to see whether the fingerprint changes."""
_T = TypeVar("_T", Dataset, Split)
_FINGERPRINT = """
import json, sys
request = json.load(sys.stdin)
sys.path[:] = request["path"]
from unlearnbench.api.plugin_code import import_class
from unlearnbench.data.loading import fingerprint
benchmark = import_class(*request["class"]).model_validate_json(request["values"])
print(fingerprint(benchmark.load(tuple(request["splits"]))))
"""


class TriedBenchmark:
    """A benchmark, and its rows and metrics as the checks read them: each loaded once."""

    def __init__(self, benchmark: Benchmark) -> None:
        self.benchmark = benchmark

    @cached_property
    def keys(self) -> tuple[Any, ...]:
        """The splits that are tried."""
        return rules.splits_of(self.benchmark)

    @cached_property
    def rows(self) -> Dataset:
        """The rows of these splits."""
        return self.benchmark.load(self.keys)

    @cached_property
    def again(self) -> tuple[Dataset, list[str]]:
        """The rows, loaded again without a network, and the addresses that were tried."""
        if self.benchmark.repository is not None:  # to which it may connect
            return self.benchmark.load(self.keys), []
        with _no_network() as addresses:
            return self.benchmark.load(self.keys), addresses

    @property
    def splits(self) -> Iterable[Split]:
        """These splits."""
        return self.rows.splits.values()

    @cached_property
    def plan(self) -> MetricPlan:
        """Its metrics under TOFU's rules."""
        return benchmark_plan(TOFU, self.benchmark)


def _first(faults: Iterator[str], seen: str) -> Outcome:
    """The first fault and the number of others; without one, the check has passed."""
    found = next(faults, "")
    others = sum(1 for _ in faults)
    return fault(f"{found} (and {others} more)" if others else found) if found else passed(seen)


@benchmark_check(
    "settings",
    why="The fields are the `data:` section: what YAML cannot express cannot be configured, and a "
    "value that no bound rejects surfaces after hours. Plans are stored as JSON.",
    fix="`Field(default, ge=…, description=…)`: plain values with bounds and a meaning; and a "
    "docstring for `benchmarks show`.",
    alone=True,
)
def settings(benchmark: Benchmark) -> Outcome:
    """Settings survive YAML and JSON, and values that are out of bounds or unknown are refused."""
    kind, values = type(benchmark), benchmark.model_dump(mode="json")
    faults: list[str] = []
    if not (vars(kind).get("__doc__") or "").strip():
        faults.append("no docstring, in which `benchmarks show` has the source")
    entry = YamlReader("a config").read(yaml.safe_dump(values))
    for name in ("JSON", "YAML"):
        try:
            if name == "JSON":
                again = kind.model_validate_json(benchmark.model_dump_json())
            else:
                again = kind.model_validate({} if entry is None else entry.plain())
            if again != benchmark:
                faults.append(f"another benchmark comes back from {name}")
        except ValidationError as error:
            faults.append(f"does not come back from {name}: {describe_errors(error)}")
    plain = dict(benchmark)
    for key, info in kind.model_fields.items():
        if not info.description and key not in Benchmark.model_fields:
            faults.append(f"{key} has no description, from which help is made")
        faults += [f"{key} accepts {v!r}" for v in outside(info) if accepts(kind, plain, key, v)]
    if accepts(kind, plain, "no_such_key", 1):
        faults.append("an unknown key is accepted: a misspelt one would do nothing, unseen")
    return fault("; ".join(faults)) if faults else passed(", ".join(kind.model_fields))


@benchmark_check(
    "metrics",
    why="A metric that is misspelt, or named for a set that is not there, is a column without a "
    "number; one that fails costs its column in every evaluation of a sweep.",
    fix="`unlearnbench metrics list` has the names; `MetricUse(name, sets, settings)` the sets of "
    "`roles`, and the metric's fields.",
)
def metrics(tried: TriedBenchmark) -> Outcome:
    """The metrics exist, can be made, and have values on ordinary observations of their sets."""
    benchmark = tried.benchmark
    by_profile = {
        name: [column.name for column in benchmark_plan(profile, benchmark).columns]
        for name, profile in PROFILES.items()
    }
    for name, columns in by_profile.items():
        if columns != by_profile[TOFU.name]:
            return fault(f"other columns under profile {name} than under {TOFU.name}")
    wrong = [name for name in benchmark.roles if not COLUMN_NAME.fullmatch(name)]
    if wrong:
        return fault(f"set {wrong[0]!r}: use small letters, digits and underscores")
    usable = tried.plan.summaries.keys() - undefined_metrics(benchmark, tried.plan).keys()
    summaries = {name: tried.plan.summaries[name] for name in usable}
    try_metrics(replace(tried.plan, summaries=summaries), benchmark.roles)
    named = [use.metric for use in benchmark.metrics(TOFU)]
    return passed(f"{len(tried.plan.own)} columns of {', '.join(dict.fromkeys(named))}")


@benchmark_check(
    "headline",
    why="Ranking, selection, search and the page read the two columns of the headline: without "
    "values there is no best setting, and in the wrong direction the worst is the best.",
    fix="Name columns of metrics that `metrics` names (`<metric>_<set>`), with the direction that "
    "`unlearnbench metrics show` has.",
)
def headline(tried: TriedBenchmark) -> Outcome:
    """The headline's columns are there, and better at the end that it declares."""
    two = tried.benchmark.headline
    seen = f"{two.kept.column} kept, {two.forgotten.column} {two.forgotten.better}"
    return _first(headline_faults(tried.benchmark, tried.plan), seen)


@benchmark_check(
    "references",
    why="A metric relative to a retain model that does not exist, or to holdout rows that no set "
    "has, is an empty column; a significance test without its other side gives no ranking.",
    fix="Declare the models in `references` and the sets in `roles`, or name other metrics.",
)
def references(tried: TriedBenchmark) -> Outcome:
    """The metrics that it names have the reference models and roles that they need.

    Those that it does not name, and that have no values here, are listed.
    """
    empty = undefined_metrics(tried.benchmark, tried.plan)
    lacking = "; ".join(f"{name} has no values without {lack}" for name, lack in empty.items())
    return _first(
        reference_faults(tried.benchmark, tried.plan), lacking or "every metric has values"
    )


@benchmark_check(
    "splits",
    why="A split that is accepted when it is planned and cannot be loaded stops a sweep; one with "
    "the rows of another makes two columns of results of one.",
    fix="`split_problem` returns the reason why there is no such split, and what there is; `load` "
    "returns a `Split` for each that it is given, under the same key.",
    first=True,
)
def splits(tried: TriedBenchmark) -> Outcome:
    """Every split that it has can be loaded, and has its own rows to forget."""
    benchmark = tried.benchmark
    if not tried.keys:
        listed = ", ".join(f"{one:.3g}" for one in rules.FRACTIONS)
        return fault(f"it names no split, and none of {listed} is a forget fraction of it")
    for refused in (one for one in rules.FRACTIONS if one not in tried.keys):
        reason = benchmark.problem_with(refused)
        if len(reason.splitlines()) > 1:
            return fault(f"problem_with({refused:.3g}) is not one line: {reason!r}")
    first: dict[object, Any] = {}
    for key in tried.keys:
        try:
            alone = benchmark.load((key,))
        except DataError as error:
            if isinstance(error.__cause__, HubError):
                return Outcome("not run", str(error))
            return fault(f"it has split {key}, and cannot load it: {error}")
        if alone.refusals or alone.fingerprint:
            return fault("load gives refusals or a fingerprint, which are added to what it loads")
        split = alone.splits.get(key)
        if split is None:
            return fault(f"load(({key!r},)) gives the splits {[*alone.splits]}")
        if not split.forget:
            return fault(f"it has split {key}, without a row to forget; refuse it")
        other = first.setdefault(frozenset(map(rules.words, split.forget)), key)
        if other != key:
            return fault(f"splits {other} and {key} forget the same rows")
    counts = ", ".join(f"{s.name} {len(s.forget)}" for s in tried.splits)
    return passed(f"{len(tried.rows.full)} rows; {counts}")


@benchmark_check(
    "sets",
    why="An evaluation set without a role is in no metric and no table; a role without its set is "
    "a column that never has a number.",
    fix="The same names in `roles` and in `Split.sets`; only a holdout set may be without rows.",
)
def sets(tried: TriedBenchmark) -> Outcome:
    """Every role has its set, and every set a role."""
    faults = (one for split in tried.splits for one in rules.set_faults(tried.benchmark, split))
    return _first(faults, ", ".join(f"{n} ({role})" for n, role in tried.benchmark.roles.items()))


@benchmark_check(
    "rows",
    why="A blank answer has no token to score, and its NaN takes the whole column; a row that is "
    "there twice counts twice in every mean.",
    fix='Leave such rows out, or correct the file; a text that is continued has `format="text"`.',
)
def rows(tried: TriedBenchmark) -> Outcome:
    """Every row has what its format needs, is there once, and no wrong answer is the right one."""
    parts = dict(tried.rows.parts())
    # Rows that are in `full` twice are among the forget rows or the retain rows twice.
    once = ((part, own) for part, own in parts.items() if part != "full")
    again = (one for part, own in once for one in rules.repeated_faults(part, own))
    counts = f"{sum(map(len, parts.values()))} rows in {len(parts)} parts"
    return _first(chain(rules.row_faults(tried.rows), again), counts)


@benchmark_check(
    "disjoint",
    why="A row that is to be forgotten and to be kept is trained in both directions: no method can "
    "do what is measured.",
    fix="Give each row to one side, by question and answer.",
)
def disjoint(tried: TriedBenchmark) -> Outcome:
    """Forget rows and retain rows have none in common."""
    faults = (one for split in tried.splits for one in rules.overlap_faults(split))
    return _first(faults, "none in common")


@benchmark_check(
    "full",
    why="The start model is trained on `full` and the retain model on the retain rows: a forget "
    "row that is not in `full` was never learned, and cannot be forgotten.",
    fix="`full` is the forget rows and the retain rows of each split, no more and no fewer.",
)
def full(tried: TriedBenchmark) -> Outcome:
    """The full set is forget rows and retain rows together."""
    faults = (one for split in tried.splits for one in rules.whole_faults(tried.rows, split))
    return _first(faults, f"{len(tried.rows.full)} rows at each split")


@benchmark_check(
    "holdout",
    why="Membership inference takes holdout rows for rows that no model has seen: one that was "
    "trained on looks like a forgotten one, and the attack comes out weaker than it is.",
    fix="Draw holdout rows apart from `full`, `facts` and `pretraining`.",
)
def holdout(tried: TriedBenchmark) -> Outcome:
    """Holdout rows are none that a model is trained on."""
    names = rules.sets_of(tried.benchmark, "holdout")
    if not names:
        return Outcome("not declared", "no set has the role holdout: no membership inference")
    counts = [len(split.sets.get(name, ())) for split in tried.splits for name in names]
    if not any(counts):
        return not_applicable("the source has no holdout rows")
    faults = (
        one
        for split in tried.splits
        for one in rules.holdout_faults(tried.benchmark, tried.rows, split)
    )
    return _first(faults, f"{max(counts)} rows that no model has seen")


@benchmark_check(
    "origin",
    why="A forget set with rows that nobody forgets measures another thing under the same name, "
    "and so does a retain set with rows that are forgotten.",
    fix="Take the set's rows from the split's own; sets made of them, such as questions about a "
    "passage, belong in `derived`.",
)
def origin(tried: TriedBenchmark) -> Outcome:
    """Sets of role forget are forget rows, those of role retain are retain rows, others neither."""
    benchmark = tried.benchmark
    faults = (
        one for split in tried.splits for one in rules.origin_faults(benchmark, tried.rows, split)
    )
    derived = ", ".join(sorted(benchmark.derived))
    return _first(faults, f"but for {derived}, which are derived" if derived else "as declared")


@benchmark_check(
    "observations",
    why="A metric of perturbed or paraphrased answers has no value on rows that have none: its "
    "column is empty in every table.",
    fix="Name the metric for sets whose rows have what it reads (`unlearnbench metrics show`).",
)
def observations(tried: TriedBenchmark) -> Outcome:
    """The rows of each set have what the metrics that are named for it read."""
    faults = (
        one
        for split in tried.splits
        for one in rules.observation_faults(tried.benchmark, tried.plan, split)
    )
    sets = {name for measure in tried.plan.measures for name in measure.sets}
    return _first(faults, f"{len(sets)} sets with all that is read of them")


@benchmark_check(
    "fingerprint",
    why="The fingerprint of the rows is part of every run's id: rows in another order, from a set "
    "or an unseeded draw, would make other runs of the same sweep in each process.",
    fix='`random.Random("text")` with a seed of the settings; no iteration over a `set`; no clock.',
)
def fingerprint_stable(tried: TriedBenchmark) -> Outcome:
    """Loaded again, and in a process with other hash seeds, the rows are the same."""
    benchmark, keys = tried.benchmark, tried.keys
    first, again = fingerprint(tried.rows), fingerprint(tried.again[0])
    if first != again:
        return fault(f"{first}, and {again} when loaded again: random numbers, or a clock")
    kind = type(benchmark)
    if "<locals>" in kind.__qualname__ or kind.__module__ == "__main__":
        return passed(f"{first} twice; another process cannot import a class of a function")
    values = {"values": benchmark.model_dump_json(), "splits": keys}
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    done = subprocess.run(
        [sys.executable, "-c", _FINGERPRINT],
        input=json.dumps({"path": sys.path, "class": address(kind), **values}),
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=False,
    )
    other = done.stdout.strip()
    if done.returncode or not other:
        return fault(f"in another process: {(done.stderr.strip().splitlines() or ['no rows'])[-1]}")
    if other != first:
        return fault(f"{first}, and {other} in a process with other hash seeds: order of a `set`?")
    return passed(f"{first} in two processes")


@benchmark_check(
    "identity",
    why="A run with a record is not run again: rows that change without the fingerprint would be "
    "shown with the numbers of the earlier ones.",
    fix="Rows are `Question` itself, whose fields are all in the fingerprint.",
)
def identity(tried: TriedBenchmark) -> Outcome:
    """The fingerprint changes with every text of every row but those held out."""
    small = _cut(tried.rows)
    before, tries = fingerprint(small), 0
    unseen = set(rules.sets_of(tried.benchmark, "holdout"))
    for part, changed in _changes(small, unseen):
        tries += 1
        if fingerprint(changed) == before:
            return fault(f"{part} changes, and the fingerprint does not")
    return passed(f"{tries} changes, {tries} other fingerprints")


def _cut(rows: Dataset) -> Dataset:
    """The first rows of each part."""
    kept = {
        key: replace(
            split,
            forget=split.forget[:_ROWS],
            retain=split.retain[:_ROWS],
            sets={name: own[:_ROWS] for name, own in split.sets.items()},
        )
        for key, split in rows.splits.items()
    }
    pretraining = rows.pretraining[:_ROWS]
    return replace(rows, full=rows.full[:_ROWS], splits=kept, pretraining=pretraining)


def _changes(rows: Dataset, unseen: set[str]) -> Iterator[tuple[str, Dataset]]:
    """The rows with one field of one row changed, each with the name of what changed.

    The sets that splits share are in the fingerprint once, so that one split is changed.
    """
    key, split = next(iter(rows.splits.items()))
    for name in ("full", "pretraining"):
        for what, own in _other_rows(getattr(rows, name)):
            yield f"{name}: {what}", _with(rows, name, own)
    for what, other in _other_splits(split, unseen):
        yield f"{split.name}, {what}", _with(rows, "splits", {**rows.splits, key: other})


def _other_splits(split: Split, unseen: set[str]) -> Iterator[tuple[str, Split]]:
    for name in ("forget", "retain"):
        for what, own in _other_rows(getattr(split, name)):
            yield f"{name}: {what}", _with(split, name, own)
    for name in sorted(split.sets.keys() - unseen):
        for what, own in _other_rows(split.sets[name]):
            yield f"set {name}: {what}", _with(split, "sets", {**split.sets, name: own})


def _with(one: _T, name: str, value: object) -> _T:
    changes: dict[str, Any] = {name: value}
    return replace(one, **changes)


def _other_rows(rows: rules.Rows) -> Iterator[tuple[str, tuple[Question, ...]]]:
    for i, row in enumerate(rows):
        for one in fields(row):
            if one.name != "place":
                other = replace(row, **{one.name: _other(getattr(row, one.name))})
                yield f"{one.name} of row {i + 1}", (*rows[:i], other, *rows[i + 1 :])


def _other(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, str):
        return "text" if value == "chat" else f"{value}."  # a format, or words
    if isinstance(value, tuple):
        return (*value, ("one", "more"))
    return 1 if value is None else value + 1


@benchmark_check(
    "offline",
    why="Clusters and laptops are without a network; rows that are fetched without being declared "
    "are of whatever version the server has that day.",
    fix="Read a folder of this machine; or declare the hub's data set in `repository`, whose "
    "commit a sweep pins.",
)
def offline(tried: TriedBenchmark) -> Outcome:
    """Rows are loaded without a network, unless they are declared to be the hub's."""
    if repository := tried.benchmark.repository:
        return not_applicable(f"it reads {repository.label} from the hub, as it declares")
    if addresses := tried.again[1]:
        return fault(f"opens a connection to {addresses[0]}")
    return passed("no connection")


@contextmanager
def _no_network() -> Generator[list[str]]:
    """Refuse every connection; the list has the addresses that were tried."""
    tried: list[str] = []

    def refuse(*arguments: Any, **_: Any) -> Any:
        one = next((a for a in arguments if not isinstance(a, socket.socket)), "an address")
        tried.append(str(one[0] if isinstance(one, tuple) else one))
        raise ConnectionRefusedError("there is no network here")

    own: list[tuple[Any, str]] = [(socket.socket, "connect"), (socket.socket, "connect_ex")]
    own += [(socket, "getaddrinfo"), (socket, "gethostbyname")]
    before = [(place, name, vars(place).get(name)) for place, name in own]
    for place, name in own:
        setattr(place, name, refuse)
    try:
        yield tried
    finally:
        for place, name, value in before:
            if value is None:  # inherited
                delattr(place, name)
            else:
                setattr(place, name, value)


BENCHMARK_CHECKS: tuple[Check, ...] = (
    settings,
    metrics,
    headline,
    references,
    splits,
    sets,
    rows,
    disjoint,
    full,
    holdout,
    origin,
    observations,
    fingerprint_stable,
    identity,
    offline,
)
