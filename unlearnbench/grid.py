"""A method entry of a sweep: `{method: npo, beta: [0.1, 0.5], retain: {term: nll}}` → its grid.

Lists span the grid; a search may draw from ranges, `beta: {low: 0.05, high: 1.0, log: true}`. Each
value is checked by the method's own fields, so that a stranger's plugin gets the same messages as a
built-in one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import FiniteFloat, TypeAdapter, ValidationError

from unlearnbench import registry
from unlearnbench.document import Entry, Loc, Unread, dotted
from unlearnbench.errors import PluginError, Problem
from unlearnbench.overrides import training_of_entry
from unlearnbench.problems import ZERO_RUNS, in_words, unknown_key, value_in_words
from unlearnbench.ranges import number_of, read_range
from unlearnbench.searching import Range
from unlearnbench.settings import OWN_KEYS, HyperParameter, MethodGrid, MethodSpec, RetainSpec

WEIGHT = "retain.weight"


@dataclass
class GridReader:
    """Reads method entries; problems gather here."""

    problems: list[Problem]
    ranges: bool = False
    """Whether the configuration searches, and so may have ranges."""
    training: Entry | None = None
    """The sweep's own training section, which an entry's changes in part."""
    _faults: int = field(default=0, init=False)
    """Problems met so far, with those that are not reported again."""
    _found: dict[str, Range] = field(default_factory=dict[str, Range], init=False)
    """Ranges of the entry that is being read."""

    def read(self, entry: Entry, loc: Loc) -> MethodGrid | None:
        """The grid of one entry, or None where something is wrong with it."""
        before, self._found = self._faults, {}
        section = entry.section or {"method": entry}
        name = self._name(entry, section, loc)
        if name is not None and not registry.trains(name):
            self._refuse(name, section, loc)
            if self._faults > before:
                return None
        rates = self._rates(section, loc)
        training = training_of_entry(section.get("training"), self.training, (*loc, "training"))
        if isinstance(training, list):
            self.problems += training
            training = None
        retains = self._retains(section.get("retain"), (*loc, "retain"))
        specs = self._specs(name, entry, section, loc, retains) if name is not None else ()
        if self._faults > before:
            return None
        return MethodGrid(
            specs=tuple(specs), learning_rates=rates, training=training, ranges=self._found
        )

    def _name(self, entry: Entry, section: dict[str, Entry], loc: Loc) -> str | None:
        given = section.get("method")
        if given is None:
            self._report(entry, (*loc, "method"), "missing: which method?")
            return None
        key = (*loc, "method") if isinstance(entry.value, dict) else loc
        if not isinstance(given.value, str):
            got = value_in_words(given.plain())
            self._report(given, key, f"expected a method's name or a section, got {got}")
            return None
        try:
            registry.load_method(given.value)
        except PluginError as error:
            self._report(given, key, str(error))
            return None
        return given.value

    def _refuse(self, name: str, section: dict[str, Entry], loc: Loc) -> None:
        """Reports what a method without training has no use for."""
        for key in OWN_KEYS[1:]:
            given = section.get(key)
            if given is not None and given.value is not None:
                what = "retain term" if key == "retain" else key.replace("_", " ")
                text = f"{name} changes the model's input and trains nothing: it takes no {what}"
                self._report(given, (*loc, key), f"{text}; remove the key")

    def _rates(self, section: dict[str, Entry], loc: Loc) -> tuple[float, ...] | Range | None:
        entry, key = section.get("learning_rates"), (*loc, "learning_rates")
        if entry is None:
            return None
        return self.learning_rates(entry, key)

    def learning_rates(self, entry: Entry, key: Loc) -> tuple[float, ...] | Range | None:
        """A list of learning rates, each above 0 and none twice; or a range."""
        if entry.section:
            found = self._range(entry, key, float)
            if found is not None and found.low <= 0:
                self._report(
                    entry.section["low"], (*key, "low"), f"must be above 0, got {found.low:g}"
                )
            return found
        try:
            rates = _RATES.validate_python(entry.plain(), strict=True)
        except ValidationError as error:
            for one in error.errors(include_url=False):
                self._report(entry.at(one["loc"])[0], (*key, *one["loc"]), in_words(one))
            return None
        if not rates:
            self._report(entry, key, ZERO_RUNS)
        for index, rate in enumerate(rates):
            if rate <= 0:
                self._report(entry.at((index,))[0], (*key, index), f"must be above 0, got {rate:g}")
        self.distinct(entry, key)
        return rates

    def distinct(self, entry: Entry, key: Loc) -> None:
        """Reports what stands twice in a list: the same run twice."""
        seen: dict[Any, int] = {}
        for index, item in enumerate(entry.items):
            value = repr(_number(item.plain()))
            if value in seen:
                self._report(item, (*key, index), f"the same as entry {seen[value]}: a run twice")
            else:
                seen[value] = index

    def _retains(self, entry: Entry | None, key: Loc) -> list[RetainSpec | None]:
        """Retain terms; a list, or a list within a term, spans the grid."""
        if entry is None or entry.value is None:
            return [None]
        if not isinstance(entry.value, list):
            return list(self._retain_terms(entry, key))
        if not entry.items:
            self._report(entry, key, f"{ZERO_RUNS}; null is no retain term")
        found: list[RetainSpec | None] = []
        for index, item in enumerate(entry.items):
            for term in self._retain_terms(item, (*key, index)):
                if term in found:
                    self._report(item, (*key, index), "the same retain term again: a run twice")
                found.append(term)
        return found

    def _retain_terms(self, entry: Entry, key: Loc) -> Iterator[RetainSpec | None]:
        if entry.value is None:
            yield None
            return
        section = entry.section or {"term": entry}
        axes = {
            name: self._weights(item, (*key, name))
            if name == "weight" and item.section
            else self._values(item, (*key, name) if entry.section else key)
            for name, item in section.items()
        }
        said: set[tuple[Loc, str]] = set()
        for combination in itertools.product(*axes.values()):
            try:
                yield RetainSpec.model_validate(dict(zip(axes, combination, strict=True)))
            except ValidationError as error:
                for one in error.errors(include_url=False):
                    below: Loc = one["loc"] if entry.section else ()
                    text = in_words(one)
                    if one["type"] == "extra_forbidden":
                        text = unknown_key(str(one["loc"][-1]), RetainSpec.model_fields, "retain")
                    if (below, text) not in said:
                        self._report(entry.at(below)[0], (*key, *below), text)
                    said.add((below, text))

    def _weights(self, entry: Entry, key: Loc) -> tuple[float, ...]:
        """Both ends of a range of retain weights."""
        if isinstance(key[-2], int):
            text = "a range of weights needs its retain term alone: write an entry for each term"
            self._report(entry, key, text)
            return (1.0,)
        found = self._range(entry, key, float)
        if found is None:
            return (1.0,)
        self._found[WEIGHT] = found
        return (found.low, found.high)

    def _range(self, entry: Entry, key: Loc, kind: type | None) -> Range | None:
        """A range of floats or whole numbers (`kind`); None where something is wrong with it."""
        found = read_range(entry, key, kind, allowed=self.ranges)
        if isinstance(found, Range):
            return found
        self.problems += found
        self._faults += len(found)
        return None

    def _values(self, entry: Entry, key: Loc) -> tuple[Any, ...]:
        """A grid axis: the entries of a list, or the one value."""
        if not isinstance(entry.value, list):
            return (entry.plain(),)
        if not entry.items:
            self._report(entry, key, ZERO_RUNS)
        return tuple(item.plain() for item in entry.items)

    def _specs(
        self,
        name: str,
        entry: Entry,
        section: dict[str, Entry],
        loc: Loc,
        retains: list[RetainSpec | None],
    ) -> list[MethodSpec]:
        fields = registry.load_method(name).model_fields
        axes: dict[str, tuple[Any, ...]] = {}
        before = self._faults
        for key, item in section.items():
            if key in OWN_KEYS:
                continue
            if key not in fields:
                known = (*fields, *OWN_KEYS[1:])
                self._report(item, (*loc, key), unknown_key(key, known, name))
                continue
            axes[key] = self._axis(name, key, item, (*loc, key))
        for key, info in fields.items():
            if info.is_required() and key not in section:
                self._report(entry, (*loc, key), f"missing: {name} has no default for it")
        if self._faults > before:
            return []
        return list(self._product(name, entry, loc, axes, retains))

    def _axis(self, name: str, key: str, item: Entry, loc: Loc) -> tuple[Any, ...]:
        """The values of one hyper-parameter, each checked by the method's own field."""
        method = registry.load_method(name)
        steps: tuple[int | str, ...] = tuple(range(len(item.items)))
        if item.section.keys() & Range.model_fields.keys():
            found = self._range(item, loc, number_of(method.model_fields[key].annotation))
            if found is None:
                return ()
            self._found[key] = found
            steps = ("low", "high")
            values: tuple[Any, ...] = (found.low, found.high)
        else:
            values = self._values(item, loc)
        for index, value in enumerate(values):
            here, where = item.at(steps[index : index + 1])[0], (*loc, *steps[index : index + 1])
            if not isinstance(value, HyperParameter):
                got = value_in_words(value)
                self._report(here, where, f"expected one value or a list of values, got {got}")
                continue
            if value != value:
                self._report(here, where, "expected a number, got nan")
                continue
            try:
                method.model_validate({key: value})
            except ValidationError as error:
                for one in error.errors(include_url=False):
                    if one["loc"][:1] == (key,):
                        self._report(here, where, in_words(one))
        self.distinct(item, loc)
        return values

    def _product(
        self,
        name: str,
        entry: Entry,
        loc: Loc,
        axes: dict[str, tuple[Any, ...]],
        retains: list[RetainSpec | None],
    ) -> Iterator[MethodSpec]:
        said: set[str] = set()
        for *values, retain in itertools.product(*axes.values(), retains):
            try:
                spec = registry.method_spec(name, dict(zip(axes, values, strict=True)), retain)
                if self._lowest(spec):
                    yield spec
            except ValidationError as error:
                # Each value is right by itself: what is wrong is how they go together.
                for text in map(in_words, error.errors(include_url=False)):
                    if text not in said:
                        self._report(entry, loc, text)
                    said.add(text)
            except PluginError as error:
                self._report(entry, loc, str(error))
                return

    def _lowest(self, spec: MethodSpec) -> bool:
        """Whether every range is at its low end; the high ones are made only to be checked."""
        held = spec.hyperparameters | ({WEIGHT: spec.retain.weight} if spec.retain else {})
        return all(held.get(key, found.low) == found.low for key, found in self._found.items())

    def _report(self, entry: Entry, key: Loc, message: str) -> None:
        self._faults += 1
        if not isinstance(entry.value, Unread):
            self.problems.append(Problem(entry.place, dotted(key), message))


_RATES = TypeAdapter(tuple[FiniteFloat, ...])


def _number(value: Any) -> Any:
    """1 and 1.0 are the same hyper-parameter; true is not 1."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else value
