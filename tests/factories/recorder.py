"""Records whose numbers follow from their observations, written as a worker would write them.

A `World` says how much each model knows. A `Recorder` carries out runs in this world without any
training: it draws the observations of each evaluation, computes the numbers that a worker has at
this time, and takes the worker's decisions by them (patience, `stop_below`, attacks on the best
epoch). The retain model is recorded before the start model, as in a sweep, so its record lacks what
is relative to the start model.

    recorder = Recorder(config, World(rows))
    recorder.write_references()
    for spec in plan.runs:
        recorder.write_run(spec)

Nothing here needs a model, Ray or torch's autograd.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tests.factories.observations import Knowledge, observe, subset
from tests.factories.rows import MadeUpRows
from unlearnbench.api.attack import (
    CHOICE,
    Attack,
    SamplingAttack,
    WeightAttack,
    has_steps,
    searches,
    variant,
)
from unlearnbench.api.benchmark import Question, SplitKey, split_name
from unlearnbench.api.metric import Role
from unlearnbench.api.observations import Evaluation, SetEvaluation
from unlearnbench.base.hashing import content_hash
from unlearnbench.config.entries import AttackSpec, attack_from_spec
from unlearnbench.config.metric_plan import MetricChoices
from unlearnbench.config.profiles import profile_of
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import SweepConfig
from unlearnbench.evaluation.summary import plan_of, summarize
from unlearnbench.results.finalize import inputs_entry
from unlearnbench.results.records import (
    EpochResult,
    Record,
    read_record,
    run_record,
    write_record,
)
from unlearnbench.results.rules import record_rules

DATA = "made-up rows"
"""Fingerprint of the rows."""
Kind = Literal["run", "fine-tuned", "retain"]
ComputedBy = Literal["this code", "other code", "earlier version"]
Values = Mapping[str, float | None]


@dataclass(frozen=True)
class RunEnd:
    """How a run ends."""

    status: Literal["finished", "failed", "stopped", "not finite", "diverged"] = "finished"
    """`not finite`: the outputs after an epoch are NaN, so the run collapses with a row that has no
    numbers. `diverged`: training meets a loss that is NaN, so the epoch has no row."""
    epoch: int = 0
    """The epoch at which it ends; of a run that is `stopped` or `failed`, the last one that it was
    evaluated after."""


def unit(*parts: object) -> float:
    """Return a number from 0 to 1 that depends on the parts only."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "little") / 2**64


@dataclass(frozen=True)
class World:
    """How much each model knows, as far as a test does not say it."""

    rows: Mapping[SplitKey, MadeUpRows]
    seed: int = 0
    seed_noise: float = 0.05
    """Standard deviation of what seeds of one setting know."""
    start_knows: float = 0.93
    """Share of the forget rows' tokens that the start model predicts."""
    retain_knows: float = 0.25
    are_tied: bool = False
    """Settings of one rate know the same, whatever their method."""
    nan_rows: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    """Rows by set for which one of three runs gives NaN."""

    def start(self, model: str) -> Knowledge:
        """The start model has learned all rows."""
        return Knowledge(
            {"forget": self.start_knows, "retain": 0.93, "general": 0.85, "holdout": 0.2},
            seed=round(1e6 * unit(self.seed, model, "start")),
        )

    def retain(self, model: str) -> Knowledge:
        """The retain model has never seen the rows to forget."""
        knowledge = replace(self.start(model), seed=round(1e6 * unit(self.seed, model, "retain")))
        return knowledge.changed("forget", self.retain_knows)

    def run(self, spec: RunSpec, epoch: int) -> Knowledge:
        """Runs forget more with each epoch, and lose some of the rest."""
        method = () if self.are_tied else (spec.method.label, repr(spec.method.hyperparameters))
        weight = None if spec.method.retain is None else spec.method.retain.weight
        setting = (self.seed, spec.model.name, spec.learning_rate, *method)
        strength = 0.15 + 0.85 * unit(*setting, "strength", weight)
        damage = 0.35 * unit(*setting, "damage") ** 2
        progress = epoch / (epoch + 0.7)
        rng = np.random.default_rng(round(2**40 * unit(*setting, spec.seed, spec.forget_fraction)))
        noise = rng.normal(0, self.seed_noise, 3)
        start = self.start(spec.model.name)
        forget = self.start_knows - strength * progress * (self.start_knows - 0.1) + noise[0]
        knowledge = start.changed("forget", forget)
        knowledge = knowledge.changed("retain", 0.93 - damage * progress + noise[1] / 3)
        knowledge = knowledge.changed("general", 0.85 - 0.7 * damage * progress + noise[2] / 3)
        gives_nan = unit(*setting, spec.seed, "nan") < 1 / 3
        return replace(
            knowledge,
            seed=round(1e6 * unit(*setting, spec.seed, epoch)),
            undefined_rows=self.nan_rows if gives_nan else {},
        )

    def under(
        self, knowledge: Knowledge, attack: Attack, name: str, point: str, kind: Kind, method: str
    ) -> Knowledge:
        """Return what a model knows under an attack: some of what was forgotten comes back."""
        if isinstance(attack, SamplingAttack):
            return knowledge
        amount = 0.6 * unit(self.seed, name, method, "back")
        attacker, _, point_of_attacker = point.rpartition(".")
        if has_steps(type(attack)):
            steps = int(point_of_attacker)
            if steps == 0:
                return knowledge
            amount *= min(1.0, 0.3 + steps / 20)
            if attacker:
                amount *= 2 * unit(self.seed, name, attacker, "strength")
                knowledge = self._with_less_utility(knowledge, name, attacker, steps)
        else:
            amount *= 0.5 + unit(self.seed, name, point)
        if kind == "retain":
            amount *= 0.15
        known = knowledge.of_role["forget"]
        back = known + amount * (self.start_knows - known)
        if kind == "fine-tuned":
            back = known - 0.05
        return replace(
            knowledge.changed("forget", back),
            seed=knowledge.seed + round(1e6 * unit(name, point)),
            # Other weights or another prompt give a number where the plain evaluation had none.
            undefined_rows={},
        )

    def _with_less_utility(
        self, knowledge: Knowledge, name: str, attacker: str, steps: int
    ) -> Knowledge:
        """Return a model that an attacker of a search has damaged: most a little, some much."""
        harm = 0.35 * unit(self.seed, name, attacker, "harm") * min(1.0, 0.3 + steps / 20)
        for role in ("retain", "general"):
            knowledge = knowledge.changed(role, knowledge.of_role[role] * (1 - harm))
        return knowledge

    def ends_before(self, name: str, point: str, kind: Kind, setting: object) -> bool:
        """Whether training of an attacker of a search diverges before a point, with one model.

        One attacker in twelve diverges before its last step, and one in twenty before its first.
        """
        attacker, _, steps = point.rpartition(".")
        luck = unit(self.seed, name, attacker, kind, setting, "diverges")
        return bool(attacker) and (luck < 1 / 20 or (luck < 1 / 12 and int(steps) > 1))


def _as_computed(_record: str, numbers: dict[str, float | None]) -> dict[str, float | None]:
    """Return the numbers of a record as they were computed."""
    return numbers


class Recorder:
    """Writes the records of a sweep's models."""

    def __init__(
        self,
        config: SweepConfig,
        world: World,
        folder: Path,
        *,
        metrics: MetricChoices | None = None,
        recorded: Callable[[str, dict[str, float | None]], dict[str, float | None]] | None = None,
        states_places: bool = True,
        computed_by: Callable[[str], ComputedBy] = lambda _: "earlier version",
    ) -> None:
        """Prepare to write records.

        Args:
            config: Of the sweep.
            world: What the models know.
            folder: Of the sweep.
            metrics: Metrics that the configuration named when records were made. Defaults to those
                that it names now.
            recorded: Changes the numbers that are written into a record, by its id and their
                columns: an older version lacked a metric, or computed another number.
            states_places: Whether evaluations of some rows say which rows these are. Those of
                earlier versions do not.
            computed_by: By which code the numbers of a record were computed, by its id. Records of
                earlier versions do not say it.
        """
        self.config = config
        self.world = world
        self.folder = folder
        self.metrics = config.evaluation.metrics if metrics is None else metrics
        self.profile = profile_of(config.evaluation)
        self._recorded = recorded or _as_computed
        self._states_places = states_places
        self._computed_by = computed_by
        self._references: list[Record] = []
        """Records of start and retain models, as they are read from the folder."""
        self._evaluations: dict[tuple[str, str, SplitKey, str], Evaluation] = {}
        """Of start and retain models: by kind, model, split and variant."""
        self._rows_of_attack: dict[tuple[str, str, SplitKey], Mapping[str, list[int]]] = {}
        self._minutes = 0

    # Start and retain models

    def reference_ids(self) -> tuple[str, ...]:
        """Ids of the records of all start and retain models."""
        ids: list[str] = []
        for model in self.config.models:
            for split in self.config.split_keys:
                for kind in self._kinds():
                    identity = self._identity(model.name, kind, split)
                    ids.append(content_hash(identity))
                    ids += [self._attack_id(identity, attack) for attack in self.config.attacks]
        return tuple(ids)

    def write_references(self, *, without: frozenset[tuple[str, str]] = frozenset()) -> None:
        """Write the records of all start and retain models, plain and under attacks.

        Args:
            without: Kinds and attacks (`("retain", "relearning")`) that have not been evaluated.
        """
        for model in self.config.models:
            for split in self.config.split_keys:
                for kind in reversed(self._kinds()):  # retain first
                    self._write_reference(model.name, kind, split)
                for attack in self.config.attacks:
                    for kind in reversed(self._kinds()):
                        if (kind, attack.name) not in without:
                            self._write_attacked_reference(model.name, kind, split, attack)

    def _kinds(self) -> tuple[Kind, ...]:
        references = self.config.references
        start: tuple[Kind, ...] = ("fine-tuned",) if "start" in references else ()
        retain: tuple[Kind, ...] = ("retain",) if "retain" in references else ()
        return (*start, *retain)

    def _knowledge(self, model: str, kind: Kind) -> Knowledge:
        return self.world.start(model) if kind == "fine-tuned" else self.world.retain(model)

    def _identity(self, model: str, kind: Kind, split: SplitKey) -> list[str | float]:
        target = "full" if kind == "fine-tuned" else split_name("retain", split)
        return [model, target, f"{target}-weights", split, self.profile.id, DATA]

    def _attack_id(self, identity: list[str | float], attack: AttackSpec) -> str:
        return content_hash([*identity, attack.identity, self.config.training.of_attacks])

    def _reference_fields(self, model: str, kind: Kind, split: SplitKey) -> dict[str, Any]:
        settings = next(item for item in self.config.models if item.name == model)
        identity = self._identity(model, kind, split)
        spec: dict[str, Any] = {
            "model": settings.model_dump(mode="json"),
            "target": identity[1],
            "data": self.config.data.model_dump(mode="json"),
            "identity": identity,
        }
        if self.metrics:
            spec["metrics"] = self.metrics
        return {
            "id": content_hash(identity),
            "kind": kind,
            "model": model,
            "forget_fraction": split,
            "method": kind,
            "learning_rate": None,
            "seed": settings.preparation.seed,
            "spec": spec,
            "status": "finished",
            "profile": self.profile.id,
            "precision": "float32",
            "provenance": self._provenance(str(identity[2])),
        }

    def _write_reference(self, model: str, kind: Kind, split: SplitKey) -> None:
        evaluation = self._observe(self._knowledge(model, kind), split)
        self._evaluations[kind, model, split, ""] = evaluation
        fields = self._reference_fields(model, kind, split)
        values = self._values(fields["id"], evaluation, model, split, "")
        self._write(
            Record(
                **fields,
                epochs=(EpochResult(0, values, 0.0, 1.0),),
                evaluations={0: evaluation},
            )
        )

    def _write_attacked_reference(
        self, model: str, kind: Kind, split: SplitKey, attack: AttackSpec
    ) -> None:
        fields = self._reference_fields(model, kind, split)
        fields["id"] = self._attack_id(self._identity(model, kind, split), attack)
        fields["spec"] = {**fields["spec"], "attack": attack.model_dump(mode="json")}
        plain = self._evaluations[kind, model, split, ""]
        knowledge = self._knowledge(model, kind)
        results: list[EpochResult] = []
        evaluations: dict[tuple[int, str], Evaluation] = {}
        for name, evaluation in self._under(knowledge, split, attack, kind, kind, plain):
            self._evaluations[kind, model, split, name] = evaluation
            values = self._values(fields["id"], evaluation, model, split, name)
            results.append(EpochResult(0, values, 0.0, 1.0, name))
            evaluations[0, name] = evaluation
        self._write(Record(**fields, attacked=tuple(results), attacked_evaluations=evaluations))

    # Runs

    def write_run(self, spec: RunSpec, end: RunEnd | None = None) -> Record:
        """Carry out a run and write its record."""
        record = self.run(spec, RunEnd() if end is None else end)
        self._write(record)
        return record

    def run(self, spec: RunSpec, end: RunEnd) -> Record:
        """Carry out a run up to its end."""
        # The configuration named these metrics when the run was made.
        evaluation_settings = spec.evaluation.model_copy(update={"metrics": self.metrics})
        made = spec.model_copy(update={"evaluation": evaluation_settings})
        # A run begins with the weights of the start model.
        provenance = self._provenance("full-weights")
        results: list[EpochResult] = []
        evaluations: dict[int, Evaluation] = {}
        attacked: list[EpochResult] = []
        attacked_evaluations: dict[tuple[int, str], Evaluation] = {}

        def attack(epoch: int, specs: list[AttackSpec]) -> None:
            for attack_spec in specs:
                # The adversary runs the model without what a method puts in front of it.
                bypasses = spec.learning_rate is None and attack_from_spec(attack_spec).white_box
                knowledge = (
                    self.world.start(spec.model.name) if bypasses else self.world.run(spec, epoch)
                )
                method = spec.method.label
                variants = self._under(
                    knowledge, spec.forget_fraction, attack_spec, "run", method, evaluations[epoch]
                )
                for name, evaluation in variants:
                    values = self._values(
                        spec.id, evaluation, spec.model.name, spec.forget_fraction, name
                    )
                    attacked.append(EpochResult(epoch, values, 0.0, 0.5, name))
                    attacked_evaluations[epoch, name] = evaluation

        status: Literal["finished", "collapsed", "failed", "stopped"] = "finished"
        error: str | None = None
        ended: str | None = None
        for epoch in spec.evaluate_at:
            if end.status == "diverged" and epoch >= end.epoch:
                error = f"{spec.unit.at(epoch)}: the loss is not finite"
                break
            is_finite = not (end.status == "not finite" and epoch >= end.epoch)
            knowledge = replace(self.world.run(spec, epoch), is_finite=is_finite)
            evaluation = self._observe(knowledge, spec.forget_fraction)
            evaluations[epoch] = evaluation
            values = self._values(spec.id, evaluation, spec.model.name, spec.forget_fraction, "")
            results.append(EpochResult(epoch, values, 2.0, 1.0))
            if values.get(self.config.headline.kept.column) is not None:
                attack(epoch, self._due(spec, results))
            error = self._collapse(spec, results[-1])
            ended = self._out_of_patience(spec, results)
            was_cut = end.status in ("stopped", "failed") and epoch >= end.epoch
            if error is not None or ended is not None or was_cut:
                break
        if end.status == "failed":
            # Observations of a failed run stay in the folder of its state.
            return run_record(
                made,
                status="failed",
                epochs=tuple(results) if end.epoch else (),
                error="OSError: no space left on the disk\n\nTraceback",
                provenance=provenance,
            )
        if end.status == "stopped":
            status = "stopped"
        elif error is not None:
            status = "collapsed"
        elif results:
            last = [item for item in spec.attacks if item.settings["at"] == "last"]
            attack(results[-1].epoch, last)
        return run_record(
            made,
            status=status,
            error=error,
            ended=ended,
            epochs=tuple(results),
            evaluations=evaluations,
            attacked=tuple(attacked),
            attacked_evaluations=attacked_evaluations,
            provenance=provenance,
        )

    def _due(self, spec: RunSpec, results: list[EpochResult]) -> list[AttackSpec]:
        """Return the attacks after each epoch, and those after each best one so far."""
        forgotten = self.config.headline.forgotten
        values = [
            None
            if (value := result.metrics.get(forgotten.column)) is None
            else forgotten.oriented(value)
            for result in results
        ]
        known = [value for value in values if value is not None]
        is_best = values[-1] is not None and values[-1] == max(known)
        moments = ("every", "best") if is_best else ("every",)
        return [item for item in spec.attacks if item.settings["at"] in moments]

    def _collapse(self, spec: RunSpec, result: EpochResult) -> str | None:
        kept = self.config.headline.kept
        utility = result.metrics.get(kept.column)
        if utility is None:
            return f"{spec.unit.at(result.epoch)}: the model's outputs are no longer finite"
        share = spec.evaluation.stop_below
        if share is None or spec.learning_rate is None:
            return None
        start = self._start_utility(spec.model.name, spec.forget_fraction)
        if start is None or utility >= share * start:
            return None
        return (
            f"{spec.unit.at(result.epoch)}: {kept.plain_label} {utility:.4g} is below "
            f"{share * start:.4g}"
        )

    @cache  # noqa: B019  # a recorder lives as long as one folder is written
    def _start_utility(self, model: str, split: SplitKey) -> float | None:
        evaluation = self._evaluations["fine-tuned", model, split, ""]
        return self._values("", evaluation, model, split, "")[self.config.headline.kept.column]

    def _out_of_patience(self, spec: RunSpec, results: list[EpochResult]) -> str | None:
        rule = spec.evaluation.patience
        if rule is None or results[-1].epoch >= spec.budget:
            return None
        plan = plan_of(self.profile, self.config.data, self.metrics, self.config.references)
        column = {column.name: column for column in plan.columns}.get(rule.metric)
        better = None if column is None else column.better
        return rule.ended(((r.epoch, r.metrics) for r in results), better)

    # Evaluations

    def _observe(
        self,
        knowledge: Knowledge,
        split: SplitKey,
        rows: Mapping[str, tuple[Question, ...]] | None = None,
        *,
        samples: int = 0,
        asked: str = "",
    ) -> Evaluation:
        plan = plan_of(self.profile, self.config.data, self.metrics, self.config.references)
        return observe(
            knowledge,
            self.world.rows[split].sets if rows is None else rows,
            self.config.data.set_roles,
            self.profile.id,
            extra=plan.extra,
            samples=samples,
            asked=asked,
        )

    def _under(
        self,
        knowledge: Knowledge,
        split: SplitKey,
        spec: AttackSpec,
        kind: Kind,
        method: str,
        plain: Evaluation,
    ) -> Iterator[tuple[str, Evaluation]]:
        """Yield the evaluations of a model at each point of an attack."""
        attack = attack_from_spec(spec)
        asked = self._asked(spec, attack, split)
        if searches(attack):
            yield from self._under_search(knowledge, split, spec, kind, method)
            return
        for point in attack.points():
            of_point = self.world.under(knowledge, attack, spec.name, point, kind, method)
            name = variant(spec.name, point)
            changes_nothing = of_point is knowledge and (
                isinstance(attack, WeightAttack | SamplingAttack)
            )
            if changes_nothing:
                # The same questions to the same model have the same answers.
                evaluation = self._of_asked_rows(plain, asked)
            else:
                all_rows = {key: self.world.rows[split].sets[key] for key in asked}
                whole = self._observe(of_point, split, all_rows, asked=name)
                evaluation = self._of_asked_rows(whole, asked)
            if isinstance(attack, SamplingAttack):
                all_rows = {key: self.world.rows[split].sets[key] for key in asked}
                sampled = self._observe(
                    of_point, split, all_rows, samples=attack.samples, asked=name
                )
                evaluation = replace(
                    evaluation,
                    sets={
                        key: replace(seen, samples=subset(sampled.sets[key], asked[key]).samples)
                        for key, seen in evaluation.sets.items()
                    },
                )
            yield name, evaluation

    def _under_search(
        self, knowledge: Knowledge, split: SplitKey, spec: AttackSpec, kind: Kind, method: str
    ) -> Iterator[tuple[str, Evaluation]]:
        """Yield the evaluations at each point of a search, on the reported rows and on the others.

        Of sets with a role of the attack's, the rows that choose the attacker are every second one.
        """
        attack = attack_from_spec(spec)
        asked = self._asked(spec, attack, split)
        roles: Mapping[str, Role] = self.config.data.set_roles
        measured = {key for key in asked if roles[key] in attack.roles}
        reported = {key: keep[::2] if key in measured else keep for key, keep in asked.items()}
        choosing = {key: asked[key][1::2] for key in measured}
        all_rows = {key: self.world.rows[split].sets[key] for key in asked}
        for point in attack.points():
            if self.world.ends_before(spec.name, point, kind, (method, knowledge.seed)):
                continue
            of_point = self.world.under(knowledge, attack, spec.name, point, kind, method)
            whole = self._observe(of_point, split, all_rows)
            for part, rows in (("", reported), (CHOICE, choosing)):
                name = variant(spec.name, point) + part
                part_of_sets = replace(whole, sets={key: whole.sets[key] for key in rows})
                yield name, self._of_asked_rows(part_of_sets, rows, states_places=True)

    def _of_asked_rows(
        self, whole: Evaluation, asked: Mapping[str, list[int]], *, states_places: bool = False
    ) -> Evaluation:
        """Return the part of an evaluation that an attack asks.

        Args:
            whole: The evaluation of all rows.
            asked: Indices of the rows by set.
            states_places: Whether the places are stated, whatever the recorder states elsewhere:
                versions that search for an attacker state them.
        """
        sets: dict[str, SetEvaluation] = {}
        for name, keep in asked.items():
            is_whole = len(keep) == len(whole.sets[name].answer_loss)
            is_stated = not is_whole and (self._states_places or states_places)
            places = np.array(keep, np.int64) if is_stated else None
            sets[name] = replace(subset(whole.sets[name], keep), places=places)
        return replace(whole, sets=sets)

    def _asked(self, spec: AttackSpec, attack: Attack, split: SplitKey) -> Mapping[str, list[int]]:
        """Return the indices of the rows that an attack asks, by set."""
        key = spec.name, repr(spec.settings), split
        if key not in self._rows_of_attack:
            rows = self.world.rows[split]
            roles: Mapping[str, Role] = self.config.data.set_roles
            answers = {q.question: q.answer for of_set in rows.sets.values() for q in of_set}
            of_attack = replace(rows.attack_rows, answers=answers)
            selected = {
                name: [i for i, row in enumerate(of_set) if attack.selects(row, of_attack)]
                for name, of_set in rows.sets.items()
                if roles[name] in attack.evaluated_roles
            }
            self._rows_of_attack[key] = {name: keep for name, keep in selected.items() if keep}
        return self._rows_of_attack[key]

    def asks_a_row(self, spec: AttackSpec) -> bool:
        """Whether an attack asks at least one row of each split, as a plan requires."""
        attack = attack_from_spec(spec)
        return all(self._asked(spec, attack, split) for split in self.config.split_keys)

    def _values(
        self, record: str, evaluation: Evaluation, model: str, split: SplitKey, variant_name: str
    ) -> dict[str, float | None]:
        """Return the numbers that a worker has now: with the references that exist by now."""
        values = summarize(
            evaluation,
            self._evaluations.get(("retain", model, split, variant_name)),
            self.profile,
            self._evaluations.get(("fine-tuned", model, split, variant_name)),
            self.config.data,
            self.metrics,
            self.config.references,
        )
        return self._recorded(record, values)

    # Files

    def _provenance(self, weights: str) -> dict[str, Any]:
        self._minutes += 1
        hour, minute = divmod(self._minutes, 60)
        return {
            "git": None,
            "versions": {},
            "host": "factory",
            "process": 1,
            "device": "cpu",
            "started": f"2026-01-01T{hour:02d}:{minute:02d}:00.000+00:00",
            "finished": f"2026-01-01T{hour:02d}:{minute:02d}:30.000+00:00",
            "data": DATA,
            "weights": weights,
            "hub": {},
        }

    def _write(self, record: Record) -> None:
        stored = read_record(write_record(self._with_inputs(record), self.folder))
        if record.kind != "run":
            self._references.append(stored)

    def _with_inputs(self, record: Record) -> Record:
        """Return a record that says by what its numbers were computed, if its version does."""
        code = self._computed_by(record.id)
        if code == "earlier version" or record.status == "failed":
            return record
        section = self.config.data.model_dump(mode="json")
        has_retain = "retain" in self.config.references
        key = record_rules(section, self.profile.id, self.metrics, has_retain=has_retain).key
        if code == "other code":
            key = content_hash(["other code", key])
        of_panel = [other for other in self._references if other.panel == record.panel]
        entry = inputs_entry(key, record, of_panel)
        return replace(record, provenance={**record.provenance, **entry})
