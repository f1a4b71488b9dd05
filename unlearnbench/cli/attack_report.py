"""The results of `unlearnbench attack`: tables, sentences, answers, JSON and files."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unlearnbench.analysis.given_back import (
    Attacked,
    AttackedMetric,
    Gain,
    attacked_metrics,
    largest_gain,
)
from unlearnbench.api.attack import variant
from unlearnbench.api.benchmark import Benchmark
from unlearnbench.api.metric import Role
from unlearnbench.api.observations import Evaluation, SetEvaluation
from unlearnbench.api.profile import Profile
from unlearnbench.cli.evaluate import rounded
from unlearnbench.config.entries import AttackSpec, attack_from_spec
from unlearnbench.console import Console
from unlearnbench.evaluation.attack_checkpoint import AttackedModel
from unlearnbench.evaluation.observation_file import SUFFIX, write_observations
from unlearnbench.evaluation.summary import plan_of, summarize
from unlearnbench.files.atomic import write_text
from unlearnbench.files.canonical_json import json_ready
from unlearnbench.runtime.deferred_warnings import drain

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
        found: list[AttackFindings] = []
        for spec in specs:
            own, null = _under(spec, models["model"], models.get("retain"))
            compared = plan, roles, own, null, start
            # Without points the weights were not finite.
            metrics = attacked_metrics(*compared) if own.points else ()
            gain = largest_gain(*compared) if own.points else None
            found.append(AttackFindings(spec, own, metrics, gain))
        return cls(models, found, profile, benchmark)

    def print(self, console: Console) -> None:
        """Print a table and a sentence for each attack."""
        plain = self.models["model"].plain
        values, kept = self._metrics(PLAIN), self.benchmark.headline.kept
        sizes = ", ".join(
            f"{len(seen.answer_loss)} {name.replace('_', ' ')}" for name, seen in plain.sets.items()
        )
        console.print(f"profile {plain.profile} in {plain.precision}: {sizes} questions")
        console.print(f"{kept.plain_label} without an attack: {_number(values.get(kept.column))}")
        for one in self.attacks:
            heads = [v.removeprefix(one.spec.name) or v for v in one.model.points]
            console.print()
            columns = ("metric", "of", PLAIN, *heads)
            console.table(columns, [*_rows(one.metrics, len(heads))], title=one.spec.name)
            console.print()
            for line in sentence(one, retain="retain" in self.models).splitlines():
                console.print(textwrap.fill(line, 100, break_on_hyphens=False))
        for line in drain():
            console.note(f"warning: {line}")

    def print_answers(self, console: Console, count: int) -> None:
        """Print the answers of forget sets that change most, by ROUGE-L recall, of each attack."""
        for one in (one for one in self.attacks if one.model.points):
            for name, i in _most_changed(one.model, self.benchmark.roles, count):
                points = one.model.points
                shown = next(iter(points.values())).sets[name]
                question = shown.questions[i]
                console.print(f"\n{one.spec.name}: {question}")
                plain = one.model.plain.sets[name]
                at = plain.questions.index(question)
                lines = [("true answer", plain.references[at]), (PLAIN, plain.generated[at])]
                for under, found in points.items():
                    label, text, _ = _answer(found.sets[name], i)
                    lines.append((f"{under}{label}", text))
                width = max(len(label) for label, _ in lines)
                for label, text in lines:
                    console.print(f"  {label:<{width}}  {' '.join(text.split())}")

    def document(self) -> dict[str, Any]:
        """Everything as JSON: metrics of each evaluation, and each attack's largest gain."""
        plain = self.models["model"].plain
        counts = {name: len(seen.answer_loss) for name, seen in plain.sets.items()}
        found = {
            "profile": plain.profile,
            "precision": plain.precision,
            "questions": counts,
            PLAIN: {who: self._metrics(PLAIN, who) for who in self.models},
            "attacks": [self._attack(one) for one in self.attacks],
        }
        ready: dict[str, Any] = json_ready(found, lambda _: None)
        return ready

    def write(self, folder: Path) -> None:
        """Write `attack.json`, and the observations of each evaluation.

        The model's are in the folder itself, the other models' in `retain/` and `start/`.
        """
        import json

        for who, found in self.models.items():
            place = folder if who == "model" else folder / who
            for name, evaluation in {PLAIN: found.plain, **found.under}.items():
                write_observations(evaluation, place / f"{name}{SUFFIX}")
        text = json.dumps(self.document(), indent=2, ensure_ascii=False, allow_nan=False)
        write_text(folder / "attack.json", text + "\n")

    def _attack(self, one: AttackFindings) -> dict[str, Any]:
        variants = {
            name: {who: self._metrics(name, who) for who in self.models if who != "start"}
            for name in one.model.points
        }
        gain = one.gain
        derived = ("gain", "retain_gain", "excess", "share", "comes_back")
        return {
            "attack": one.spec.name,
            "version": one.spec.version,
            "settings": {key: value for key, value in one.spec.settings.items() if key != "at"},
            "variants": variants,
            "largest_gain": gain and asdict(gain) | {key: getattr(gain, key) for key in derived},
        }

    def _metrics(self, name: str, who: str = "model") -> dict[str, float | None]:
        """The metrics of an evaluation, relative to the retain model under the same attack."""

        def of(other: str) -> Evaluation | None:
            found = self.models.get(other)
            every = {PLAIN: found.plain, **found.under} if found else {}
            return every.get(name)

        evaluation = of(who)
        if evaluation is None:
            return {}
        values = summarize(evaluation, of("retain"), self.profile, of("start"), self.benchmark)
        return {key: value for key, value in values.items() if value is not None}


def sentence(one: AttackFindings, *, retain: bool) -> str:
    """State what came back under an attack, its interval, and whether it is beyond the null."""
    gain = one.gain
    if gain is None:
        return f"{one.spec.name}: no metric of the forget set could be measured under it"
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
    both = [one for one in (model, retain) if one is not None]
    names = (variant(spec.name, point) for point in attack_from_spec(spec).points())
    shared = [name for name in names if all(name in one.under for one in both)]
    own, *null = (Attacked(o.plain, {name: o.under[name] for name in shared}) for o in both)
    return own, null[0] if null else None


def _rows(metrics: Sequence[AttackedMetric], points: int) -> Iterator[tuple[Any, ...]]:
    for one in metrics:
        yield (one.column.label, "model", *map(rounded, one.model))
        if one.retain is not None:
            yield ("", "retain model", *map(rounded, one.retain))
        if one.start is not None:
            yield ("", "start model", rounded(one.start), *[None] * points)


def _most_changed(model: Attacked, roles: Mapping[str, Role], count: int) -> list[tuple[str, int]]:
    """Set and index of the answers that gain most at some point, of those that have answers."""
    found: list[tuple[float, str, int]] = []
    for name, first in next(iter(model.points.values())).sets.items():
        if roles[name] != "forget" or not first.generated:
            continue
        plain = model.plain.sets[name]
        before = dict(zip(plain.questions, plain.rouge_l_recall, strict=True))
        for i, question in enumerate(first.questions):
            after = max(_answer(one.sets[name], i)[2] for one in model.points.values())
            found.append((before[question] - after, name, i))
    return [(name, i) for _, name, i in sorted(found)[:count]]


def _answer(seen: SetEvaluation, i: int) -> tuple[str, str, float]:
    """A note, the answer and its ROUGE-L recall: of sampled answers the best, else the greedy."""
    if seen.samples is None:
        return "", seen.generated[i], float(seen.rouge_l_recall[i])
    recalls = np.nan_to_num(seen.samples.rouge_l_recall[i], nan=-1.0)
    best = int(recalls.argmax())
    return f", best of {recalls.size}", seen.samples.texts[i][best], float(recalls[best])


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"


def _between(interval: tuple[float, float] | None, sign: str) -> str:
    if interval is None:
        return ""
    low, high = (f"{value:{sign}.3f}" for value in interval)
    return f" (95 % interval {low} to {high})"
