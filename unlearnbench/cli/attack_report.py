"""The results of `unlearnbench attack`: tables, sentences, JSON and files."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unlearnbench.analysis.given_back import (
    Attacked,
    AttackedMetric,
    Gain,
    attacked_metrics,
    largest_gain,
)
from unlearnbench.api.attack import variant
from unlearnbench.api.benchmark import Benchmark
from unlearnbench.api.profile import Profile
from unlearnbench.base.atomic import write_text
from unlearnbench.base.console import Console
from unlearnbench.base.deferred_warnings import drain
from unlearnbench.base.hashing import json_ready
from unlearnbench.cli.evaluate import rounded
from unlearnbench.config.entries import AttackSpec, attack_from_spec
from unlearnbench.evaluation.observation_file import SUFFIX, write_observations
from unlearnbench.evaluation.summary import plan_of, summarize
from unlearnbench.runs.evaluate_model import AttackedModel

PLAIN = "plain"
"""Name of an evaluation without an attack."""


@dataclass(frozen=True)
class AttackFindings:
    """The model's evaluations under one attack, and what is seen in them."""

    spec: AttackSpec
    model: Attacked
    metrics: Sequence[AttackedMetric]
    gain: Gain | None


@dataclass(frozen=True)
class AttackReport:
    """A model under attacks, to be printed and written."""

    models: Mapping[str, AttackedModel]
    """`model`, and where they were given `retain` and `start`."""
    attacks: Sequence[AttackFindings]
    profile: Profile
    benchmark: Benchmark

    @classmethod
    def of(
        cls,
        models: Mapping[str, AttackedModel],
        specs: Sequence[AttackSpec],
        profile: Profile,
        benchmark: Benchmark,
    ) -> AttackReport:
        """Compare the evaluations of each attack."""
        plan, roles = plan_of(profile, benchmark), benchmark.roles
        start = models["start"].plain if "start" in models else None
        findings: list[AttackFindings] = []
        for spec in specs:
            model, null = _under(spec, models["model"], models.get("retain"))
            compared = plan, roles, model, null, start
            # Without points the weights were not finite.
            metrics = attacked_metrics(*compared) if model.points else ()
            gain = largest_gain(*compared) if model.points else None
            findings.append(AttackFindings(spec, model, metrics, gain))
        return cls(models, findings, profile, benchmark)

    def print(self, console: Console) -> None:
        """Print a table and a sentence for each attack."""
        plain = self.models["model"].plain
        values, kept = self._metrics(PLAIN), self.benchmark.headline.kept
        sizes = ", ".join(
            f"{len(seen.answer_loss)} {name.replace('_', ' ')}" for name, seen in plain.sets.items()
        )
        console.print(f"profile {plain.profile} in {plain.precision}: {sizes} questions")
        console.print(f"{kept.plain_label} without an attack: {_number(values.get(kept.column))}")
        for attack in self.attacks:
            points = [v.removeprefix(attack.spec.name) or v for v in attack.model.points]
            console.print()
            columns = ("metric", "of", PLAIN, *points)
            rows = [*_rows(attack.metrics, len(points))]
            console.table(columns, rows, title=attack.spec.name)
            console.print()
            for line in sentence(attack, retain="retain" in self.models).splitlines():
                console.print(textwrap.fill(line, 100, break_on_hyphens=False))
        for line in drain():
            console.note(f"warning: {line}")

    def document(self) -> dict[str, Any]:
        """Everything as JSON: metrics of each evaluation, and each attack's largest gain."""
        plain = self.models["model"].plain
        whole = {
            "profile": plain.profile,
            "precision": plain.precision,
            "questions": {name: len(seen.answer_loss) for name, seen in plain.sets.items()},
            PLAIN: {who: self._metrics(PLAIN, who) for who in self.models},
            "attacks": [self._attack(attack) for attack in self.attacks],
        }
        ready: dict[str, Any] = json_ready(whole, lambda _: None)
        return ready

    def write(self, folder: Path) -> None:
        """Write `attack.json`, and the observations of each evaluation.

        The model's are in the folder itself, the other models' in `retain/` and `start/`.
        """
        for who, model in self.models.items():
            target = folder if who == "model" else folder / who
            for name, evaluation in {PLAIN: model.plain, **model.under}.items():
                write_observations(evaluation, target / f"{name}{SUFFIX}")
        text = json.dumps(self.document(), indent=2, ensure_ascii=False, allow_nan=False)
        write_text(folder / "attack.json", text + "\n")

    def _attack(self, attack: AttackFindings) -> dict[str, Any]:
        spec, gain = attack.spec, attack.gain
        derived = ("gain", "retain_gain", "excess", "share", "comes_back")
        return {
            "attack": spec.name,
            "version": spec.version,
            "settings": {key: value for key, value in spec.settings.items() if key != "at"},
            "variants": {
                name: {who: self._metrics(name, who) for who in self.models if who != "start"}
                for name in attack.model.points
            },
            "largest_gain": gain and asdict(gain) | {key: getattr(gain, key) for key in derived},
        }

    def _metrics(self, name: str, who: str = "model") -> dict[str, float | None]:
        """The metrics of an evaluation, relative to the retain model under the same attack."""
        named = {
            key: model.plain if name == PLAIN else model.under.get(name)
            for key, model in self.models.items()
        }
        evaluation = named[who]
        if evaluation is None:
            return {}
        others = named.get("retain"), self.profile, named.get("start"), self.benchmark
        values = summarize(evaluation, *others)
        return {key: value for key, value in values.items() if value is not None}


def sentence(attack: AttackFindings, *, retain: bool) -> str:
    """State what came back under an attack, its interval, and whether it is beyond the null."""
    gain = attack.gain
    if gain is None:
        return f"{attack.spec.name}: no metric of the forget set could be measured under it"
    where = f"{gain.variant}, the largest of {gain.points} points" * (gain.points > 1)
    before = "" if gain.before is None else f"{_number(gain.before)} → "
    text = f"{where or gain.variant}: {gain.label} {before}{_number(gain.after)}"
    text += f" over {gain.n} questions"
    if gain.before is not None:
        text += f", a change of {gain.gain:+.3f}{_between(gain.interval, '+')}"
    else:
        text += _between(gain.interval, "")
    if gain.retain_gain is None or gain.excess is None:
        hint = "it could not be measured there" if retain else "give it with --retain"
        return f"{text}.\nWhat a model gains that never knew the rows is not known: {hint}."
    if gain.before is None:
        text += f"; the retain model's {_number(gain.retain_after)}.\n"
    else:
        text += f"; the retain model's change is {gain.retain_gain:+.3f}.\n"
    beyond = f"{gain.excess:+.3f}{_between(gain.excess_interval, '+')}"
    if gain.excess_interval is None:
        return f"{text}Beyond the retain model: {beyond}; too few questions for an interval."
    back = "It gives back what it was to forget"
    if not gain.comes_back:
        back = "No sign that anything comes back"
    way = ""
    if gain.share is not None:
        way = f", {round(100 * gain.share)} % of the way to the start model's {_number(gain.start)}"
    return f"{text}{back}: {beyond} beyond the retain model{way}."


def _under(
    spec: AttackSpec, model: AttackedModel, retain: AttackedModel | None
) -> tuple[Attacked, Attacked | None]:
    """The evaluations under one attack, at the points at which it failed with no model."""
    both = [each for each in (model, retain) if each is not None]
    names = (variant(spec.name, point) for point in attack_from_spec(spec).points())
    shared = [name for name in names if all(name in each.under for each in both)]
    first, *null = (Attacked(o.plain, {name: o.under[name] for name in shared}) for o in both)
    return first, null[0] if null else None


def _rows(metrics: Sequence[AttackedMetric], points: int) -> Iterator[tuple[Any, ...]]:
    for metric in metrics:
        yield (metric.column.label, "model", *map(rounded, metric.model))
        if metric.retain is not None:
            yield ("", "retain model", *map(rounded, metric.retain))
        if metric.start is not None:
            yield ("", "start model", rounded(metric.start), *[None] * points)


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"


def _between(interval: tuple[float, float] | None, sign: str) -> str:
    if interval is None:
        return ""
    low, high = (f"{value:{sign}.3f}" for value in interval)
    return f" (95 % interval {low} to {high})"
