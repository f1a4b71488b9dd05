"""`list`, `show`, `check` and `new` of every kind of plug-in."""

# Annotations are not postponed: those of the commands refer to names of the function around them.

import inspect
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
from unlearnbench.cli.command import argument, command, flag, new_group, option
from unlearnbench.cli.options import Json, Plugins, dotted_values, register_plugins

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

    @command(app, "list", text=f"List the {kind} that are installed; broken ones with their fault.")
    def list_plugins(as_json: Json = False, plugins: Plugins = None) -> None:
        register_plugins(plugins)
        rows, console = [_row(kind, name) for name in registry.names(kind)], Console()
        if as_json:
            console.print_json(rows)
            return
        columns = ("name", *LISTED[kind], "summary", "source")
        console.table(columns, [[_cell(row[key]) for key in columns] for row in rows])

    @command(app, "show", text=f"Show what {a_word} is, what it reads, and its settings.")
    def show(name: Name, as_json: Json = False, plugins: Plugins = None) -> None:
        register_plugins(plugins)
        _show(kind, name, as_json=as_json)

    @command(
        app,
        "check",
        text=f"Check {a_word} for common mistakes; takes seconds, and no GPU.\n\n"
        "Exit code 1 where there is a fault.\n\n"
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
                    console.table(("check", "verdict", "what was seen"), rows)
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
        name: Annotated[str, argument("NAME", f"Such as my-{word}.")],
        out: Annotated[str, option("DIR", "The package becomes a folder in it.")] = ".",
    ) -> None:
        for offer in registry.offers(kind):
            if offer.name == name:
                text = f"{word} {name!r} is offered by {offer.source}; choose another name"
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
            f"{name!r} cannot be the name of {_with_article(word)}: use small letters "
            "and digits, with hyphens between words, a letter first; no keyword and no module "
            "of the Python here"
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
            first, rest = f"  {title:15} ", " " * 18
            lines = textwrap.wrap(text, 82, break_long_words=False, break_on_hyphens=False)
            console.print(first + f"\n{rest}".join(lines))
    count = f"{len(faults) or 'no'} fault{'s' if len(faults) > 1 else ''}"
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


def _row(kind: registry.Kind, name: str) -> dict[str, Any]:
    """A line of `list`."""
    row: dict[str, Any] = {"name": name, "source": ""}
    try:
        plugin = registry.load(kind, name)
        every = _FACTS[kind](name, plugin)
        row |= {"source": registry.find(kind, name).source}
        return row | {key: every[key] for key in LISTED[kind]} | {"summary": _first_line(plugin)}
    except PluginError as error:
        return row | {key: [] for key in LISTED[kind]} | {"summary": str(error)}


def _show(kind: registry.Kind, name: str, *, as_json: bool) -> None:
    """Print a plug-in's docstring, facts and settings."""
    from unlearnbench.base.hashing import json_ready

    plugin, offer, console = registry.load(kind, name), registry.find(kind, name), Console()
    ranges: Mapping[str, tuple[float, float]] = getattr(plugin, "ranges", {})
    settings = [_field(k, info, ranges.get(k, ())) for k, info in plugin.model_fields.items()]
    text, every = inspect.cleandoc(plugin.__doc__ or ""), _FACTS[kind](name, plugin)
    every["in a config"] = _CONFIG[kind].format(name)
    if as_json:
        row = {"name": name, "source": offer.source, "summary": _first_line(plugin)}
        shown = row | every | {"target": offer.target, "description": text, "settings": settings}
        console.print_json(json_ready(shown))
        return
    console.print(f"{name}  ({offer.source}, {offer.target})\n\n{text}\n")
    for key, value in every.items():
        console.print(f"{f'{key}:':12} {_cell(value)}")
    if used := [key for key in _FIELD if any(row[key] != "" for row in settings)]:
        console.print()
        console.table(used, [[_cell(row[key]) for key in used] for row in settings], "settings")


def _with_article(noun: str) -> str:
    """The noun behind its indefinite article: `a method`, `an attack`."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _first_line(plugin: type[Any]) -> str:
    """The first line of the module's docstring, or of the class's where it has none."""
    module = inspect.getmodule(plugin)
    text = inspect.cleandoc((module.__doc__ if module else None) or plugin.__doc__ or "")
    return text.partition("\n")[0]


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
    "methods": ("needs",),
    "modifiers": ("kind",),
    "metrics": ("reads", "sets", "better"),
    "benchmarks": ("sets", "splits", "references"),
    "attacks": ("changes", "sets", "points"),
}
"""The kinds of plug-ins that have commands, each with the facts that are columns of `list`."""
_CONFIG: Mapping[registry.Kind, str] = {
    "methods": "methods: [{}]",
    "modifiers": "methods: [{{method: npo, retain: nll, modifiers: [{}]}}]",
    "metrics": "evaluation: {{metrics: [{}]}}",
    "benchmarks": "data: {{source: {}}}",
    "attacks": "attacks: [{}]",
}


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
