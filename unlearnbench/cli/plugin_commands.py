"""`list`, `show`, `check` and `new` of every kind of plug-in."""

# Annotations are not postponed: those of the commands refer to names of the function around them.

import inspect
import json
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from string import Template
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from unlearnbench.api import registry
from unlearnbench.base.console import Console
from unlearnbench.base.errors import PluginError, UnlearnbenchError
from unlearnbench.base.number_text import float_text
from unlearnbench.cli.command import argument, command, flag, new_group, option
from unlearnbench.cli.options import Json, Plugins, Wide, dotted_values, register_plugins

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from unlearnbench.testing import Result


_BOUNDS = (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤"))
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_FAULT = 1
"""Exit code where a check found a fault, or could not be run."""

Name = Annotated[str, argument("NAME")]


def plugin_group(kind: registry.Kind) -> typer.Typer:
    """The commands of a kind of plug-in."""
    word = kind.removesuffix("s")
    a_word = _with_article(word)
    app = new_group(f"List, show, check and write {kind}.")

    @command(
        app,
        "list",
        text=f"List the {kind} that are installed, each with a summary; a broken one with its "
        f"fault.\n\nExamples:\n  unlearnbench {kind} list\n  unlearnbench {kind} list --wide",
    )
    def list_plugins(wide: Wide = False, as_json: Json = False, plugins: Plugins = None) -> None:
        register_plugins(plugins)
        listed = [_listed(kind, name) for name in registry.names(kind)]
        rows, console = [row for row, _ in listed], Console()
        if as_json:
            console.print_json(rows)
            return
        if wide:
            columns = ("name", *LISTED[kind], "summary", "source")
            lines = [[_cell(row[key]) for key in columns] for row in rows]
            console.table(columns, lines, is_wide=True)
            return
        from unlearnbench.cli.catalogue import Entry, print_catalogue

        entries = [Entry(row["name"], row["summary"], group) for row, group in listed]
        hint = f"unlearnbench {kind} show NAME explains one of them, with its settings."
        print_catalogue(entries, GROUPS[kind], hint, console)

    @command(
        app,
        "show",
        text=f"Show what {a_word} is, what it reads, and its settings.\n\n"
        f"Examples:\n  unlearnbench {kind} show {_SHOWN[kind]}\n"
        f"  unlearnbench {kind} show {_SHOWN[kind]} --json",
    )
    def show(name: Name, as_json: Json = False, plugins: Plugins = None) -> None:
        register_plugins(plugins)
        _show(kind, name, as_json=as_json)

    @command(
        app,
        "check",
        text=f"Check {a_word} for common mistakes, in seconds and without a GPU.\n\n"
        "The exit code is 1 if there is a fault.\n\n"
        f"Examples:\n  unlearnbench {kind} check NAME --set KEY=VALUE --only CHECK\n"
        f"  unlearnbench {kind} check my_{word}.py\n"
        f"  unlearnbench {kind} check --all --json",
    )
    def check(
        names: Annotated[
            list[str] | None, argument("NAME", f"{kind.capitalize()} to check, or files.")
        ] = None,
        check_all: Annotated[bool, flag("--all", f"Check every {word} that is installed.")] = False,
        only: Annotated[
            list[str] | None, option("CHECK", "Run this check only (repeatable).")
        ] = None,
        settings: Annotated[
            list[str] | None,
            option("KEY=VALUE", "A setting in place of its default (repeatable).", "--set"),
        ] = None,
        plugins: Plugins = None,
        as_json: Json = False,
    ) -> int:
        from unlearnbench.testing import check_plugin

        modules = [*(plugins or ()), *(name for name in names or () if name.endswith(".py"))]
        from_files = register_plugins(plugins)
        named = [registry.register_file(n) if n.endswith(".py") else n for n in names or ()]
        chosen = [*registry.names(kind)] if check_all else named or from_files
        if not chosen:
            raise UnlearnbenchError(
                f"no {word} to check: give {a_word}'s name, --all or --plugin FILE"
            )
        for name in chosen:
            registry.load(kind, name)  # raises for an unknown or broken one, before any work
        values = dotted_values(settings or ())
        if values and len(chosen) != 1:
            raise UnlearnbenchError(f"--set is for one {word}: name it in place of --all")
        options = [f" --plugin {file}" for file in modules]
        options += [f" --set {text}" for text in settings or ()]
        console, listed, verdicts = Console(), dict[str, Any](), set[str]()
        for name in chosen:
            results = check_plugin(kind, name, values, only or ())
            verdicts |= {result.outcome.verdict for result in results}
            listed[name] = [_plain(result) for result in results]
            if not as_json:
                rows = [(r["check"], r["verdict"], r["seen"]) for r in listed[name]]
                if len(chosen) == 1:
                    console.table(
                        ("check", "verdict", "what was seen"), rows, flowing={"what was seen"}
                    )
                _report(console, f"{kind} check {name}", results, "".join(options))
        if as_json:
            console.print_json(listed)
        return _FAULT if verdicts & {"fault", "not run"} else 0

    @command(
        app,
        "new",
        text=f"Write a package with {a_word} of your own: {word}, test, pyproject, README.\n\n"
        f"Examples:\n  unlearnbench {kind} new my-{word}\n"
        f"  cd my-{word} && pip install -e . pytest && pytest",
    )
    def new(
        name: Annotated[str, argument("NAME", f"Name of the {word}, such as my-{word}.")],
        out: Annotated[str, option("DIR", "The package becomes a folder in it.")] = ".",
    ) -> None:
        for offer in registry.offers(kind):
            if offer.name == name:
                text = f"{offer.source} already has {a_word} {name!r}; choose another name"
                raise PluginError(text)
        console, written = Console(), write_package(name, Path(out), kind)
        for file in written:
            console.print(str(file))
        console.print(
            f"\nnext:  cd {written[0].parent}\n"
            "       pip install -e . pytest && pytest\n"
            f"       unlearnbench {kind} check {name}"
        )

    del list_plugins, show, check, new  # the group has them
    return app


def write_package(name: str, folder: Path, kind: registry.Kind = "methods") -> tuple[Path, ...]:
    """Write the package of the plug-in `name` into `folder`/`name`; returns its files.

    The plug-in in it is complete, down to its source and test, and conforms: an author changes
    one thing at a time and sees at once what a change breaks.

    Raises: PluginError for a name that no plug-in can have, and for a folder that is not empty.
    """
    word, module, package = kind.removesuffix("s"), name.replace("-", "_"), folder / name
    if not _NAME.fullmatch(name) or iskeyword(name) or find_spec(module) is not None:
        raise PluginError(
            f"{name!r} cannot be the name of {_with_article(word)}: a name begins with a small "
            "letter, has small letters, digits and hyphens between words, and is no keyword or "
            "module of Python; choose another name"
        )
    if package.exists() and any(package.iterdir()):
        raise PluginError(f"{package} exists already, so nothing was written; choose another --out")
    values = {
        "name": name,
        "module": module,
        "kind": kind,
        "a_word": _with_article(word),
        "cls": name.title().replace("-", ""),
        "title": name.replace("-", " ").capitalize(),
    }
    targets = {
        "pyproject.toml": "pyproject.toml",
        "README.md": "README.md",
        f"{word}.py": f"{module}.py",
        f"test_{word}.py": f"tests/test_{module}.py",
    }
    (package / "tests").mkdir(parents=True, exist_ok=True)
    for template, path in targets.items():
        text = (files("unlearnbench.cli") / "packages" / f"{template}.txt").read_text("utf-8")
        (package / path).write_text(Template(text).substitute(values), encoding="utf-8")
    return tuple(package / path for path in targets.values())


def _report(console: Console, checked: str, results: Sequence["Result"], options: str) -> None:
    """Explain the faults of a plug-in; `checked` and `options` make the command that shows one."""
    faults = [result for result in results if result.outcome.verdict == "fault"]
    name = checked.split()[-1]
    for result in faults:
        check, outcome = result.check, result.outcome
        again = f"unlearnbench {checked} --only {check.name}{options}"
        blocks = {"seen": outcome.seen, "to see it": again}
        if not outcome.error:  # else the check broke off, and its advice does not apply
            blocks = {"what": check.claim, **blocks}
            blocks |= {"why it matters": check.why, "look for": check.fix}
        console.print(f"\n{name}: {check.name}")
        for title, text in blocks.items():
            line = f"  {title:15} {text}"
            if text == again:
                # A command is copied, so it stays in one line.
                console.print(line)
            else:
                console.paragraph(line, indent=" " * 18)
    count = f"{len(faults) or 'no'} fault{'s' if len(faults) > 1 else ''}"
    warned = sum(result.outcome.verdict == "warning" for result in results)
    if warned:
        count += f", {warned} warning{'s' if warned > 1 else ''}"
    not_run = sum(result.outcome.verdict == "not run" for result in results)
    skipped = f", {not_run} check{'s' * (not_run > 1)} not run" if not_run else ""
    console.print(f"{name}: {count}{skipped}, {sum(r.seconds for r in results):.1f} s")


def _plain(result: "Result") -> dict[str, Any]:
    check = result.check
    return {
        "check": check.name,
        "verdict": result.outcome.verdict,
        "seen": result.outcome.seen,
        "claim": check.claim,
        "why": check.why,
        "mend": check.fix,
        "seconds": round(result.seconds, 3),
    }


def _listed(kind: registry.Kind, name: str) -> tuple[dict[str, Any], str]:
    """A line of `list`, and the group in which it is printed."""
    row: dict[str, Any] = {"name": name, "source": ""}
    try:
        plugin = registry.load(kind, name)
        facts = _FACTS[kind](name, plugin)
        row["source"] = registry.find(kind, name).source
        row |= {key: facts[key] for key in LISTED[kind]}
        return row | {"summary": _summary(kind, name, plugin)}, _GROUP_OF[kind](name, plugin)
    except PluginError as error:
        row |= {key: [] for key in LISTED[kind]}
        return row | {"summary": str(error)}, _BROKEN


def _show(kind: registry.Kind, name: str, *, as_json: bool) -> None:
    """Print a plug-in's docstring, facts and settings, and how a configuration names it."""
    from unlearnbench.base.hashing import json_ready

    plugin, offer, console = registry.load(kind, name), registry.find(kind, name), Console()
    ranges: Mapping[str, tuple[float, float]] = getattr(plugin, "ranges", {})
    settings = [_field(k, info, ranges.get(k, ())) for k, info in plugin.model_fields.items()]
    text, every = inspect.cleandoc(plugin.__doc__ or ""), _FACTS[kind](name, plugin)
    if as_json:
        row = {"name": name, "source": offer.source, "summary": _summary(kind, name, plugin)}
        shown = row | every | {"in a config": _CONFIG[kind].format(name)}
        shown |= {"target": offer.target, "description": text, "settings": settings}
        console.print_json(json_ready(shown))
        return
    console.paragraph(f"{name}: {_summary(kind, name, plugin)}")
    console.print(f"{offer.source}, {offer.target}\n")
    _print_docstring(text, console)
    console.print()
    for key, value in every.items():
        label = _LABELS.get(key, key)
        text = ("no", "yes")[value] if isinstance(value, bool) else _cell(value)
        console.paragraph(f"{f'{label}:':{_LABEL_WIDTH}}{text}", indent=" " * _LABEL_WIDTH)
    console.print(f"\nin a config:\n{textwrap.indent(example_config(kind, name, plugin), '  ')}")
    if settings:
        console.print("\nsettings:")
    for setting in settings:
        _print_setting(setting, console)


_LABEL_WIDTH = 15
_LABELS: Mapping[str, str] = {
    "needs": "reads",
    "rate": "learning rate",
    "points_are": "points are",
    "white_box": "needs weights",
    "reads_answers": "reads answers",
}
"""Names of facts for people, if they differ from the keys of JSON."""
_WRAPPED = 60
"""Length from which a line of a docstring counts as broken by its author."""
_ITEM = re.compile(r"(\s*\S.{0,25}?\s{2,})(\S.*)")
"""`β → 0  recovers gradient ascent`: a symbol or name, and behind two spaces what it is."""


def _print_docstring(text: str, console: Console) -> None:
    """Print a docstring: prose and explanations are broken anew, formulas stay as they are."""
    indents: list[int] = []
    lines: list[str] = []
    is_open = False
    for line in text.splitlines():
        item = _ITEM.fullmatch(line)
        continues_item = is_open and line[:1].isspace() and indents[-1] > 0 and not item
        continues_prose = is_open and not item and indents[-1] == 0 and not line[:1].isspace()
        if line and (continues_item or continues_prose):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
            start = len(line) - len(line.lstrip())
            indents.append(item.end(1) if item else start)
        is_open = bool(line) and (indents[-1] > 0 or len(line) > _WRAPPED)
    for line, indent in zip(lines, indents, strict=True):
        console.paragraph(line, indent=" " * indent)


def _print_setting(setting: Mapping[str, Any], console: Console) -> None:
    """Print a setting in a block: its name, values and default, then what it means."""
    values = [_words_of_type(setting["type"])]
    if setting["bounds"]:
        values.append(setting["bounds"])
    default = setting["default"]
    values.append("required" if default == "required" else f"default {_yaml_text(default)}")
    if setting["tuned"]:
        values.append(f"`tune` searches {setting['tuned']}")
    console.paragraph(f"  {setting['name']}  {', '.join(values)}", indent=" " * 6)
    if setting["meaning"]:
        console.paragraph(f"      {setting['meaning']}", indent=" " * 6)
    if setting["source"]:
        console.paragraph(f"      source: {setting['source']}", indent=" " * 6)


def _words_of_type(annotation: str) -> str:
    """The type in the words of YAML: `constant, column or reward`, `int or null`, `list of int`."""
    if match := re.fullmatch(r"Literal\[(.*)\]", annotation):
        *first, last = [value.strip().strip("'") for value in match[1].split(",")]
        return f"{', '.join(first)} or {last}" if first else last
    if match := re.fullmatch(r"tuple\[([^,\[\]]*), \.\.\.\]", annotation):
        return f"list of {match[1]}"
    return annotation.replace(" | None", " or null").replace(" | ", " or ")


def _yaml_text(value: Any) -> str:
    """A default as YAML has it, on one line."""
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
        return f"{{{', '.join(f'{key}: {_yaml_text(v)}' for key, v in value.items())}}}"
    is_plain = re.fullmatch(r"[A-Za-z][A-Za-z0-9_./-]*", str(value)) is not None
    is_word_of_yaml = str(value).lower() in ("true", "false", "null", "yes", "no", "on", "off")
    return str(value) if is_plain and not is_word_of_yaml else json.dumps(str(value))


def example_config(kind: registry.Kind, name: str, plugin: type[Any]) -> str:
    """Return lines of YAML that name a plug-in, with one or two of its own settings."""
    keys_of_all_plugins = {
        key
        for base in plugin.__mro__[1:]
        if base.__module__.startswith("unlearnbench.api.")
        for key in getattr(base, "model_fields", ())
    }
    own_settings: dict[str, Any] = {}
    for key, info in plugin.model_fields.items():
        is_plain = isinstance(info.get_default(), bool | int | float | str)
        if key not in keys_of_all_plugins and is_plain:
            own_settings[key] = info.get_default()
    settings = _EXAMPLE_SETTINGS.get(name) or own_settings
    pairs = [f"{key}: {_yaml_text(value)}" for key, value in [*settings.items()][:2]]
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


def _with_article(noun: str) -> str:
    """The noun behind its indefinite article: `a method`, `an attack`."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _summary(kind: registry.Kind, name: str, plugin: type[Any]) -> str:
    """The first line of the module's docstring, or of the class's if there is none.

    A module with several plug-ins describes only the first one. The plug-in's name in front of the
    line is left out: `IHL: push …` becomes `Push …`.
    """
    module = inspect.getmodule(plugin)
    texts = [module.__doc__ if module else None, plugin.__doc__]
    target = registry.find(kind, name).target.partition(":")[0]
    of_module = [o.name for o in registry.offers(kind) if o.target.partition(":")[0] == target]
    if name != min(of_module):
        texts.reverse()
    line = inspect.cleandoc(next(filter(None, texts), "")).partition("\n")[0]
    title, colon, rest = line.partition(": ")
    if colon and _letters(title) == _letters(name):
        line = rest[:1].upper() + rest[1:]
    return line


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if not isinstance(value, list | tuple):
        return str(value)
    items = [*map(str, value)]
    if len(items) > _MOST:
        items = [*items[:2], "…", f"{items[-1]} ({len(items)} in all)"]
    return ", ".join(items)


_MOST = 50
"""Items of a cell; of more, the first and the last are shown."""
_FIELD = ("name", "type", "default", "bounds", "tuned", "meaning", "source")


def _field(key: str, info: "FieldInfo", tuned: Sequence[float]) -> dict[str, Any]:
    """A plug-in's field: type, default, bounds, range of `tune`, meaning and source."""
    from unlearnbench.api.hyperparameters import TypeName

    bounds = [
        f"{sign} {getattr(rule, name):g}"
        for rule in info.metadata
        for name, sign in _BOUNDS
        if getattr(rule, name, None) is not None
    ]
    meaning, _, source = (info.description or "").partition(" [source: ")
    default = "required" if info.is_required() else info.get_default()
    (hint,) = get_type_hints(SimpleNamespace(__annotations__={key: info.annotation})).values()
    names = [mark.text for mark in info.metadata if isinstance(mark, TypeName)]
    kind = names[0] if names else inspect.formatannotation(hint)  # a hint has no rules
    within = " to ".join(f"{end:g}" for end in tuned)
    values = (key, kind, default, ", ".join(bounds), within, meaning, source.removesuffix("]"))
    return dict(zip(_FIELD, values, strict=True))


LISTED: Mapping[registry.Kind, tuple[str, ...]] = {
    "methods": ("family", "needs"),
    "modifiers": ("kind",),
    "metrics": ("reads", "sets", "better"),
    "benchmarks": ("sets", "splits", "references"),
    "attacks": ("changes", "sets", "points"),
}
"""The kinds of plug-ins that have commands, each with the facts that `list --wide` prints."""
_SHOWN: Mapping[registry.Kind, str] = {
    "methods": "npo",
    "modifiers": "sam",
    "metrics": "kept",
    "benchmarks": "synthetic",
    "attacks": "relearning",
}
"""The examples of `show`."""
_CONFIG: Mapping[registry.Kind, str] = {
    "methods": "methods: [{}]",
    "modifiers": "methods: [{{method: npo, retain: nll, modifiers: [{}]}}]",
    "metrics": "evaluation: {{metrics: [{}]}}",
    "benchmarks": "data: {{source: {}}}",
    "attacks": "attacks: [{}]",
}
_OWN_ROWS = {"forget": "forget.jsonl", "retain": "retain.jsonl"}
_EXAMPLE_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "questions": _OWN_ROWS,
    "texts": _OWN_ROWS,
    "deep-unlearning": {"set": "relationships"},
    "task-aggregate": {"kept": ["rouge_retain"], "gone": ["rouge_forget"]},
}
"""Settings of examples that no default can tell."""


def _method(_: str, method: Any) -> dict[str, Any]:
    """The parts of a batch that the loss reads; what it reads of the start model in brackets."""
    from unlearnbench.api.inference_method import Wrapper
    from unlearnbench.api.method import PARTS

    if issubclass(method, Wrapper):
        return {"needs": ["questions (trains nothing)"], "family": method.family}
    needs = method.needs
    parts: list[str] = [part for part in PARTS if part in needs.all_parts]
    parts += [f"reference({part})" for part in sorted(needs.reference)]
    return {"needs": parts, "family": method.family, "rate": method.learning_rate}


def _metric(name: str, metric: Any) -> dict[str, Any]:
    from unlearnbench.api.metric import Measure, Metric

    made, reads = _example(name, metric), [*sorted(metric.reads)]
    if isinstance(made, Metric):
        measure = Measure(name.replace("-", "_"), made, ())
        columns = tuple(measure.column(role, role) for role in sorted(made.roles) or ["forget"])
    else:
        columns = made.columns()
        reads += [f"{model} model" for model in sorted(made.relative_to)]
        reads += [f"columns of {other}" for other in sorted(made.after)]
    return {
        "reads": reads or (["losses"] if isinstance(made, Metric) else ["sets, columns"]),
        "sets": [*map(str, sorted(metric.roles))] or ["where it is named"],
        "better": [*dict.fromkeys(column.better or "neither" for column in columns)],
        "version": metric.version,
        "columns": [f"{c.name} ({c.bounds[0]:g} to {c.bounds[1]:g})" for c in columns],
    }


def _benchmark(name: str, kind: Any) -> dict[str, Any]:
    from unlearnbench.api.benchmark import split_text
    from unlearnbench.config.profiles import TOFU
    from unlearnbench.models.dataset_rules import splits_of

    benchmark = _example(name, kind, source=name)
    return {
        "sets": [*benchmark.set_roles],
        "roles": [*map(str, benchmark.set_roles.values())],
        "splits": [*map(split_text, splits_of(benchmark))],
        "references": [*map(str, sorted(benchmark.references))],
        "headline": [*benchmark.headline_with(benchmark.references).columns],
        "metrics": [use.metric for use in benchmark.metrics(TOFU)],
    }


def _attack(name: str, kind: Any) -> dict[str, Any]:
    from unlearnbench.api.attack import PromptAttack, WeightAttack, has_steps

    changes = "questions" if issubclass(kind, PromptAttack) else "number of answers"
    return {
        "changes": "weights" if issubclass(kind, WeightAttack) else changes,
        "sets": [*map(str, sorted(kind.roles))],
        "points": [point for point in _example(name, kind).points() if point] or None,
        "points_are": "steps" if has_steps(kind) else "kinds",
        **{key: getattr(kind, key) for key in ("version", "label", "white_box", "reads_answers")},
    }


def _example(name: str, kind: type[Any], **values: Any) -> Any:
    """A plug-in with its defaults."""
    from unlearnbench.config.entries import example

    return example(kind, values, name)


_FACTS: Mapping[registry.Kind, Callable[[str, Any], dict[str, Any]]] = {
    "methods": _method,
    "modifiers": lambda _, modifier: {"kind": modifier.kind},
    "metrics": _metric,
    "benchmarks": _benchmark,
    "attacks": _attack,
}
"""Facts about a plug-in of each kind, by its name and class, for `list` and `show`."""

_BROKEN = "broken"
GROUPS: Mapping[registry.Kind, Mapping[str, str]] = {
    "methods": {
        "target distribution": "Learn another distribution over tokens (the family of CE-U)",
        "ascent": "Gradient ascent",
        "weighted ascent": "Gradient ascent with weights on tokens",
        "preference": "Preference losses",
        "refusal": "Learn to refuse",
        "sampled answers": "Learn from sampled answers",
        "hidden states": "Move hidden states",
        "weights": "Edit the weights",
        "prompts": "Change the prompt, and train nothing",
        "other": "Other methods",
    },
    "modifiers": {
        "combine": "Combine the forget and the retain gradient",
        "filter": "Filter the update",
        "perturb": "Compute the forget gradient at other weights",
        "optimizer": "Replace the optimizer",
        "weights": "Change the weights outside the steps",
    },
    "metrics": {
        "score": "Scores from 0 to 1 that answer a question",
        "summary": "Numbers of a whole evaluation",
        "membership": "Membership inference",
        "probability": "For each row, from probabilities",
        "generated": "For each row, from the greedy answer",
        "samples": "For each row, from sampled answers",
    },
    "benchmarks": {
        "own": "Your own rows: from files here, or from the hub",
        "made": "Made from a seed: no download",
        "published": "Published: from the hub, or from a folder",
    },
    "attacks": {
        "weights": "Change the weights",
        "questions": "Ask differently",
        "number of answers": "Ask more than once",
    },
}
"""Headings of the groups in which `list` prints each kind, in their order.

What matters most stands first: the family that this project studies, scores, own rows.
"""


def _metric_group(_: str, metric: Any) -> str:
    from unlearnbench.api.membership import MembershipInference
    from unlearnbench.api.metric import Summary

    if issubclass(metric, MembershipInference):
        return "membership"
    if issubclass(metric, Summary):
        return "score" if metric.question else "summary"
    observations = {*map(str, metric.reads)}
    if "samples" in observations:
        return "samples"
    return "generated" if observations & {"generated", "rouge"} else "probability"


def _benchmark_group(_: str, benchmark: Any) -> str:
    if not benchmark.needs_base:
        return "own"
    is_read = {"path", "hub_id"} & benchmark.model_fields.keys()
    return "published" if is_read else "made"


_GROUP_OF: Mapping[registry.Kind, Callable[[str, Any], str]] = {
    "methods": lambda _, method: method.family,
    "modifiers": lambda _, modifier: modifier.kind,
    "metrics": _metric_group,
    "benchmarks": _benchmark_group,
    "attacks": lambda name, attack: _attack(name, attack)["changes"],
}
"""The group of a plug-in of each kind, by its name and class."""
