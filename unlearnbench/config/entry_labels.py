"""Names of the method entries of a configuration, for tables and messages.

An entry is named after the label of its settings, such as `npo`. If several entries have the label,
the name also tells in what they differ: `npo (beta=0.1)`.
"""

from collections.abc import Mapping, Sequence

from unlearnbench.config.method_entry import Axis
from unlearnbench.config.method_grid import WEIGHT
from unlearnbench.config.method_settings import MethodGrid
from unlearnbench.config.search import Range
from unlearnbench.config.search_space import RATE


def entry_labels(methods: Sequence[MethodGrid]) -> tuple[Mapping[str, str], ...]:
    """Return the names of each entry, by the label of its settings.

    For example, an entry has the names `{npo: npo (beta=0.1)}`. An entry with a list of retain
    terms has settings with several labels, and a name for each label.
    """
    texts_by_label: dict[str, list[Mapping[str, str]]] = {}
    for grid in methods:
        for label in dict.fromkeys(spec.label for spec in grid.specs):
            texts_by_label.setdefault(label, []).append(_stated_texts(grid, label))

    names: list[Mapping[str, str]] = []
    named_so_far: dict[str, int] = {}
    for grid in methods:
        name_by_label: dict[str, str] = {}
        for label in dict.fromkeys(spec.label for spec in grid.specs):
            place = named_so_far.get(label, 0)
            named_so_far[label] = place + 1
            name_by_label[label] = _entry_name(label, place, texts_by_label[label])
        names.append(name_by_label)
    return tuple(names)


def _entry_name(label: str, place: int, entries: Sequence[Mapping[str, str]]) -> str:
    """Return the name of one of the entries of a label.

    Args:
        label: The label.
        place: Place of the entry among these entries, from 0.
        entries: For each entry of the label, its stated values as text, by hyperparameter.
    """
    if len(entries) == 1:
        return label
    own_texts = entries[place]
    differences: list[str] = []
    for key in sorted({key for texts in entries for key in texts}):
        differs = len({texts.get(key) for texts in entries}) > 1
        if differs and own_texts.get(key):
            differences.append(f"{key}={own_texts[key]}")
    has_a_twin = entries.count(own_texts) > 1
    if has_a_twin or not differences:
        differences.append(f"entry {place + 1}")
    return f"{label} ({', '.join(differences)})"


def _stated_texts(grid: MethodGrid, label: str) -> dict[str, str]:
    """Return the values that an entry states for a label's settings, as text by hyperparameter."""
    specs = [spec for spec in grid.specs if spec.label == label]
    texts: dict[str, str] = {}
    for name in dict.fromkeys(name for spec in specs for name in spec.hyperparameters):
        values = dict.fromkeys(spec.hyperparameters.get(name) for spec in specs)
        texts[name] = _axis_text(grid.ranges.get(name) or tuple(values))
    weights = dict.fromkeys(spec.retain.weight for spec in specs if spec.retain is not None)
    if weights:
        texts[WEIGHT] = _axis_text(grid.ranges.get(WEIGHT) or tuple(weights))
    if grid.learning_rates is not None:
        texts[RATE] = _axis_text(grid.learning_rates)
    return texts


def _axis_text(axis: Axis) -> str:
    """Return the text of an axis: `0.1`, `0.1 or 0.5`, `0.05 to 1`."""
    if isinstance(axis, Range):
        step = "" if axis.step is None else f" by {axis.step:.12g}"
        log = " (log)" if axis.log else ""
        return f"{axis.low:.12g} to {axis.high:.12g}{step}{log}"
    texts = [f"{value:.12g}" if isinstance(value, float) else str(value) for value in axis]
    return " or ".join(texts)
