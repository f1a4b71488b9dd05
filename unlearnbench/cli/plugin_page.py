"""The page that `show` prints about a plug-in: docstring, facts, example and settings."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, get_type_hints

from unlearnbench.api import registry
from unlearnbench.base.console import Console
from unlearnbench.base.number_text import float_text
from unlearnbench.cli.plugin_kinds import KINDS, summary_of

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

_LABEL_WIDTH = 15
_LABELS: Mapping[str, str] = {
    "needs": "reads",
    "rate": "learning rate",
    "points_are": "points are",
    "white_box": "needs weights",
    "reads_answers": "reads answers",
}
"""Labels of facts on the page, if they differ from the keys of JSON."""
_MOST_VALUES = 50
"""Values of a fact up to which all are printed. Of more, the first two and the last are printed."""
_BOUNDS = (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤"))
"""Attributes of Pydantic's rules, with the signs that are printed for them."""

_WRAPPED = 60
"""Length from which a line of a docstring counts as broken by its author."""
_SYMBOL_LINE = re.compile(r"(\s*\S.{0,25}?\s{2,})(\S.*)")
"""`β → 0  recovers gradient ascent`: a symbol or name, two spaces, and its meaning."""

_OWN_ROWS = {"forget": "forget.jsonl", "retain": "retain.jsonl"}
_EXAMPLE_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "questions": _OWN_ROWS,
    "texts": _OWN_ROWS,
    "deep-unlearning": {"set": "relationships"},
    "task-aggregate": {"kept": ["rouge_retain"], "gone": ["rouge_forget"]},
}
"""Settings of example configurations, for plug-ins whose defaults give no valid example."""
_PLAIN_YAML = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_WORDS_OF_YAML = ("true", "false", "null", "yes", "no", "on", "off")


@dataclass(frozen=True)
class Setting:
    """A setting of a plug-in, as JSON and the page show it."""

    name: str
    type: str
    """As in the class: `float`, `int | None`, `Literal['token', 'row']`."""
    default: Any
    """`required` if there is none."""
    bounds: str
    """`> 0, ≤ 1`; empty without bounds."""
    tuned: str
    """The range that `tune` searches, such as `0.1 to 10`; empty if it does not search."""
    meaning: str
    source: str
    """Where the default comes from; empty if nothing is said."""

    @classmethod
    def of(cls, name: str, info: FieldInfo, searched: Sequence[float]) -> Setting:
        """Describe a field of a plug-in's class.

        Args:
            name: Of the field.
            info: What Pydantic knows about the field. Its description may end with
                ` [source: …]`.
            searched: Ends of the range that `tune` searches, or nothing.
        """
        meaning, _, source = (info.description or "").partition(" [source: ")
        return cls(
            name=name,
            type=_type_of(name, info),
            default="required" if info.is_required() else info.get_default(),
            bounds=", ".join(_bounds(info)),
            tuned=" to ".join(f"{end:g}" for end in searched),
            meaning=meaning,
            source=source.removesuffix("]"),
        )


def _type_of(name: str, info: FieldInfo) -> str:
    from unlearnbench.api.hyperparameters import TypeName

    for rule in info.metadata:
        if isinstance(rule, TypeName):
            return rule.text
    # `get_type_hints` takes the rules out of an annotation, and wants an object that has some.
    owner = SimpleNamespace(__annotations__={name: info.annotation})
    return inspect.formatannotation(get_type_hints(owner)[name])


def _bounds(info: FieldInfo) -> list[str]:
    bounds: list[str] = []
    for rule in info.metadata:
        for attribute, sign in _BOUNDS:
            limit = getattr(rule, attribute, None)
            if limit is not None:
                bounds.append(f"{sign} {limit:g}")
    return bounds


def settings_of(plugin: type[Any]) -> list[Setting]:
    """Return the settings of a plug-in's class, in the order of the class."""
    ranges: Mapping[str, tuple[float, float]] = getattr(plugin, "ranges", {})
    return [
        Setting.of(name, info, ranges.get(name, ())) for name, info in plugin.model_fields.items()
    ]


def show_plugin(kind: registry.Kind, name: str, *, as_json: bool) -> None:
    """Print a plug-in's docstring, facts and settings, and how a configuration names it."""
    console = Console()
    plugin = registry.load(kind, name)
    if as_json:
        from unlearnbench.base.hashing import json_ready

        console.print_json(json_ready(_document(kind, name, plugin)))
        return
    # A broken plug-in raises an error here, before anything is printed.
    facts = KINDS[kind].facts_of(name, plugin)
    settings = settings_of(plugin)
    offer = registry.find(kind, name)
    console.paragraph(f"{name}: {summary_of(kind, name, plugin)}")
    console.print(f"{offer.source}, {offer.target}\n")
    _print_docstring(inspect.cleandoc(plugin.__doc__ or ""), console)
    console.print()
    for key, value in facts.items():
        label = f"{_LABELS.get(key, key)}:"
        console.paragraph(
            f"{label:{_LABEL_WIDTH}}{_fact_in_words(value)}", indent=" " * _LABEL_WIDTH
        )
    example = textwrap.indent(example_config(kind, name, plugin), "  ")
    console.print(f"\nin a config:\n{example}")
    if settings:
        console.print("\nsettings:")
    for setting in settings:
        _print_setting(setting, console)


def _document(kind: registry.Kind, name: str, plugin: type[Any]) -> dict[str, Any]:
    """Return the page as JSON."""
    offer = registry.find(kind, name)
    return {
        "name": name,
        "source": offer.source,
        "summary": summary_of(kind, name, plugin),
        **KINDS[kind].facts_of(name, plugin),
        "in a config": KINDS[kind].in_config.format(name),
        "target": offer.target,
        "description": inspect.cleandoc(plugin.__doc__ or ""),
        "settings": [vars(setting) for setting in settings_of(plugin)],
    }


def _fact_in_words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return fact_text(value)


def fact_text(value: Any) -> str:
    """Return a fact as text. A list is joined by commas, and shortened if it is long."""
    if value is None:
        return "-"
    if not isinstance(value, list | tuple):
        return str(value)
    texts = [str(entry) for entry in value]
    if len(texts) > _MOST_VALUES:
        texts = [texts[0], texts[1], "…", f"{texts[-1]} ({len(texts)} in all)"]
    return ", ".join(texts)


def _print_docstring(text: str, console: Console) -> None:
    """Print a docstring at the terminal's width.

    Lines of prose, and lines that continue the meaning of a symbol, are joined and broken anew.
    Formulas and other short lines stay as they are.
    """
    lines: list[str] = []
    indents: list[int] = []
    """Columns at which the continuations of each line begin."""
    may_continue = False
    for line in text.splitlines():
        symbol = _SYMBOL_LINE.fullmatch(line)
        is_indented = line[:1].isspace()
        continues = False
        if line and may_continue and symbol is None:
            # An indented line goes on with a symbol's meaning, any other line with prose.
            continues = is_indented == (indents[-1] > 0)
        if continues:
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
            indents.append(symbol.end(1) if symbol else len(line) - len(line.lstrip()))
        may_continue = bool(line) and (indents[-1] > 0 or len(line) > _WRAPPED)
    for line, indent in zip(lines, indents, strict=True):
        console.paragraph(line, indent=" " * indent)


def _print_setting(setting: Setting, console: Console) -> None:
    """Print a setting in a block: its name, values and default, then what it means."""
    values = [_type_in_words(setting.type)]
    if setting.bounds:
        values.append(setting.bounds)
    if setting.default == "required":
        values.append("required")
    else:
        values.append(f"default {_yaml_text(setting.default)}")
    if setting.tuned:
        values.append(f"`tune` searches {setting.tuned}")
    indent = " " * 6
    console.paragraph(f"  {setting.name}  {', '.join(values)}", indent=indent)
    if setting.meaning:
        console.paragraph(f"{indent}{setting.meaning}", indent=indent)
    if setting.source:
        console.paragraph(f"{indent}source: {setting.source}", indent=indent)


def _type_in_words(annotation: str) -> str:
    """Return a type in the words of YAML.

    Examples are `constant, column or reward`, `int or null` and `list of int`.
    """
    choices = re.fullmatch(r"Literal\[(.*)\]", annotation)
    if choices:
        *others, last = [choice.strip().strip("'") for choice in choices[1].split(",")]
        return f"{', '.join(others)} or {last}" if others else last
    values_of_list = re.fullmatch(r"tuple\[([^,\[\]]*), \.\.\.\]", annotation)
    if values_of_list:
        return f"list of {values_of_list[1]}"
    return annotation.replace(" | None", " or null").replace(" | ", " or ")


def _yaml_text(value: Any) -> str:
    """Return a value as YAML in one line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return float_text(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_yaml_text, value))}]"
    if isinstance(value, Mapping):
        pairs = [f"{key}: {_yaml_text(entry)}" for key, entry in value.items()]
        return f"{{{', '.join(pairs)}}}"
    text = str(value)
    needs_quotes = _PLAIN_YAML.fullmatch(text) is None or text.lower() in _WORDS_OF_YAML
    return json.dumps(text) if needs_quotes else text


def example_config(kind: registry.Kind, name: str, plugin: type[Any]) -> str:
    """Return lines of YAML that name a plug-in, with one or two of its own settings."""
    settings = _EXAMPLE_SETTINGS.get(name) or _own_settings(plugin)
    pairs = [f"{key}: {_yaml_text(value)}" for key, value in settings.items()][:2]
    flow = f"{{{', '.join(pairs)}}}"
    if kind == "methods":
        lines = ["methods:", f"  - method: {name}", *(f"    {pair}" for pair in pairs)]
    elif kind == "benchmarks":
        lines = ["data:", f"  source: {name}", *(f"  {pair}" for pair in pairs)]
    elif kind == "modifiers":
        entry = f"{{{name}: {flow}}}" if pairs else name
        lines = ["methods:", "  - method: npo", "    retain: nll", f"    modifiers: [{entry}]"]
    elif kind == "metrics":
        lines = ["evaluation:", "  metrics:", f"    {name}: {flow}"]
    else:
        lines = ["attacks:", f"  {name}: {flow}"]
    return "\n".join(lines)


def _own_settings(plugin: type[Any]) -> dict[str, Any]:
    """Return the defaults of settings that are plain values and that not all plug-ins have."""
    shared: set[str] = set()
    for base in plugin.__mro__[1:]:
        if base.__module__.startswith("unlearnbench.api."):
            shared.update(getattr(base, "model_fields", ()))
    own: dict[str, Any] = {}
    for name, info in plugin.model_fields.items():
        default = info.get_default()
        if name not in shared and isinstance(default, bool | int | float | str):
            own[name] = default
    return own
