"""The pages of the methods: equation, inputs, settings, gradient, place in a sweep of all; and the
page of the modifiers."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import pictures
from markup import code, escaped, from_docstring, table

from unlearnbench.api import registry
from unlearnbench.cli.main import main
from unlearnbench.report.gradient_profile import GradientProfiles, gradient_profiles
from unlearnbench.testing import example

SWEEP = Path(__file__).with_name("reference_sweep.csv")
CAPTION = """\
This shows one run of each method. The learning rate and the other settings were chosen by hand for
this model, a tiny Llama that was trained on generated authors: forget 10 %, five epochs, **one
seed, 80 questions**. Of each run, you see the epoch with the highest log₁₀ Forget Quality (FQ) that
keeps 80 % of the start model's utility. This is not a ranking, because 80 questions distinguish no
model from the retain model until the distance D of the KS test reaches 0.225. It only shows what a
method can reach on this model. `unlearnbench sweep every_method` repeats the runs (2026-11-26,
commit d631cbe; lunar with its later setting, on the same models).
"""
MODIFIERS = """\
# Modifiers

A modifier changes the gradient, the update or the weights of any method that trains:
`{method: npo, retain: nll, modifiers: [pcgrad]}`. A modifier that combines gradients needs a retain
term. Modifiers always apply in the same order, whatever the order in the file: perturb, combine,
filter, clip, optimizer, weights. [Your own modifier](../tutorials/add-a-modifier.md) is one file.
"""
MISSING = """\
Latent and tampering adversaries are not available yet.
"""
NO_LOSS = """\
Three methods are not available yet. FILA changes the weights below its adapters before training.
ULD answers with two models. DUET has no public code, and we have not read its equation.
"""
PARTS: Mapping[str, str] = {
    "forget": "the rows to forget",
    "retain": "as many rows to keep, drawn again in each epoch",
    "whole": "the rows to forget, including their prompts",
    "refusal": "the forget rows' questions, each with a refusal",
    "retain_refusal": "the retain rows' questions, each with a refusal",
    "alternative": "the forget rows' questions, each with another answer of the start model",
    "sample": "the forget rows' questions, each with answers that the model generates each step",
    "questions (trains nothing)": "only the questions, at inference time. No weight is trained",
}


def pages() -> Iterator[tuple[str, str]]:
    """(path, text) of every page, the overview first."""
    names = registry.names("methods")
    profiles = gradient_profiles({name: example(name) for name in names})
    shown = {name: _shown("methods", name) for name in names}
    yield "methods/index.md", _overview(shown)
    yield "methods/modifiers.md", _modifiers()
    for name, item in shown.items():
        yield f"methods/{name}.md", _page(name, item, profiles)


def _shown(kind: str, name: str) -> dict[str, Any]:
    """What `unlearnbench methods show` and its like say."""
    out = StringIO()
    with redirect_stdout(out), redirect_stderr(StringIO()):
        if main([kind, "show", name, "--json"]):
            raise ValueError(f"{kind} show {name} failed")
    result: dict[str, Any] = json.loads(out.getvalue())
    return result


@cache
def _sweep() -> tuple[dict[str, str], ...]:
    with SWEEP.open(encoding="utf-8", newline="") as lines:
        return tuple(csv.DictReader(lines))


def _overview(shown: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [
        (
            f"[{name}]({name}.md)",
            item["family"],
            escaped(item["summary"]),
            ", ".join(map(escaped, item["needs"])),
            escaped(_source(item)),
        )
        for name, item in shown.items()
    ]
    return "\n".join(
        [
            "---\nhide: [toc]\n---\n",
            "# Methods\n",
            "These methods come with the project. `unlearnbench methods list` also lists methods "
            "that you have installed. Any method that trains can have a retain term "
            "(`retain: {term: nll}`). [Your own method](#your-own) is one file.\n",
            table(("method", "family", "what it is", "reads", "source"), rows),
            NO_LOSS,
            "## The whole field in one sweep\n",
            CAPTION,
            pictures.standing(_points()),
            "*Model Utility increases to the right, log₁₀ Forget Quality upwards. The lower ring "
            "is the start model, and the upper ring is the retain model.*\n",
            _sweep_table(_sweep()),
            "## Your own\n",
            "`unlearnbench methods new my-method` writes a package with method, test and README. "
            "`unlearnbench methods check --plugin my_method.py` reports its faults.\n",
        ]
    )


def _page(name: str, item: Mapping[str, Any], profiles: GradientProfiles) -> str:
    source, _, text = item["description"].partition("\n\n")
    kwargs = "" if registry.trains(name) else " # trains nothing: no learning rate"
    return "\n".join(
        [
            f"# {name}\n",
            f"{escaped(item['summary'])}\n",
            f"**Source:** {escaped(source)}\n",
            "## Equation\n",
            f"{from_docstring(text)}\n",
            "## Reads\n",
            _reads(item["needs"]),
            "## Settings\n",
            _settings(item),
            "In a configuration:\n",
            f"```yaml\nmethods: [{{method: {name}}}]{kwargs}\n```\n",
            "## Gradient\n",
            _gradient(name, profiles),
            "## Where it stands\n",
            _standing(name),
        ]
    )


def _settings(item: Mapping[str, Any]) -> str:
    settings = [
        (
            code(field["name"]),
            escaped(f"{field['type']} {field['bounds']}"),
            code(field["default"]),
            f"{escaped(field['meaning'])} <br><small>{escaped(field['source'])}</small>",
        )
        for field in item["settings"]
    ]
    headings = ("setting", "type", "default", "meaning, and where the default is from")
    return table(headings, settings) if settings else "It has no settings.\n"


def _modifiers() -> str:
    shown = {name: _shown("modifiers", name) for name in registry.names("modifiers")}
    rows = [
        (f"[{name}](#{name})", item["kind"], escaped(item["summary"]), escaped(_source(item)))
        for name, item in shown.items()
    ]
    blocks = [MODIFIERS, table(("modifier", "kind", "what it is", "source"), rows), MISSING]
    for name, item in shown.items():
        source, _, text = item["description"].partition("\n\n")
        blocks += [f"## {name}\n", f"{escaped(source)}\n", f"{from_docstring(text)}\n"]
        blocks.append(_settings(item))
    return "\n".join(blocks)


def _source(item: Mapping[str, Any]) -> str:
    line: str = item["description"].partition("\n\n")[0].replace("\n", " ")
    return line.partition(": ")[2].rstrip(".") or line


def _reads(needs: Sequence[str]) -> str:
    rows: list[tuple[str, str]] = []
    for need in needs:
        part = need.removeprefix("reference(").removesuffix(")")
        subject = PARTS.get(need) or f"what the frozen start model makes of `{part}`"
        rows.append((code(need), subject))
    return table(("part", "what it is"), rows)


def _gradient(name: str, profiles: GradientProfiles) -> str:
    if reason := profiles.without.get(name):
        return f"There is no curve, because it {escaped(reason)}.\n"
    return (
        pictures.gradient(profiles.curves[name])
        + "\nThe curves show one forget token in a fixed random context, by its probability p. "
        "The start model has p = 0.99. On the left is ‖∂L/∂z‖₂, in powers of ten. On the right is "
        "∂L/∂z of the true token (solid; above 0, the token is pushed down) and the largest other "
        f"component (dashed). `unlearnbench methods gradient {name} --out gradient.html` draws "
        "them on a page. Name several methods to compare their curves.\n"
    )


def _points() -> list[tuple[str, float, float]]:
    return [
        (item["method"], float(item["model_utility"]), float(item["log10_forget_quality"]))
        for item in _sweep()
    ]


def _standing(name: str) -> str:
    part = [item for item in _sweep() if item["method"].partition("+")[0] == name]
    if not part:
        return "It was not part of the [sweep of all methods](index.md).\n"
    ends = [item for item in _sweep() if item["method"] in ("fine-tuned", "retain")]
    others = "The other points are the [other methods](index.md#the-whole-field-in-one-sweep)."
    picture = pictures.standing(_points(), part[0]["method"])
    return "\n".join([_sweep_table([*ends, *part]), picture, CAPTION + others + "\n"])


def _sweep_table(rows: Sequence[Mapping[str, str]]) -> str:
    headings = ("method", "learning rate", "epoch", "Model Utility", "log₁₀ FQ", "D")
    keys = ("learning_rate", "epoch", "model_utility", "log10_forget_quality", "ks_statistic")
    return table(headings, [(_linked(row["method"]), *(row[k] for k in keys)) for row in rows])


def _linked(label: str) -> str:
    name = label.partition("+")[0]
    return f"[{label}]({name}.md)" if name in registry.names("methods") else label
