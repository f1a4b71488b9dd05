"""The pages of the methods: equation, inputs, settings, gradient, place in a sweep of all; and the
page of the modifiers."""

import csv
import json
import re
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
The model is a tiny Llama that was trained on generated authors. The runs forget 10 % of these
authors in five epochs, with **one seed and 80 questions**. The learning rate and the other settings
were chosen by hand. For each run, you see the epoch with the highest log₁₀ Forget Quality (FQ)
among the epochs that keep 80 % of the start model's utility.

This is not a ranking. With 80 questions, the KS test distinguishes a model from the retain model
only if their distance D is at least 0.225. The numbers only show what a method can reach on this
model. The command `unlearnbench sweep every_method` repeats the runs (2026-11-26, commit d631cbe).
"""
LATER: Mapping[str, str] = {
    "lunar": "The run of `lunar` was made later with another setting, on the same models.\n"
}
"""Remarks on runs that were made after the others, by method."""
MODIFIERS = """\
# Modifiers

A modifier changes the gradient, the update or the weights of any method that trains. To use one,
name it in the entry of a method: `{method: npo, retain: nll, modifiers: [pcgrad]}`.

Modifiers always apply in the same order of their kinds, whatever their order in the file: perturb,
combine, filter, clip, optimizer, weights. A modifier of the kind *combine* combines the forget
gradient with the retain gradient, so it needs a method with a retain term. You can also write
[your own modifier](../tutorials/add-a-modifier.md) in one file.
"""
MISSING = """\
Modifiers that train against latent or tampering adversaries are not available yet.
"""
NO_LOSS = """\
Three known methods are not available yet. FILA changes the weights below its adapters before the
training. ULD needs two models to answer. DUET has no public code, and we have not read its
equation.
"""
MODELS: Mapping[str, str] = {"fine-tuned": "start model", "retain": "retain model"}
"""Names of the baselines by their label in the table of the sweep."""
PARTS: Mapping[str, str] = {
    "forget": "the rows to forget",
    "retain": "the same number of rows to keep, drawn again in each epoch",
    "whole": "the rows to forget, including their prompts",
    "refusal": "the forget rows' questions, each with a refusal",
    "retain_refusal": "the retain rows' questions, each with a refusal",
    "alternative": "the forget rows' questions, each with another answer that the start model gave",
    "sample": "the forget rows' questions, with answers that the model generates in each step",
    "questions (trains nothing)": "only the questions, at inference time. No weight is trained",
    "training rows (trains nothing)": "the rows to forget and to keep, at inference time. "
    "No weight is trained",
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
            "This page lists the unlearning methods that come with the project. The command "
            "`unlearnbench methods list` also lists methods that you have installed. You can add a "
            "retain term to any method that trains, for example `retain: {term: nll}`. To add "
            "[your own method](#your-own), you write one file.\n",
            table(("method", "family", "what it does", "rows that it reads", "source"), rows),
            NO_LOSS,
            "## The whole field in one sweep\n",
            "The picture and the table show one run of each method. " + CAPTION,
            *LATER.values(),
            pictures.standing(_points()),
            "*Model Utility increases to the right, and log₁₀ Forget Quality increases upwards. "
            "The lower ring is the start model, and the upper ring is the retain model.*\n",
            _sweep_table(_sweep()),
            "## Your own\n",
            "The command `unlearnbench methods new my-method` writes a package with a method, a "
            "test and a README. The command `unlearnbench methods check --plugin my_method.py` "
            "reports the faults of the method. The page "
            "[Add a method](../tutorials/add-a-method.md) explains each step.\n",
        ]
    )


def _page(name: str, item: Mapping[str, Any], profiles: GradientProfiles) -> str:
    source, _, text = item["description"].partition("\n\n")
    kwargs = "" if registry.trains(name) else "  # trains nothing, so it has no learning rate"
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


def _settings(item: Mapping[str, Any], kind: str = "method") -> str:
    settings = [
        (
            code(field["name"]),
            escaped(f"{_type(field['type'])} {field['bounds']}"),
            code(field["default"]),
            f"{escaped(field['meaning'])} <br><small>{escaped(field['source'])}</small>",
        )
        for field in item["settings"]
    ]
    headings = ("setting", "type", "default", "meaning, and where the default is from")
    return table(headings, settings) if settings else f"This {kind} has no settings.\n"


def _type(annotation: str) -> str:
    """A type for people: `model, weight` for `Literal['model', 'weight']`."""
    choices = re.fullmatch(r"Literal\[(.*)\]", annotation)
    return choices[1].replace("'", "") if choices else annotation


def _modifiers() -> str:
    shown = {name: _shown("modifiers", name) for name in registry.names("modifiers")}
    rows = [
        (f"[{name}](#{name})", item["kind"], escaped(item["summary"]), escaped(_source(item)))
        for name, item in shown.items()
    ]
    blocks = [MODIFIERS, table(("modifier", "kind", "what it does", "source"), rows), MISSING]
    for name, item in shown.items():
        source, _, text = item["description"].partition("\n\n")
        blocks += [f"## {name}\n", f"{escaped(source)}\n", f"{from_docstring(text)}\n"]
        blocks.append(_settings(item, "modifier"))
    return "\n".join(blocks)


def _source(item: Mapping[str, Any]) -> str:
    line: str = item["description"].partition("\n\n")[0].replace("\n", " ")
    return line.partition(": ")[2].rstrip(".") or line


def _reads(needs: Sequence[str]) -> str:
    rows: list[tuple[str, str]] = []
    for need in needs:
        part = need.removeprefix("reference(").removesuffix(")")
        subject = (
            PARTS.get(need) or f"the outputs of the frozen start model for the rows of `{part}`"
        )
        rows.append((code(need), subject))
    return table(("rows", "what they are"), rows)


def _gradient(name: str, profiles: GradientProfiles) -> str:
    if reason := profiles.without.get(name):
        return f"There is no curve for this method, because it {escaped(reason)}.\n"
    return (
        pictures.gradient(profiles.curves[name])
        + "\nThe curves show the gradient of the loss L with respect to the logits z of one forget "
        "token, in a fixed random context. The horizontal axis is the token's probability p. The "
        "start model has p = 0.99.\n\n"
        "- The left picture shows the length of the gradient, ‖∂L/∂z‖₂, in powers of ten.\n"
        "- The right picture shows two components of the gradient. The solid line belongs to the "
        "true token, which is pushed down where the line is above 0. The dashed line is the "
        "largest component of another token.\n\n"
        f"The command `unlearnbench methods gradient {name} --out gradient.html` draws these "
        "curves on a page. If you name several methods, the page compares their curves.\n"
    )


def _points() -> list[tuple[str, float, float]]:
    return [
        (
            MODELS.get(item["method"], item["method"]),
            float(item["model_utility"]),
            float(item["log10_forget_quality"]),
        )
        for item in _sweep()
    ]


def _standing(name: str) -> str:
    part = [item for item in _sweep() if item["method"].partition("+")[0] == name]
    if not part:
        return (
            "This method was not part of the "
            "[sweep of all methods](index.md#the-whole-field-in-one-sweep).\n"
        )
    ends = [item for item in _sweep() if item["method"] in ("fine-tuned", "retain")]
    introduction = (
        "The table compares one run of this method with the start model and the retain model. In "
        "the picture, the other points belong to the "
        "[other methods](index.md#the-whole-field-in-one-sweep).\n"
    )
    picture = pictures.standing(_points(), part[0]["method"])
    remark = LATER.get(name, "")
    return "\n".join([introduction, _sweep_table([*ends, *part]), picture, CAPTION, remark])


def _sweep_table(rows: Sequence[Mapping[str, str]]) -> str:
    headings = ("method", "learning rate", "epoch", "Model Utility", "log₁₀ FQ", "D")
    keys = ("learning_rate", "epoch", "model_utility", "log10_forget_quality", "ks_statistic")
    return table(headings, [(_linked(row["method"]), *(row[k] for k in keys)) for row in rows])


def _linked(label: str) -> str:
    name = label.partition("+")[0]
    if name in registry.names("methods"):
        return f"[{label}]({name}.md)"
    return MODELS.get(label, label)
