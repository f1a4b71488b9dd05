"""The kinds of plug-ins that have commands, and what these commands show of each kind.

`KINDS` has an entry for each kind: the facts that `list` and `show` print, the groups of `list`,
and the plug-in of the examples in the help. A *fact* is something that follows from a plug-in's
class or defaults, such as the sets of rows that a metric reads.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from unlearnbench.api import registry

Facts = dict[str, Any]
"""Facts by key: a text, a number, a truth value, a list of them, or None."""


@dataclass(frozen=True)
class PluginKind:
    """What the commands show of one kind of plug-in."""

    listed: tuple[str, ...]
    """Keys of the facts that `list` prints with `--wide` and `--json`."""
    shown_in_help: str
    """Name of a plug-in for the examples in the help of `show`."""
    in_config: str
    """How a configuration names a plug-in, with `{}` for the name."""
    headings: Mapping[str, str]
    """Headings by group, in the order of `list`. The groups that matter most come first."""
    facts_of: Callable[[str, Any], Facts]
    """Returns the facts about a plug-in of this name and class."""
    group_of: Callable[[str, Any], str]
    """Returns the group of a plug-in of this name and class."""


def word_of(kind: registry.Kind) -> str:
    """Return the word for one plug-in of a kind: `attack` for `attacks`."""
    return kind.removesuffix("s")


def with_article(noun: str) -> str:
    """Return a noun with its indefinite article: `a method`, `an attack`."""
    article = "an" if noun[0] in "aeiou" else "a"
    return f"{article} {noun}"


def _with_defaults(name: str, plugin: type[Any], **values: Any) -> Any:
    """Return a plug-in with its defaults, apart from `values`."""
    from unlearnbench.config.entries import example

    return example(plugin, values, name)


def _facts_of_method(_: str, method: Any) -> Facts:
    """Return the family, and the parts of a batch that the loss reads.

    Parts that are read of the start model are named in brackets: `reference(forget)`.
    """
    from unlearnbench.api.inference_method import PromptWrapper, Wrapper
    from unlearnbench.api.method import PARTS

    if issubclass(method, PromptWrapper):
        return {"needs": ["training rows (trains nothing)"], "family": method.family}
    if issubclass(method, Wrapper):
        return {"needs": ["questions (trains nothing)"], "family": method.family}
    needs = method.needs
    parts: list[str] = [part for part in PARTS if part in needs.all_parts]
    parts += [f"reference({part})" for part in sorted(needs.reference)]
    return {"needs": parts, "family": method.family, "rate": method.learning_rate}


def _group_of_method(_: str, method: Any) -> str:
    family: str = method.family
    return family


def _facts_of_modifier(_: str, modifier: Any) -> Facts:
    return {"kind": modifier.kind}


def _group_of_modifier(_: str, modifier: Any) -> str:
    kind: str = modifier.kind
    return kind


def _facts_of_metric(name: str, metric: Any) -> Facts:
    from unlearnbench.api.metric import Measure, Metric

    made = _with_defaults(name, metric)
    reads = sorted(metric.reads)
    if isinstance(made, Metric):
        measure = Measure(name.replace("-", "_"), made, ())
        roles = sorted(made.roles) or ["forget"]
        columns = tuple(measure.column(role, role) for role in roles)
        read_by_default = "losses"
    else:
        columns = made.columns()
        reads += [f"{model} model" for model in sorted(made.relative_to)]
        reads += [f"columns of {other}" for other in sorted(made.after)]
        read_by_default = "sets, columns"
    directions = dict.fromkeys(column.better or "neither" for column in columns)
    return {
        "reads": reads or [read_by_default],
        "sets": [str(role) for role in sorted(metric.roles)] or ["where it is named"],
        "better": list(directions),
        "version": metric.version,
        "columns": [f"{c.name} ({c.bounds[0]:g} to {c.bounds[1]:g})" for c in columns],
    }


def _group_of_metric(_: str, metric: Any) -> str:
    from unlearnbench.api.membership import MembershipInference
    from unlearnbench.api.metric import Summary

    if issubclass(metric, MembershipInference):
        return "membership"
    if issubclass(metric, Summary):
        return "score" if metric.question else "summary"
    observations = {str(observation) for observation in metric.reads}
    if "samples" in observations:
        return "samples"
    if observations & {"generated", "rouge"}:
        return "generated"
    return "probability"


def _facts_of_benchmark(name: str, benchmark: Any) -> Facts:
    from unlearnbench.api.benchmark import split_text
    from unlearnbench.config.profiles import TOFU
    from unlearnbench.models.dataset_rules import splits_of

    made = _with_defaults(name, benchmark, source=name)
    headline = made.headline_with(made.references)
    return {
        "sets": list(made.set_roles),
        "roles": [str(role) for role in made.set_roles.values()],
        "splits": [split_text(key) for key in splits_of(made)],
        "references": [str(model) for model in sorted(made.references)],
        "headline": list(headline.columns),
        "metrics": [use.metric for use in made.metrics(TOFU)],
    }


def _group_of_benchmark(_: str, benchmark: Any) -> str:
    if not benchmark.needs_base:
        return "own"
    has_source = {"path", "hub_id"} & benchmark.model_fields.keys()
    return "published" if has_source else "made"


def _facts_of_attack(name: str, attack: Any) -> Facts:
    from unlearnbench.api.attack import has_steps

    points = [point for point in _with_defaults(name, attack).points() if point]
    return {
        "changes": _group_of_attack(name, attack),
        "sets": [str(role) for role in sorted(attack.roles)],
        "points": points or None,
        "points_are": "steps" if has_steps(attack) else "kinds",
        "version": attack.version,
        "label": attack.label,
        "white_box": attack.white_box,
        "reads_answers": attack.reads_answers,
    }


def _group_of_attack(_: str, attack: Any) -> str:
    """Return what the attack changes."""
    from unlearnbench.api.attack import PromptAttack, WeightAttack

    if issubclass(attack, WeightAttack):
        return "weights"
    return "questions" if issubclass(attack, PromptAttack) else "number of answers"


KINDS: Mapping[registry.Kind, PluginKind] = {
    "methods": PluginKind(
        listed=("family", "needs"),
        shown_in_help="npo",
        in_config="methods: [{}]",
        # The family that this project studies comes first.
        headings={
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
        facts_of=_facts_of_method,
        group_of=_group_of_method,
    ),
    "modifiers": PluginKind(
        listed=("kind",),
        shown_in_help="sam",
        in_config="methods: [{{method: npo, retain: nll, modifiers: [{}]}}]",
        headings={
            "combine": "Combine the forget and the retain gradient",
            "filter": "Filter the update",
            "perturb": "Compute the forget gradient at other weights",
            "optimizer": "Replace the optimizer",
            "weights": "Change the weights outside the steps",
        },
        facts_of=_facts_of_modifier,
        group_of=_group_of_modifier,
    ),
    "metrics": PluginKind(
        listed=("reads", "sets", "better"),
        shown_in_help="kept",
        in_config="evaluation: {{metrics: [{}]}}",
        headings={
            "score": "Scores from 0 to 1 that answer a question",
            "summary": "Numbers of a whole evaluation",
            "membership": "Membership inference",
            "probability": "For each row, from probabilities",
            "generated": "For each row, from the greedy answer",
            "samples": "For each row, from sampled answers",
        },
        facts_of=_facts_of_metric,
        group_of=_group_of_metric,
    ),
    "benchmarks": PluginKind(
        listed=("sets", "splits", "references"),
        shown_in_help="synthetic",
        in_config="data: {{source: {}}}",
        headings={
            "own": "Your own rows: from files here, or from the hub",
            "made": "Made from a seed: no download",
            "published": "Published: from the hub, or from a folder",
        },
        facts_of=_facts_of_benchmark,
        group_of=_group_of_benchmark,
    ),
    "attacks": PluginKind(
        listed=("changes", "sets", "points"),
        shown_in_help="relearning",
        in_config="attacks: [{}]",
        headings={
            "weights": "Change the weights",
            "questions": "Ask differently",
            "number of answers": "Ask more than once",
        },
        facts_of=_facts_of_attack,
        group_of=_group_of_attack,
    ),
}
"""The kinds that have commands, in the order of `unlearnbench --help`."""


def summary_of(kind: registry.Kind, name: str, plugin: type[Any]) -> str:
    """Return the first line of the module's docstring, or of the class's if there is none.

    The docstring of a module with several plug-ins describes only the first of them, so that the
    class's docstring comes first for the others. A line that begins with the plug-in's name is
    printed without it: `IHL: push …` becomes `Push …`.
    """
    module = inspect.getmodule(plugin)
    docstrings = [module.__doc__ if module else None, plugin.__doc__]
    if name != _first_of_module(kind, name):
        docstrings.reverse()
    docstring = next(filter(None, docstrings), "")
    line = inspect.cleandoc(docstring).partition("\n")[0]
    title, colon, rest = line.partition(": ")
    if colon and _letters(title) == _letters(name):
        line = rest[:1].upper() + rest[1:]
    return line


def _first_of_module(kind: registry.Kind, name: str) -> str:
    """Return the first name, by the alphabet, of the plug-ins in the module of a plug-in."""

    def module_of(offer: registry.Offer) -> str:
        return offer.target.partition(":")[0]

    module = module_of(registry.find(kind, name))
    return min(offer.name for offer in registry.offers(kind) if module_of(offer) == module)


def _letters(text: str) -> str:
    """Return the letters and digits of a text, in lower case."""
    return "".join(letter for letter in text.lower() if letter.isascii() and letter.isalnum())
