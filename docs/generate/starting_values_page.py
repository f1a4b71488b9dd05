"""The page of starting values: the table of `unlearnbench.config.starting_values` as text."""

from collections.abc import Iterator

from markup import code, escaped, table

from unlearnbench.config.starting_values import (
    PREPARATIONS,
    RELEARNING,
    STARTING_VALUES,
    ModelSize,
    Origin,
    StartingValue,
)

INTRODUCTION = """\
# Starting values

This page lists learning rates and other settings with which you can begin a search, by method and
by the size of the model. The values are starting points and not results. If your rows, your batch
size or your schedule differ, the best rate differs, too. Therefore also try a third of the rate and
three times the rate, or let [`tune`](../tutorials/tune-fairly.md) search.

The command `unlearnbench configs new NAME --forget-rows … --retain-rows … --model …` writes these
values into your configuration. A sweep warns you if all rates of a method are more than ten times
higher or lower than the value on this page.

The last column of each table says where a value comes from:

- **published**: the authors of the method, the authors of the benchmark, or a harness published the
  value. The column names the place where we read it.
- **measured here**: we ran it in this project. It is the best of the few rates that we tried.
- **carried over**: it comes from another model size or from a similar method. We know of nobody who
  has run it.

All rates are for AdamW on weights in float32, or under bf16 autocast. If the weights themselves are
in bfloat16, most updates of AdamW at 1e-5 are smaller than the last digit of a weight, so they are
lost. Rows that are marked *LoRA* train adapters, which need higher rates. For models with more than
8 billion weights, we found values only for RMU.
"""
SETTINGS = """\
If a cell in the column *settings* is empty, use the method's defaults, which the command
`unlearnbench methods show NAME` prints. In a configuration, write the retain term as
`retain: {term: nll}`.
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
HEADINGS = ("method", "retain term", "rate", "epochs", "batch", "settings", "model", "source")


def page() -> str:
    """The text of the page."""
    parts = [INTRODUCTION, *_sections(), STEPS, PREPARATION, _preparations(), ATTACK, _attacks()]
    return "\n".join(parts)


def _sections() -> Iterator[str]:
    for size in ModelSize:
        yield f"## {size.label[0].upper()}{size.label[1:]}\n"
        if size is ModelSize.TINY:
            yield SETTINGS
        values = [value for value in STARTING_VALUES if value.size is size]
        yield table(HEADINGS, [_row(value) for value in values])


def _row(value: StartingValue) -> tuple[str, ...]:
    settings = ", ".join(f"{name}: {_text(each)}" for name, each in value.settings.items())
    kinds = [kind for kind, holds in (("LoRA", value.adapters), ("texts", value.texts)) if holds]
    model = f"{value.model} ({', '.join(kinds)})" if kinds else value.model
    return (
        f"[{value.method}](../methods/{value.method}.md)",
        _retain_term(value),
        rate_text(value.learning_rate),
        "" if value.epochs is None else str(value.epochs),
        "" if value.batch_size is None else str(value.batch_size),
        code(settings) if settings else "",
        escaped(model),
        _source(value.origin, value.source, value.remark),
    )


def rate_text(rate: float) -> str:
    """A learning rate as it is usually written: `1e-5`."""
    mantissa, exponent = f"{rate:e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def _retain_term(value: StartingValue) -> str:
    if value.retain is None:
        return ""
    weight = "" if value.retain_weight == 1 else f", weight {value.retain_weight:g}"
    return code(value.retain) + weight


def _preparations() -> str:
    rows = [
        (
            escaped(value.size.label),
            code(", ".join(f"{name}: {_text(each)}" for name, each in value.settings.items())),
            escaped(value.model),
            _source(value.origin, value.source, ""),
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
            _source(value.origin, value.source, ""),
        )
        for size, value in RELEARNING.items()
    ]
    return table(("size", "rate", "evaluated after steps", "source"), rows)


def _source(origin: Origin, source: str, remark: str) -> str:
    text = f"**{origin.value}**: {escaped(source)}"
    return f"{text}<br><small>{escaped(remark)}</small>" if remark else text


def _text(value: object) -> str:
    """A setting as YAML has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
