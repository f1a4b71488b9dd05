"""The unlearned model of a recorded run: trained again, written, and compared with its record.

Weights are no part of a record. A run depends on its spec alone, so the same spec gives the same
model: on a CPU to the last bit, on a GPU to rounding. Every step is compared with the recorded one,
and the files that are written are loaded and evaluated as the run's model was.
"""

import json
import math
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from unlearnbench.api.benchmark import split_name
from unlearnbench.api.inference_method import Wrapper
from unlearnbench.api.method import Method
from unlearnbench.api.observations import Evaluation
from unlearnbench.base import hub
from unlearnbench.base.errors import DataError, ModelError, RecordError, UnlearnbenchError
from unlearnbench.base.redaction import MARK
from unlearnbench.config.method_specs import method_from_spec
from unlearnbench.config.plan import RunSpec, planned_commits
from unlearnbench.config.schema import MethodGrid, SweepConfig
from unlearnbench.config.search import SearchSettings
from unlearnbench.models.device import cuda_variables, deterministic, use_device
from unlearnbench.models.loading import Source, quiet_transformers
from unlearnbench.models.lora import load_any_model
from unlearnbench.models.rows_loading import fingerprint
from unlearnbench.results.epoch_metrics import references_of
from unlearnbench.results.records import EpochResult, Record, read_record
from unlearnbench.results.run_estimate import check_run
from unlearnbench.runs.build_trainer import build_trainer
from unlearnbench.runs.workspace import Workspace, workspace
from unlearnbench.training.trainer import Trainer

Show = Callable[[str], None]
"""Prints a line on the progress of the work."""
TOLERANCE = 1e-9
"""Most by which two numbers differ, relative to the larger one, that are called the same."""


@dataclass(frozen=True)
class Difference:
    """A number that is not the recorded one."""

    column: str
    recorded: float | None
    found: float | None

    @property
    def size(self) -> float:
        """How far the two are apart; infinite if only one of them is a number."""
        if self.recorded is None or self.found is None:
            return math.inf
        return abs(self.recorded - self.found)


@dataclass(frozen=True)
class RemadeModel:
    """Comparison of a written model with the record of its run."""

    epoch: int
    source: Source
    """Start model."""
    same_start: bool
    """Its weights are those that the run started from."""
    metrics: Mapping[str, float | None]
    """Metrics of the written model, by column of `results.csv`."""
    compared: int
    """Number of columns that the record has, too."""
    differences: tuple[Difference, ...]
    """The largest first."""
    first_other_step: int | None
    """First optimiser step whose loss or gradient norm is not the recorded one."""
    device: str
    """On which it was made."""


def spec_of(record: Record) -> tuple[RunSpec, Method]:
    """Read spec and method of a recorded run that trains.

    Raises: RecordError for another record; UnlearnbenchError for a method without weights.
    """
    if record.kind != "run":
        raise RecordError(
            f"record {record.id} is of a {record.kind} model, which no run has made; it lies under "
            "models/ in the sweep's cache, or where the configuration says"
        )
    try:
        spec = RunSpec.model_validate_json(json.dumps(dict(record.spec)))
    except (ValidationError, TypeError, ValueError) as error:
        first = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise RecordError(
            f"record {record.id}: its settings cannot be read ({first}); where they are of a "
            "plug-in, give its --plugin FILE"
        ) from None
    method = method_from_spec(spec.method)
    if isinstance(method, Wrapper):
        raise UnlearnbenchError(
            f"record {record.id}: {record.method} trains nothing: it changes the prompts of the "
            "start model while that answers, so there are no weights to export; export a method "
            "that trains"
        )
    return spec, method


def remake(
    record: Record,
    records: tuple[Record, ...],
    epoch: int,
    config: SweepConfig,
    folder: Path,
    to: Path,
    *,
    adapter: bool = False,
    show: Show,
) -> RemadeModel:
    """Train a recorded run again up to `epoch`, and write model and tokenizer into `to`.

    records  of the sweep in `folder`, whose configuration is `config`
    adapter  write the LoRA adapter, in place of the model that it is merged into

    Raises: DataError where the benchmark's rows are others now.
    """
    spec, method = spec_of(record)
    if adapter and spec.model.lora is None:
        raise ModelError(f"record {record.id}: not a LoRA run, so it has no adapter to write")
    part, repeats = _config(spec, config), spec.training.deterministic
    if part.resources_of(spec.model.name).gpu:
        os.environ.update(cuda_variables(deterministic=repeats))
    use_device(part.resources_of(spec.model.name))
    quiet_transformers()
    hub.pin(planned_commits(folder))
    space = workspace(part, folder)
    if (now := fingerprint(space.benchmark, spec.forget_fraction)) != spec.data_fingerprint:
        raise DataError(
            f"record {record.id} was made on other data: {spec.data_fingerprint} then, {now} now; "
            "give the benchmark the rows that it had"
        )
    check_run(spec, part, space.benchmark)
    space.fetch_models(spec.model.name, "full")
    with deterministic(repeats):
        trainer, first_other_step = _trained(record, spec, space, method, epoch, show)
        device = str(trainer.accelerator.device)
        show("write the weights")
        with trainer.evaluation_model(exact=True) as model:
            _write(model, space, spec, to, adapter=adapter)
        # There is to be memory for the model that was written.
        del trainer, model
        show("evaluate the written model")
        metrics = _evaluated(spec, space, records, to)
    (recorded,) = (item for item in record.epochs if item.epoch == epoch)
    source = space.models(spec.model.name).full()
    shared = [name for name in recorded.metrics if name in metrics]
    return RemadeModel(
        epoch=epoch,
        source=source,
        same_start=record.provenance.get("weights") in (None, source.weights()),
        metrics=metrics,
        compared=len(shared),
        differences=_differences(recorded, metrics),
        first_other_step=first_other_step,
        device=device,
    )


def _config(spec: RunSpec, config: SweepConfig) -> SweepConfig:
    """The sweep's configuration, as it was for one run, and without its attacks."""
    split = {"forget_fractions": (), "splits": (spec.forget_fraction,)}
    if not isinstance(spec.forget_fraction, str):
        split = {"forget_fractions": (spec.forget_fraction,), "splits": ()}
    stated = next((m for m in config.models if m.name == spec.model.name), spec.model)
    model = spec.model.model_copy(update={"resources": stated.resources})
    changes: dict[str, Any] = {"data": spec.data, "models": (model,), "attacks": (), **split}
    methods = (MethodGrid(specs=(spec.method,), training=spec.training),)
    changes |= {"evaluation": spec.evaluation, "methods": methods}
    changes |= {"search": SearchSettings(), "select": None}
    if config.storage and MARK in config.storage:  # its secret is in no file
        changes["storage"] = None
    return config.model_copy(update=changes)


def _trained(
    record: Record, spec: RunSpec, space: Workspace, method: Method, epoch: int, show: Show
) -> tuple[Trainer, int | None]:
    """The run's trainer after `epoch`, and the first step that is not the recorded one."""
    show("load the start model")
    trainer = build_trainer(spec, space, method)
    recorded = {step.step: step for step in record.steps}
    other: int | None = None
    for number in range(1, epoch + 1):
        show(f"epoch {number} of {epoch}: train")
        for step in trainer.epoch(number):
            if other is None and recorded.get(step.step, step) != step:
                other = step.step
    return trainer, other


def _write(model: Any, space: Workspace, spec: RunSpec, to: Path, *, adapter: bool) -> None:
    """Write a trained model, with its adapter merged unless that is wanted, and its tokenizer."""
    source = space.models(spec.model.name).full()
    if spec.model.lora is not None and adapter:
        folder = source.folder
        for item in model.peft_config.values():
            item.base_model_name_or_path = source.place if folder is None else str(folder.resolve())
    else:
        if spec.model.lora is not None:
            model = model.merge_and_unload()
        # Training turned it off; who generates with the model needs it.
        model.config.use_cache = True
    try:
        with warnings.catch_warnings():
            # peft calls transformers by deprecated names: nothing to act on here.
            warnings.simplefilter("ignore", FutureWarning)
            model.save_pretrained(to)
        space.tokenizer(spec.model.name).save_pretrained(to)
    except OSError as error:
        raise ModelError(f"{to}: the model cannot be written: {error.strerror or error}") from error


def _evaluated(
    spec: RunSpec, space: Workspace, records: tuple[Record, ...], path: Path
) -> dict[str, float | None]:
    """Evaluate the model in `path` by the rules of the run."""
    name, split = spec.model.name, spec.forget_fraction
    references = references_of(records)

    def evaluation(kind: str, target: str) -> Evaluation | None:
        """Evaluation of the run's own start or retain model, else of the sweep's only one."""
        stored = space.evaluation_record(name, target, split)
        item = read_record(stored) if stored.is_dir() else references.get((kind, name, split))
        return item.evaluations[min(item.evaluations)] if item and item.evaluations else None

    start, retain = evaluation("fine-tuned", "full"), None
    if "retain" in space.config.data.references:
        retain = evaluation("retain", split_name("retain", split))
    settings = spec.model.model_copy(update={"lora": None, "gradient_checkpointing": False})
    result = space.evaluator(name, split)(load_any_model(Source(str(path)), settings), start)
    return space.summary(space.with_start_losses(name, split, result), retain, start)


def _differences(
    recorded: EpochResult, result: Mapping[str, float | None]
) -> tuple[Difference, ...]:
    """The numbers that differ, the largest difference first; what is not finite is no number."""
    pairs = (
        Difference(name, _finite(value), _finite(result[name]))
        for name, value in recorded.metrics.items()
        if name in result
    )
    faults = [pair for pair in pairs if not _same(pair.recorded, pair.found)]
    return tuple(sorted(faults, key=lambda pair: -pair.size))


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


def _same(first: float | None, second: float | None) -> bool:
    if first is None or second is None:
        return first is second
    return math.isclose(first, second, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
