"""What is installed, for a reader: methods with their equations, configurations with their text,
evaluation profiles with their choices.
"""

from __future__ import annotations

import argparse
import inspect
from typing import TYPE_CHECKING, Any

from pydantic.fields import FieldInfo

from unlearnbench import registry
from unlearnbench.config import find_config, load_config, shipped_configs
from unlearnbench.console import Console
from unlearnbench.errors import PluginError
from unlearnbench.plan import json_ready

if TYPE_CHECKING:
    from unlearnbench.evaluation.profiles import Profile
    from unlearnbench.method import Method, Wrapper

_BOUNDS = (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤"))


def list_methods(args: argparse.Namespace) -> int:
    """`unlearnbench methods list`; a broken method is in the list, with its fault."""
    _register(args)
    rows: list[dict[str, Any]] = []
    for name in registry.names("methods"):
        row: dict[str, Any] = {"name": name}
        try:
            method = registry.load_method(name)
            offer = registry.find("methods", name)
            row |= {"source": offer.source, "needs": _needs(method), "summary": _summary(method)}
        except PluginError as error:
            row |= {"source": "", "needs": [], "summary": str(error)}
        rows.append(row)
    console = Console()
    if args.json:
        console.print_json(rows)
    else:
        columns = ("method", "reads", "what it is", "from")
        cells = [(r["name"], ", ".join(r["needs"]), r["summary"], r["source"]) for r in rows]
        console.table(columns, cells)
    return 0


def show_method(args: argparse.Namespace) -> int:
    """`unlearnbench methods show NAME`."""
    _register(args)
    method, offer = registry.load_method(args.name), registry.find("methods", args.name)
    parameters = [_parameter(key, info) for key, info in method.model_fields.items()]
    text = inspect.cleandoc(method.__doc__ or "")
    console = Console()
    if args.json:
        told = {"name": args.name, "source": offer.source, "target": offer.target}
        told |= {"needs": _needs(method), "description": text, "hyperparameters": parameters}
        console.print_json(json_ready(told))
        return 0
    console.print(f"{args.name}  ({offer.source}, {offer.target})\n\n{text}\n")
    console.print(f"reads: {', '.join(_needs(method))}\n")
    columns = ("hyper-parameter", "type", "default", "bounds", "meaning", "default from")
    named = ("name", "type", "default", "bounds", "meaning", "source")
    cells = [tuple(p[key] for key in named) for p in parameters]
    console.table(columns, cells)
    example = next((p for p in parameters if p["type"] == "float"), None)
    grid = f", {example['name']}: [{example['default']}]" if example else ""
    rates = ", learning_rates: [1.0e-5]" if registry.trains(args.name) else ""
    console.print(f"\nin a config:  - {{method: {args.name}{grid}{rates}}}")
    return 0


def list_configs(args: argparse.Namespace) -> int:
    """`unlearnbench configs list`."""
    rows = [
        {"name": name, "purpose": _purpose(source.text), "source": source.package}
        for name, source in shipped_configs().items()
    ]
    console = Console()
    if args.json:
        console.print_json(rows)
    else:
        console.table(("config", "purpose", "from"), [tuple(row.values()) for row in rows])
    return 0


def show_config(args: argparse.Namespace) -> int:
    """`unlearnbench configs show NAME`: as written, or with every default as JSON."""
    console = Console()
    if args.json:
        console.print_json(json_ready(load_config(args.name).model_dump(mode="json")))
    else:
        console.print(find_config(args.name).text.removesuffix("\n"))
    return 0


def list_profiles(args: argparse.Namespace) -> int:
    """`unlearnbench profiles list`."""
    from unlearnbench.evaluation.profiles import PROFILES, TOFU, differences

    console = Console()
    if args.json:
        console.print_json([_profile(profile) for profile in PROFILES.values()])
        return 0
    rows = [
        (p.name, p.id, ", ".join(f"{b.key} {b.told}" for _, b in differences(TOFU, p)) or "-")
        for p in PROFILES.values()
    ]
    console.table(("profile", "id", "where it differs from tofu"), rows)
    return 0


def show_profile(args: argparse.Namespace) -> int:
    """`unlearnbench profiles show NAME`: every choice, and what is common to all."""
    from unlearnbench.evaluation.profiles import COMMON, profile_named

    profile = profile_named(args.name)
    console = Console()
    if args.json:
        console.print_json(_profile(profile) | {"common": COMMON})
        return 0
    choices = [(choice.key, choice.told, choice.meaning) for choice in profile.choices()]
    console.table(("choice", "value", "meaning"), choices, f"profile {profile.id}")
    console.print()
    console.table(("in every profile", "rule"), list(COMMON.items()))
    return 0


def diff_profiles(args: argparse.Namespace) -> int:
    """`unlearnbench profiles diff A B`: only what differs."""
    from unlearnbench.evaluation.profiles import differences, profile_named

    first, second = profile_named(args.first), profile_named(args.second)
    found = differences(first, second)
    console = Console()
    if args.json:
        differ = [
            {"choice": a.key, "values": [a.value, b.value], "meaning": a.meaning} for a, b in found
        ]
        console.print_json({"profiles": [first.id, second.id], "differ": differ})
    elif not found:
        console.print(f"{first.id} and {second.id} are the same rules")
    else:
        rows = [(a.key, a.told, b.told, a.meaning) for a, b in found]
        console.table(("choice", first.id, second.id, "meaning"), rows)
    return 0


def _profile(profile: Profile) -> dict[str, Any]:
    choices = [{"choice": c.key, "value": c.value, "meaning": c.meaning} for c in profile.choices()]
    return {"name": profile.name, "id": profile.id, "choices": choices}


def _register(args: argparse.Namespace) -> None:
    for file in args.plugin:
        registry.register_file(file)


def _needs(method: type[Method | Wrapper]) -> list[str]:
    """The parts of a batch that the loss reads; what it reads of the start model in brackets."""
    from unlearnbench.method import PARTS, Wrapper

    if issubclass(method, Wrapper):
        return ["questions (trains nothing)"]
    needs = method.needs
    read = needs.parts | needs.statistics
    told: list[str] = [part for part in PARTS if part in read]
    told += [f"reference({part})" for part in sorted(needs.reference)]
    return told


def _summary(method: type[Method | Wrapper]) -> str:
    """First line of what the module or, where that says nothing, the class is about."""
    module = inspect.getmodule(method)
    text = inspect.cleandoc((module.__doc__ if module else None) or method.__doc__ or "")
    return text.partition("\n")[0]


def _parameter(key: str, info: FieldInfo) -> dict[str, Any]:
    bounds = [
        f"{sign} {getattr(rule, name):g}"
        for rule in info.metadata
        for name, sign in _BOUNDS
        if getattr(rule, name, None) is not None
    ]
    kind = info.annotation
    meaning, _, source = (info.description or "").partition(" [source: ")
    return {
        "name": key,
        "type": kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", ""),
        "default": "required" if info.is_required() else info.get_default(),
        "bounds": ", ".join(bounds),
        "meaning": meaning,
        "source": source.removesuffix("]"),
    }


def _purpose(text: str) -> str:
    """The first comment of a config, which says what it is for."""
    first = text.lstrip().partition("\n")[0]
    return first.lstrip("# ").strip() if first.startswith("#") else ""
