"""The trainer of a run, from its spec: rows, references, what samples answers, and the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from unlearnbench.alternatives import alternative_rows
from unlearnbench.data.draws import TrainingRows, with_scores
from unlearnbench.data.encoding import Encoder
from unlearnbench.errors import TrainingError
from unlearnbench.group import leader_first, world
from unlearnbench.method import Method, Sampling
from unlearnbench.models.loading import Source, check_vocabulary, pad_id
from unlearnbench.models.warm import warm_model
from unlearnbench.optimisation import Optimisation, reseed
from unlearnbench.plan import RunSpec
from unlearnbench.reference import ReferenceParts, references_of
from unlearnbench.retain import Objective, called
from unlearnbench.sampling import Sampler
from unlearnbench.sharding import whole
from unlearnbench.training import Trainer
from unlearnbench.workspace import Workspace


def run_trainer(spec: RunSpec, space: Workspace, method: Method) -> Trainer:
    """What the run trains with, from its first step on."""
    models = space.models(spec.model.name)
    models.make_sure("full")
    source = models.full()
    objective = Objective(method, spec.method.retain)
    encoder = space.encoder(
        spec.model.name, spec.training.max_length, ignore_label=spec.leaves_out_label
    )
    reseed(spec.seed)  # adapters begin at random
    model = warm_model.take(source, spec.model, _sharing(spec, space))
    check_vocabulary(model, encoder.tokenizer)
    parts = _Parts(spec, space, source, objective, encoder, model.eval())
    # The leader reads the model while the others wait: one that is shared has to be here whole.
    with whole(model, exact=True), leader_first():
        rows = parts.rows()
        references, sampler = parts.references(rows), parts.sampler()
    parallel = space.config.resources_of(spec.model.name).parallel
    steps = replace(optimisation(spec), parallel=parallel)
    return Trainer(model.train(), objective, rows, steps, parts.pad, references, sampler)


def give_back(trainer: Trainer, spec: RunSpec, space: Workspace) -> None:
    """Keep the model of a run that has ended for the next one in this process."""
    source, sharing = space.models(spec.model.name).full(), _sharing(spec, space)
    warm_model.give_back(trainer.model, source, spec.model, sharing)


def _sharing(spec: RunSpec, space: Workspace) -> str:
    """What makes two shared models unlike; nothing in a process by itself."""
    if world() == 1:
        return ""
    return f"{space.config.resources_of(spec.model.name).parallel} {spec.training.precision}"


class _Parts:
    """What a trainer is put together from."""

    def __init__(
        self,
        spec: RunSpec,
        space: Workspace,
        source: Source,
        objective: Objective,
        encoder: Encoder,
        start: Any,
    ) -> None:
        """`start`: the model before its first step, to be read and not to be kept."""
        self.start = start
        self.spec, self.space, self.source = spec, space, source
        self.objective, self.encoder, self.needs = objective, encoder, objective.needs
        self.pad = pad_id(encoder.tokenizer)
        self.skipped = objective.method.ignore_first_answer_tokens
        self.questions = space.benchmark.splits[spec.forget_fraction].forget

    def rows(self) -> TrainingRows:
        spec = self.spec
        rows = self.space.rows(spec.model.name, spec.forget_fraction, self.encoder, self.skipped)
        split = self.space.benchmark.splits[spec.forget_fraction]
        rows = with_scores(rows, split, self.encoder, self.skipped, self.needs.scores)
        if "alternative" not in self.needs.parts:
            return rows
        alternatives = alternative_rows(
            lambda: self.start,
            self.source.identity(),
            self.questions,
            self.needs.alternatives or Sampling(1),
            self.encoder,
            seed=spec.seed,
            pad=self.pad,
            folder=self.space.cache / "alternatives",
            skipped=self.skipped,
        )
        return replace(rows, alternatives=alternatives)

    def references(self, rows: TrainingRows) -> ReferenceParts:
        """The start model's word on each part of which the objective reads it."""
        return references_of(
            lambda: self.start,
            self.source.identity(),
            rows,
            self.needs,
            seed=self.spec.seed,
            epochs=self.spec.epochs,
            pad=self.pad,
            folder=self.space.cache / "reference",
            precision=self.spec.training.precision,
        )

    def sampler(self) -> Sampler | None:
        """None where nothing is sampled."""
        if "sample" not in self.needs.parts:
            return None
        return Sampler(
            [question.question for question in self.questions],
            [question.answer for question in self.questions],
            self.encoder,
            self.needs.samples or Sampling(1),
            self._reward,
            self.spec.seed,
            self.pad,
            self.skipped,
            token_rewards=(
                self.objective.method.token_rewards if "sample" in self.needs.scores else None
            ),
        )

    def _reward(self, answer: str, truth: str) -> float:
        with called(self.objective.method, "reward"):
            return float(self.objective.method.reward(answer, truth))


def optimisation(spec: RunSpec) -> Optimisation:
    """How a run's steps are made."""
    how = spec.training
    if spec.learning_rate is None:
        raise TrainingError(f"run {spec.title!r} has no learning rate; plan it again")
    return Optimisation(
        epochs=spec.epochs,
        optimizer=how.optimizer,
        batch_size=how.batch_size,
        micro_batch_size=how.micro_batch_size,
        learning_rate=spec.learning_rate,
        seed=spec.seed,
        schedule=how.schedule,
        warmup_steps=how.warmup_steps,
        weight_decay=how.weight_decay,
        max_grad_norm=how.max_grad_norm,
        precision=how.precision,
    )
