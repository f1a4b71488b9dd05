"""The page of starting values: the table of `unlearnbench.config.starting_values` as text."""

from collections.abc import Iterator, Sequence

from markup import code, escaped, table

from unlearnbench.api.method import Method
from unlearnbench.api.registry import load_method
from unlearnbench.config.starting_values import (
    PREPARATIONS,
    RELEARNING,
    STARTING_VALUES,
    ModelSize,
    Origin,
    StartingValue,
)

INTRODUCTION = """\
---
hide: [toc]
---

# Starting values

This page lists learning rates and other settings with which you can begin a search, by method and
by the size of the model. The values are starting points and not results. If your rows, your batch
size or your schedule differ, the best rate differs, too. Therefore also try a third of the rate and
three times the rate, or let [`tune`](../tutorials/tune-fairly.md) search.

Choose the size of your model:

{index}

The command `unlearnbench configs new NAME --forget-rows … --retain-rows … --model …` writes these
values into your configuration. A sweep warns you if all rates of a method are more than ten times
higher or lower than the value on this page.

## How to read the tables

**Settings.** The column *settings* contains the values of the method's own hyperparameters. A value
in **bold** differs from the method's default, so write it into the entry of the method. All other
values are the defaults, which you need not write. The command `unlearnbench methods show NAME`
explains each hyperparameter. It also prints the defaults that are switches, texts or seeds, which
the tables leave out.

**Retain term.** The column `retain` contains what you write under the key `retain` of the method's
entry. `{term: nll}` adds the negative log-likelihood of the rows to keep, and `{term: kl}` adds the
divergence from the start model on these rows. If the cell says *none*, the values were run without
an added retain term. The first row for models of about 1B is written like this:

```yaml
methods:
  - {method: npo, beta: 0.1, retain: {term: nll}, learning_rates: [1.0e-5]}
```

**Source.** The last column says where a value comes from. Its number leads to the list of sources
below the table.

- **published**: the authors of the method, the authors of the benchmark, or a harness published the
  value. The source is the place where we read it.
- **measured here**: we ran it in this project. It is the best of the few rates that we tried.
- **carried over**: it comes from another model size or from a similar method. We know of nobody who
  has run it.

All rates are for AdamW on weights in float32, or under bf16 autocast. If the weights themselves are
in bfloat16, most updates of AdamW at 1e-5 are smaller than the last digit of a weight, so they are
lost. For models with more than 8 billion weights, we found values only for RMU.

Rows that are marked *LoRA* train adapters. Adapters need
[higher learning rates than full training](../start/models.md#lora-and-adapters).
"""
STEPS = """\
## Epochs and steps

The number of optimiser steps matters more than the number of epochs. In one epoch, the rows to
forget are divided into batches, and each batch is one step. For example, 40 rows are two steps in
batches of 32, but five steps in batches of 8.

Avoid epochs of a single step. If an epoch has only one step, you cannot see anything between the
first and the last epoch, and a warm-up of one epoch consists of the whole first step. The command
`unlearnbench configs new` therefore chooses the largest batch size among 32, 16, 8 and smaller
powers of two that leaves at least four steps per epoch.
"""
PREPARATION = """\
## Models that have learned the rows

If your configuration gives a `base`, the sweep trains the start model and the retain model from it.
The settings of this training are in the section `preparation`. After the training, look at the
start model's probability and ROUGE on the rows to forget. A start model that has not learned these
rows cannot show what a method forgets.
"""
ATTACK = """\
## Relearning

The attack `relearning` trains the model on some of the forgotten rows again. It has its own
learning rate, which depends on the size of the model, too:
"""
HEADINGS = ("method", "`retain`", "rate", "epochs", "batch", "settings", "model", "source")
SIZES = (ModelSize.ABOUT_1B, ModelSize.ABOUT_7B, ModelSize.SMALL, ModelSize.TINY)
"""Order of the tables: most readers have a published model, and tiny models are for trials."""


def page() -> str:
    """The text of the page."""
    introduction = INTRODUCTION.replace("{index}", _index())
    parts = [introduction, *_sections(), STEPS, PREPARATION, _preparations(), ATTACK, _attacks()]
    return "\n".join(parts)


def _index() -> str:
    """Links to the tables."""
    return "\n".join(f"- [{_title(size)}](#{_anchor(size)})" for size in SIZES)


def _title(size: ModelSize) -> str:
    """Heading of a size's table: `About 1B: 400 million to 3 billion weights`."""
    return size.label[0].upper() + size.label[1:]


def _anchor(size: ModelSize) -> str:
    """Link target of a size's table: `about-1b`."""
    return size.name.lower().replace("_", "-")


def _sections() -> Iterator[str]:
    for size in SIZES:
        yield f"## {_title(size)} {{ #{_anchor(size)} }}\n"
        values = [value for value in STARTING_VALUES if value.size is size]
        sources = list(dict.fromkeys(value.source for value in values))
        yield '<div class="values" markdown>\n'
        yield table(HEADINGS, [_row(value, sources) for value in values])
        yield "</div>\n"
        yield "Sources of this table:\n"
        yield _numbered_sources(size, sources)


def _row(value: StartingValue, sources: Sequence[str]) -> tuple[str, ...]:
    """The cells of one starting value. `sources` are numbered below its table."""
    kinds = [kind for kind, holds in (("LoRA", value.adapters), ("texts", value.texts)) if holds]
    model = f"{value.model} ({', '.join(kinds)})" if kinds else value.model
    return (
        f"[{value.method}](../methods/{value.method}.md)",
        _retain_term(value),
        rate_text(value.learning_rate),
        "" if value.epochs is None else str(value.epochs),
        "" if value.batch_size is None else str(value.batch_size),
        _settings(value),
        escaped(model),
        _numbered_origin(value, sources.index(value.source) + 1),
    )


def _settings(value: StartingValue) -> str:
    """The method's own hyperparameters. Those that differ from its defaults are bold."""
    fields = load_method(value.method).model_fields
    shown: list[str] = []
    for name, setting in value.settings.items():
        text = code(f"{name}: {_text(setting)}")
        shown.append(text if setting == fields[name].get_default() else f"**{text}**")
    shown += [
        code(f"{name}: {_text(default)}")
        for name, default in _numeric_defaults(value.method).items()
        if name not in value.settings
    ]
    return "<br>".join(shown) or "none"


def _numeric_defaults(method: str) -> dict[str, float]:
    """The defaults of a method's own numbers. Switches, texts and seeds are left out."""
    defaults: dict[str, float] = {}
    for name, field in load_method(method).model_fields.items():
        default = field.get_default()
        is_number = isinstance(default, int | float) and not isinstance(default, bool)
        if is_number and name not in Method.model_fields and not name.endswith("_seed"):
            defaults[name] = default
    return defaults


def _numbered_origin(value: StartingValue, number: int) -> str:
    """Where a value comes from, with a link to its source below the table."""
    origin = f"{value.origin.value} [[{number}]](#{_anchor(value.size)}-source-{number})"
    return f"{origin}<br><small>{escaped(value.remark)}</small>" if value.remark else origin


def _numbered_sources(size: ModelSize, sources: Sequence[str]) -> str:
    """The sources of a table as a list with link targets."""
    lines = [
        f'{number}. <span id="{_anchor(size)}-source-{number}"></span>{escaped(source)}'
        for number, source in enumerate(sources, start=1)
    ]
    return "\n".join(lines) + "\n"


def rate_text(rate: float) -> str:
    """A learning rate as it is usually written: `1e-5`."""
    mantissa, exponent = f"{rate:e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def _retain_term(value: StartingValue) -> str:
    """What is written under `retain`: `{term: nll}`."""
    if value.retain is None:
        return "none"
    weight = "" if value.retain_weight == 1 else f", weight: {value.retain_weight:g}"
    return code(f"{{term: {value.retain}{weight}}}")


def _preparations() -> str:
    rows = [
        (
            escaped(value.size.label),
            code(", ".join(f"{name}: {_text(each)}" for name, each in value.settings.items())),
            escaped(value.model),
            _source(value.origin, value.source),
        )
        for value in PREPARATIONS
    ]
    return table(("size", "settings of `preparation`", "model", "source"), rows)


def _attacks() -> str:
    rows = [
        (
            escaped(size.label),
            rate_text(value.learning_rate),
            ", ".join(map(str, value.steps)),
            _source(value.origin, value.source),
        )
        for size, value in RELEARNING.items()
    ]
    return table(("size", "rate", "evaluated after steps", "source"), rows)


def _source(origin: Origin, source: str) -> str:
    return f"{origin.value}: {escaped(source)}"


def _text(value: object) -> str:
    """A setting as YAML has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
