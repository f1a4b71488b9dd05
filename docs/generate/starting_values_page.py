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

Where to begin a search, by method and by number of weights. `unlearnbench configs new NAME
--forget-rows … --retain-rows … --model …` writes these values, and a sweep warns about a rate that
is ten times higher or lower. They are not results. With other rows, another batch size or another
schedule, the best rate is another one: try a third and three times the rate, or let
[`tune`](../tutorials/tune-fairly.md) search.

The last column says where a row comes from.

- **published**: by the authors of the method or the benchmark, or by a harness, with the place
  where it was read.
- **measured here**: run by this project. It is the best of the few rates that were tried.
- **carried over**: from another size or from a similar method. Nobody is known to have run it.

Rates are for AdamW on weights in float32, or under bf16 autocast. If the weights are in bfloat16,
AdamW's updates at 1e-5 are mostly smaller than the last digit of a weight. Rows that are marked
*LoRA* train adapters, whose rates are higher. No value for more than 8 billion weights was found,
except for RMU.
"""
SETTINGS = """\
An empty cell means the method's default (`unlearnbench methods show NAME`). The retain term is
written as `retain: {term: nll}`.
"""
STEPS = """\
## Epochs and steps

What counts is the number of optimiser steps. An epoch has as many steps as the rows to forget make
batches: 40 rows in batches of 32 are two steps, in batches of 8 they are five. With one step per
epoch nothing can be seen between the first and the last epoch, and a warm-up of an epoch is the
whole first step. `configs new` chooses the largest batch of 32, 16, 8, … rows that leaves four
steps per epoch.
"""
PREPARATION = """\
## Models that have learned the rows

If you give a `base`, start and retain models are trained from it by `preparation`. Look at the
start model's probability and ROUGE on the rows to forget: a model that has not learned them cannot
show what a method forgets.
"""
ATTACK = """\
## Relearning

The attack `relearning` trains on some of the rows again. Its own rate follows the same sizes:
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
