"""Build the trainer of a run from its spec.

`build_trainer` loads the start model, encodes the rows that the loss reads, computes or reads what
the start model predicts for them, and hands all of this to a `Trainer`.
"""

from dataclasses import replace
from typing import Any

from unlearnbench.api.benchmark import Split, split_label
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
from unlearnbench.models.source import Source
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
    """Build the trainer of a run, before its first step. Collective.

    Args:
        spec: The run.
        space: The workspace of its sweep.
        method: The method of the run, made from `spec.method`.

    Raises:
        ModelError: The start model cannot be loaded, or does not fit the tokenizer or the rows.
        DataError: A row has no scores although the method reads them.
        TrainingError: The spec has no learning rate.
    """
    source = start_of(spec, space)
    objective = Objective(method, spec.method.retain)
    encoder = space.encoder(
        spec.model.name, spec.training.max_length, ignore_label=spec.leaves_out_label
    )
    pad = pad_id(encoder.tokenizer)
    model = _load_start_model(spec, source, encoder)
    # Until the first step, the model is only read: it is the start model that the loss compares
    # with.
    start = model.eval()
    start_id = _start_id(spec, space, source)

    # The model is whole in each process. The main process computes what is stored in the cache
    # while the others wait, and they read it from there.
    with main_process_first():
        rows = _encoded_rows(spec, space, objective, encoder)
        if "alternative" in objective.needs.parts:
            rows = _with_alternatives(rows, spec, space, objective, encoder, start_id, start)
        _check_row_lengths(rows, space.benchmark.splits[spec.forget_fraction], start)
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
    settings = replace(optimisation(spec), parallel=resources.parallel)
    modifiers = modifiers_from_spec(spec.method)
    _warn_of_kept_dropout(spec, model)
    trainer = Trainer(
        model.train(),
        objective,
        rows,
        settings,
        pad,
        references,
        sampler,
        modifiers,
        starts_at_reference=True,
    )
    trainer.passes.budget = budget_of(spec, trainer, usable_memory(device_memory(), resources))
    return trainer


def _load_start_model(spec: RunSpec, source: Source, encoder: Encoder) -> Any:
    """Load the model that the run trains, with new adapters if its settings have some."""
    # A new adapter has random weights.
    reseed(spec.seed)
    # An earlier run in this process may have left memory reserved on the device.
    empty_cache()
    model = load_model(source, spec.model, train=True)
    check_vocabulary(model, encoder.tokenizer)
    return model


def _start_id(spec: RunSpec, space: Workspace, source: Source) -> str:
    """Return the name under which predictions and answers of the start model are stored."""
    start_id = f"{source.identity()} {spec.model.dtype}"
    # An earlier version stored wrong predictions of models with the corrected masks, so right ones
    # get another name. The spec lacks the correction if the run was planned by an earlier version
    # or without the model's config.json.
    corrections = {*spec.corrections, *space.models(spec.model.name).corrections}
    return f"{start_id} {MASKS}" if MASKS in corrections else start_id


def _encoded_rows(
    spec: RunSpec, space: Workspace, objective: Objective, encoder: Encoder
) -> TrainingRows:
    """Encode all rows that the loss reads, except those that the start model has to answer.

    The loss may read more than the rows of the split: their scores by token, other prompts before
    the forget rows' answers, and prompts whose end is read.
    """
    split = space.benchmark.splits[spec.forget_fraction]
    needs = objective.needs
    skipped = objective.method.ignore_first_answer_tokens
    rows = space.rows(spec.model.name, spec.forget_fraction, encoder, skipped)
    rows = with_scores(rows, split, encoder, skipped, needs.scores)
    return with_needed(rows, split.forget, needs, encoder)


def _with_alternatives(
    rows: TrainingRows,
    spec: RunSpec,
    space: Workspace,
    objective: Objective,
    encoder: Encoder,
    start_id: str,
    start: Any,
) -> TrainingRows:
    """Add other answers of the start model to the forget rows' questions.

    Args:
        rows: The rows of the run without such answers.
        spec: The run.
        space: The workspace of its sweep.
        objective: The loss, whose method reads the part `alternative`.
        encoder: The encoder of the rows.
        start_id: Name of the start model in the cache of answers.
        start: The start model, which answers the questions whose answers are not in the cache.
    """
    alternatives = alternative_rows(
        lambda: start,
        start_id,
        space.benchmark.splits[spec.forget_fraction].forget,
        objective.needs.alternatives or Sampling(1),
        encoder,
        seed=spec.seed,
        pad=pad_id(encoder.tokenizer),
        folder=space.cache / "alternatives",
        skipped=objective.method.ignore_first_answer_tokens,
    )
    return replace(rows, alternatives=alternatives)


def _check_row_lengths(rows: TrainingRows, split: Split, model: Any) -> None:
    """Raise ModelError if a training row is longer than the model can read."""
    setting = "training.max_length"
    check_context(model, rows.forget, split.forget, setting)
    for prompted in rows.prompted:
        check_context(model, prompted, split.forget, setting)
    check_context(model, rows.retain, split.retain, setting)


def _warn_of_cut_rows(
    spec: RunSpec, space: Workspace, rows: TrainingRows, encoder: Encoder
) -> None:
    """Warn if rows are cut. All runs of a model and split share one warning."""
    is_tiny = space.models(spec.model.name).is_tiny
    if isinstance(space.config.data, OwnRows) and not is_tiny:
        # The plan has warned of a user's own rows. It could not do so for a tiny model, whose
        # tokenizer did not exist.
        return
    split = space.benchmark.splits[spec.forget_fraction]
    where = f"{spec.model.name}, {split_label(spec.forget_fraction)}"
    trained = (*rows.forget, *rows.retain)
    questions = (*split.forget, *split.retain)
    warning = cut_warning(where, trained, questions, encoder, "training.max_length")
    if warning is not None:
        warn_later(warning)


def _epochs_begun(spec: RunSpec, rows: TrainingRows, objective: Objective) -> int:
    """Return how many epochs the run begins. A run by steps may end within the last one."""
    if spec.unit is not Unit.STEP:
        return spec.budget
    # Without rows, the trainer refuses the run with a message of its own.
    rows_of_epoch = max(len(rows.primary(objective.needs)), 1)
    return spec.schedule(rows_of_epoch).epochs


def _sampler(
    spec: RunSpec, space: Workspace, objective: Objective, encoder: Encoder
) -> Sampler | None:
    """Return the sampler of answers in each step. None: the loss reads no sampled answers."""
    method = objective.method
    needs = objective.needs
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


def _warn_of_kept_dropout(spec: RunSpec, model: Any) -> None:
    """Warn if the run keeps a dropout that `training.dropout` would remove."""
    should_remove = removes_dropout(spec.method, spec.training)
    if should_remove and not spec.removes_dropout and ModelDropout(model):
        warn_later(
            f"{spec.model.name} trains with its dropout, and {spec.method.name} compares it with "
            "the start model, which has none: the run was planned by an earlier version or without "
            "the model's config.json; plan it again where that can be read"
        )


_USED_ELSEWHERE = {
    "max_length",  # by the encoder of the rows
    "ignore_label",  # by the rows
    "dropout",  # by the plan, which resolves it to `RunSpec.removes_dropout`
    "deterministic",  # by torch, for the whole process
}
"""Keys under `training` that are no setting of the optimiser steps, with who uses them."""


def optimisation(spec: RunSpec) -> TrainerSettings:
    """Return the settings of the run's optimiser steps.

    Raises:
        TrainingError: The spec has no learning rate.
    """
    if spec.learning_rate is None:
        raise TrainingError(f"run {spec.title!r} has no learning rate; plan it again")
    return TrainerSettings(
        epochs=spec.epochs,
        most_steps=spec.steps,
        learning_rate=spec.learning_rate,
        embedding_learning_rate=spec.learning_rate,
        removes_dropout=spec.removes_dropout,
        seed=spec.seed,
        # A new key under `training` is an error here until the trainer has a setting of its name.
        **spec.training.model_dump(exclude=_USED_ELSEWHERE),
    )
