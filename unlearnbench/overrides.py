"""A method entry's own training section: the sweep's, with the keys that the entry states."""

from __future__ import annotations

from pydantic import ValidationError

from unlearnbench.document import Entry, Loc, dotted, merged
from unlearnbench.errors import Problem
from unlearnbench.problems import in_words, unknown_key, value_in_words
from unlearnbench.recipe import TrainingSettings


def training_of_entry(
    entry: Entry | None, sweep: Entry | None, key: Loc
) -> TrainingSettings | list[Problem] | None:
    """The settings, or what is wrong with them; None where the entry has none of its own.

    sweep  the configuration's training section, whose own problems are reported there
    """
    if entry is None or entry.value is None:
        return None
    if not isinstance(entry.value, dict):
        got = value_in_words(entry.plain())
        return [Problem(entry.place, dotted(key), f"expected a section of keys, got {got}")]
    whole = entry if sweep is None else merged(sweep, entry)
    try:
        return TrainingSettings.model_validate(whole.plain())
    except ValidationError as error:
        problems: list[Problem] = []
        for one in error.errors(include_url=False):
            below: Loc = one["loc"]
            if below and str(below[0]) not in entry.section:
                continue
            text = in_words(one)
            if one["type"] == "extra_forbidden":
                text = unknown_key(str(below[-1]), TrainingSettings.model_fields, "training")
            problems.append(Problem(entry.at(below)[0].place, dotted((*key, *below)), text))
        return problems
