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
One run of each method, at one learning rate and other settings that were chosen by hand for this
model: a tiny Llama that is trained on generated authors, forget 10 %, five epochs, **one seed, 80
questions**. Shown is the epoch with the highest log₁₀ Forget Quality (FQ) that keeps 80 % of the
start model's utility. With 80 questions no model is told from the retain model before the
distance D of the KS test reaches 0.225, so this is no ranking: it shows where a method can get
to, here. `unlearnbench sweep every_method` makes it again (2026-11-26, commit d631cbe;
lunar with its later setting, on the same models).
"""
MODIFIERS = """\
# Modifiers

A modifier changes the gradient, the update or the weights of any method that trains:
`{method: npo, retain: nll, modifiers: [pcgrad]}`. Kinds that combine need a retain term. They apply
in one order, whatever the order in the file: perturb, combine, filter, clip, optimizer, weights.
[Yours](../tutorials/add-a-modifier.md) is one file.
"""
MISSING = """\
Not here yet: latent and tampering adversaries.
"""
NO_LOSS = """\
Not here yet: FILA, whose adapters begin with a change of the weights below them; ULD, which answers
with two models; DUET, which has no code, and whose equation was not read.
"""
PARTS: Mapping[str, str] = {
    "forget": "the rows to forget",
    "retain": "as many rows to keep, drawn again each epoch",
    "whole": "the rows to forget, whose prompts count, too",
    "refusal": "the forget rows' questions, each with a refusal",
    "retain_refusal": "the retain rows' questions, each with a refusal",
    "alternative": "the forget rows' questions, each with another answer of the start model",
    "sample": "the forget rows' questions, each with answers that the model generates every step",
    "questions (trains nothing)": "the questions alone, at inference time; no weight is trained",
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
            "What comes with the project; `unlearnbench methods list` also has what you have "
            "installed. Any method that trains takes a retain term (`retain: {term: nll}`), and "
            "[yours](#your-own) is one file.\n",
            table(("method", "family", "what it is", "reads", "source"), rows),
            NO_LOSS,
            "## The whole field in one sweep\n",
            CAPTION,
            pictures.standing(_points()),
            "*Model Utility to the right, log₁₀ Forget Quality upwards. The two rings are the "
            "start model, below, and the retain model, above.*\n",
            _sweep_table(_sweep()),
            "## Your own\n",
            "`unlearnbench methods new my-method` writes a package with method, test and README; "
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
        return f"There is no curve: it {escaped(reason)}.\n"
    return (
        pictures.gradient(profiles.curves[name])
        + "\nOne forget token in a fixed random context, against its probability p; the start "
        "model has p = 0.99. Left ‖∂L/∂z‖₂, by powers of ten. Right ∂L/∂z of the true token "
        "(solid; above 0 it is pushed down) and the largest other component (dashed). "
        f"`unlearnbench methods gradient {name} --out gradient.html` draws it beside others.\n"
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
