"""Build the trainer of a run from its spec: rows, references, answer sampler and model."""

from dataclasses import fields, replace
from typing import Any

from unlearnbench.api.benchmark import split_label
from unlearnbench.api.method import Method, Sampling
from unlearnbench.base.deferred_warnings import warn_later
from unlearnbench.base.distributed import main_process_first
from unlearnbench.base.errors import TrainingError
from unlearnbench.base.out_of_memory import empty_cache
from unlearnbench.benchmarks.own_rows import OwnRows
from unlearnbench.config.method_specs import modifiers_from_spec, removes_dropout
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.unit import Unit
from unlearnbench.models.corrections import MASKS
from unlearnbench.models.device import device_memory, usable_memory
from unlearnbench.models.dropout import ModelDropout
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.epoch_order import TrainingRows, with_needed, with_scores
from unlearnbench.models.limits import check_context, check_vocabulary, pad_id
from unlearnbench.models.loading import load_model
from unlearnbench.results.run_estimate import budget_of
from unlearnbench.runs.request_sequence import start_of
from unlearnbench.runs.row_warnings import cut_warning
from unlearnbench.runs.workspace import Workspace
from unlearnbench.training.alternative_answers import alternative_rows
from unlearnbench.training.answer_sampling import Sampler
from unlearnbench.training.objective import Objective, called
from unlearnbench.training.optimizers import TrainerSettings, reseed
from unlearnbench.training.reference_model import load_references
from unlearnbench.training.trainer import Trainer


def build_trainer(spec: RunSpec, space: Workspace, method: Method) -> Trainer:
    """Build the trainer of a run, before its first step."""
    source = start_of(spec, space)
    objective = Objective(method, spec.method.retain)
    encoder = space.encoder(
        spec.model.name, spec.training.max_length, ignore_label=spec.leaves_out_label
    )
    pad = pad_id(encoder.tokenizer)
    reseed(spec.seed)  # adapters begin at random
    empty_cache()  # the memory of an earlier run in this process is free before the model is loaded
    model = load_model(source, spec.model, train=True)
    check_vocabulary(model, encoder.tokenizer)
    start = model.eval()  # only read until the first step
    # Predictions of the start model are stored under this name.
    start_id = f"{source.identity()} {spec.model.dtype}"
    # Those that an earlier version stored are wrong. Its plans do not say so, nor do plans that
    # were made without the model's config.json.
    if MASKS in {*spec.corrections, *space.models(spec.model.name).corrections}:
        start_id = f"{start_id} {MASKS}"
    # The model is whole in each process: the main one runs it while the others wait.
    with main_process_first():
        rows = _rows(spec, space, objective, encoder, start_id, start)
        split = space.benchmark.splits[spec.forget_fraction]
        asked = ((part, split.forget) for part in (rows.forget, *rows.prompted))
        for part, questions in (*asked, (rows.retain, split.retain)):
            check_context(model, part, questions, "training.max_length")
        _warn_of_cut_rows(spec, space, rows, encoder)
        references = load_references(
            lambda: start,
            start_id,
            rows,
            objective.needs,
            seed=spec.seed,
            epochs=_epochs_begun(spec, rows, objective),
            pad=pad,
            folder=space.cache / "reference",
            precision=spec.training.precision,
        )
    sampler = _sampler(spec, space, objective, encoder)
    resources = space.config.resources_of(spec.model.name)
    steps = replace(optimisation(spec), parallel=resources.parallel)
    modifiers = modifiers_from_spec(spec.method)
    _check_dropout(spec, model)
    trainer = Trainer(
        model.train(),
        objective,
        rows,
        steps,
        pad,
        references,
        sampler,
        modifiers,
        starts_at_reference=True,
    )
    trainer.passes.budget = budget_of(spec, trainer, usable_memory(device_memory(), resources))
    return trainer


def _epochs_begun(spec: RunSpec, rows: TrainingRows, objective: Objective) -> int:
    """Return how many epochs a run begins; a run by steps may end within the last one."""
    primary = len(rows.primary(objective.needs))
    # Without rows, the trainer refuses the run with a message of its own.
    return spec.schedule(max(primary, 1)).epochs if spec.unit is Unit.STEP else spec.budget


def _warn_of_cut_rows(
    spec: RunSpec, space: Workspace, rows: TrainingRows, encoder: Encoder
) -> None:
    """Warn once for all runs of a model and split if their rows are cut.

    A plan has counted a user's own rows, except for a tokenizer that is built here.
    """
    is_planned = (
        isinstance(space.config.data, OwnRows) and not space.models(spec.model.name).is_tiny
    )
    if is_planned:
        return
    split = space.benchmark.splits[spec.forget_fraction]
    where = f"{spec.model.name}, {split_label(spec.forget_fraction)}"
    trained, questions = (*rows.forget, *rows.retain), (*split.forget, *split.retain)
    line = cut_warning(where, trained, questions, encoder, "training.max_length")
    if line:
        warn_later(line)


def _check_dropout(spec: RunSpec, model: Any) -> None:
    """Warn if a run keeps a dropout that `training.dropout` would remove."""
    is_missed = not spec.removes_dropout and removes_dropout(spec.method, spec.training)
    if is_missed and ModelDropout(model):
        warn_later(
            f"{spec.model.name} trains with its dropout, and {spec.method.name} compares it with "
            "the start model, which has none: the run was planned by an earlier version or without "
            "the model's config.json; plan it again where that can be read"
        )


def _rows(
    spec: RunSpec,
    space: Workspace,
    objective: Objective,
    encoder: Encoder,
    start_id: str,
    start: Any,
) -> TrainingRows:
    """The rows of a run, with scores, and answers of the model `start`, where they are needed."""
    needs, skipped = objective.needs, objective.method.ignore_first_answer_tokens
    split = space.benchmark.splits[spec.forget_fraction]
    rows = space.rows(spec.model.name, spec.forget_fraction, encoder, skipped)
    rows = with_scores(rows, split, encoder, skipped, needs.scores)
    rows = with_needed(rows, split.forget, needs, encoder)
    if "alternative" not in needs.parts:
        return rows
    alternatives = alternative_rows(
        lambda: start,
        start_id,
        split.forget,
        needs.alternatives or Sampling(1),
        encoder,
        seed=spec.seed,
        pad=pad_id(encoder.tokenizer),
        folder=space.cache / "alternatives",
        skipped=skipped,
    )
    return replace(rows, alternatives=alternatives)


def _sampler(
    spec: RunSpec, space: Workspace, objective: Objective, encoder: Encoder
) -> Sampler | None:
    """Sampler of answers; None where nothing is sampled."""
    method, needs = objective.method, objective.needs
    if "sample" not in needs.parts:
        return None

    def reward(answer: str, truth: str) -> float:
        with called(method, "reward"):
            return float(method.reward(answer, truth))

    return Sampler(
        space.benchmark.splits[spec.forget_fraction].forget,
        encoder,
        needs.samples or Sampling(1),
        reward,
        spec.seed,
        pad_id(encoder.tokenizer),
        method.ignore_first_answer_tokens,
        token_rewards=method.token_rewards if "sample" in needs.scores else None,
    )


def optimisation(spec: RunSpec) -> TrainerSettings:
    """Settings of a run's optimiser steps."""
    if spec.learning_rate is None:
        raise TrainingError(f"run {spec.title!r} has no learning rate; plan it again")
    names = {field.name for field in fields(TrainerSettings)}
    return TrainerSettings(
        epochs=spec.epochs,
        most_steps=spec.steps,
        learning_rate=spec.learning_rate,
        embedding_learning_rate=spec.learning_rate,
        removes_dropout=spec.removes_dropout,
        seed=spec.seed,
        **spec.training.model_dump(include=names),
    )
