"""The unlearned model of a recorded run: trained again from its spec, written, and evaluated.

Records have no weights. A run depends only on its spec, so the same spec gives the same model: on a
CPU to the last bit, on a GPU up to rounding.
"""

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from unlearnbench.api.inference_method import Wrapper
from unlearnbench.api.observations import Evaluation
from unlearnbench.base import hub
from unlearnbench.base.errors import DataError, ModelError, RecordError, UnlearnbenchError
from unlearnbench.base.redaction import MARK
from unlearnbench.config.method_specs import method_from_spec
from unlearnbench.config.plan_file import planned_commits
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import SweepConfig
from unlearnbench.config.unit import Unit
from unlearnbench.models.device import cuda_variables, deterministic, use_device
from unlearnbench.models.lora import load_any_model
from unlearnbench.models.quiet_libraries import quiet_transformers
from unlearnbench.models.rows_loading import fingerprint
from unlearnbench.models.source import Source
from unlearnbench.results.finalize import ReferenceKey, references_of
from unlearnbench.results.records import Record, read_record
from unlearnbench.runs.baselines import START
from unlearnbench.runs.build_trainer import build_trainer
from unlearnbench.runs.request_sequence import save_weights
from unlearnbench.runs.workspace import Workspace, workspace
from unlearnbench.training.trainer import Trainer

_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""Types of floats by the names that safetensors files have for them."""


def spec_of(record: Record) -> RunSpec:
    """Read the spec of a recorded run.

    Raises:
        RecordError: The record is of another model, or its spec cannot be read.
    """
    if record.kind != "run":
        raise RecordError(f"record {record.id} is of a {record.kind} model, which no run has made")
    try:
        return RunSpec.model_validate_json(json.dumps(dict(record.spec)))
    except ValueError as error:
        raise RecordError(
            f"record {record.id}: its settings cannot be read ({error}); where they are of a "
            "plug-in, give its --plugin FILE"
        ) from None


def remake(
    record: Record,
    records: Iterable[Record],
    epoch: int,
    config: SweepConfig,
    folder: Path,
    to: Path,
    *,
    adapter: bool = False,
    dtype: str | None = None,
    attention: str | None = None,
    show: Callable[[str], None],
) -> Evaluation:
    """Train a recorded run again, write its model and tokenizer, and evaluate the written model.

    Args:
        record: The record of the run.
        records: The records of the sweep.
        epoch: The epoch, or step of a run by steps, up to which the run is trained.
        config: The configuration of the sweep.
        folder: The sweep's folder.
        to: The folder to write into.
        adapter: Whether to write the LoRA adapter instead of the model that it is merged into.
        dtype: Type of the written weights. None: see `exported_dtype`.
        attention: Implementation of attention for the training. None: the record's.
        show: Prints a line on the progress.

    Returns:
        The evaluation of the written model.

    Raises:
        DataError: The benchmark's rows have changed since the run.
        RecordError: The record is not of a run, or its spec cannot be read.
        UnlearnbenchError: The run trained no weights, or has no adapter to write.
    """
    spec = spec_of(record)
    method = method_from_spec(spec.method)
    if isinstance(method, Wrapper):
        raise UnlearnbenchError(
            f"record {record.id}: {record.method} trains nothing, so there are no weights to export"
        )
    if adapter and spec.model.lora is None:
        raise ModelError(f"record {record.id}: not a LoRA run, so it has no adapter to write")

    _prepare_process(spec, config, folder)
    space = workspace(_config_of_run(spec, config), folder)
    fingerprint_now = fingerprint(space.benchmark, spec.forget_fraction)
    if fingerprint_now != spec.data_fingerprint:
        raise DataError(
            f"record {record.id} was made on other data: {spec.data_fingerprint} then, "
            f"{fingerprint_now} now; give the benchmark the rows that it had"
        )
    space.fetch_models(spec.model.name, "full")
    if attention is not None:
        # Only the run changes, not the workspace: the folder of a start model is named by the
        # settings that it was prepared with.
        model_settings = spec.model.model_copy(update={"attention": attention})
        spec = spec.model_copy(update={"model": model_settings})

    with deterministic(spec.training.deterministic):
        trainer = build_trainer(spec, space, method)
        _train(trainer, spec.unit, epoch, show)
        with trainer.evaluation_model(exact=True) as model:
            _write(model, space, spec, to, adapter=adapter, dtype=dtype)
        # Both references go, so that the written model has the memory.
        del trainer, model
        show("evaluate the written model")
        return _evaluate_written(spec, space, records, to)


def _prepare_process(spec: RunSpec, config: SweepConfig, folder: Path) -> None:
    """Give this process the device, and the commits of the hub, that the sweep's workers had."""
    resources = config.resources_of(spec.model.name)
    if resources.gpus:
        os.environ.update(cuda_variables(deterministic=spec.training.deterministic))
    use_device(resources)
    quiet_transformers()
    hub.pin(planned_commits(folder))


def _train(trainer: Trainer, unit: Unit, last: int, show: Callable[[str], None]) -> None:
    """Train up to and including an epoch or a step."""
    if unit is Unit.STEP:
        show(f"train {unit.counted(last)}")
        for _ in trainer.until(last):
            pass
        return
    for epoch in range(1, last + 1):
        show(f"epoch {epoch} of {last}: train")
        for _ in trainer.epoch(epoch):
            pass


def _evaluate_written(
    spec: RunSpec, space: Workspace, records: Iterable[Record], to: Path
) -> Evaluation:
    """Evaluate the model in a folder as the run's last epoch was evaluated."""
    name = spec.model.name
    split = spec.forget_fraction
    start = _start_evaluation(space, records, spec)
    # The written model needs neither a new adapter nor what saves memory in training.
    settings = spec.model.model_copy(update={"lora": None, "gradient_checkpointing": False})
    model = load_any_model(Source(str(to)), settings)
    evaluation = space.evaluator(name, split)(model, start)
    evaluation = space.with_start_losses(name, split, evaluation)
    # The evaluation is compared with the sweep's table, which may be of evaluations without texts.
    return space.kept(evaluation, split)


def _start_evaluation(
    space: Workspace, records: Iterable[Record], spec: RunSpec
) -> Evaluation | None:
    """Return the evaluation of the run's own start model, or of the sweep's only start model.

    None if the sweep has no such record, or several.
    """
    name = spec.model.name
    split = spec.forget_fraction
    own_folder = space.baselines.record_folder(name, START, split)
    if own_folder.is_dir():
        record = read_record(own_folder)
    else:
        only = references_of(records).get(ReferenceKey("fine-tuned", name, split, ""))
        if only is None:
            return None
        record = only.record
    if not record.evaluations:
        return None
    return record.evaluations[min(record.evaluations)]


def _config_of_run(spec: RunSpec, config: SweepConfig) -> SweepConfig:
    """Return the sweep's configuration as it was for one run.

    A sweep may have been extended since, with other models, splits or rules.
    """
    changes: dict[str, Any] = {}
    split = spec.forget_fraction
    # A benchmark's rows may depend on all splits, so they stay if they contain the run's.
    if split not in config.split_keys:
        is_by_name = isinstance(split, str)
        changes["forget_fractions"] = None if is_by_name else (split,)
        changes["splits"] = (split,) if is_by_name else None
    models_of_name = [model for model in config.models if model.name == spec.model.name]
    stated = models_of_name[0] if models_of_name else spec.model
    # Resources are no part of a run: those of this machine count.
    changes["models"] = (spec.model.model_copy(update={"resources": stated.resources}),)
    changes["data"] = spec.data
    changes["evaluation"] = spec.evaluation
    # A redacted address is of no use, and its secret is in no file.
    if config.storage and MARK in config.storage:
        changes["storage"] = None
    return config.model_copy(update=changes)


def exported_dtype(spec: RunSpec, space: Workspace, *, adapter: bool) -> str:
    """Return the type in which the weights of a run are written, if none is named.

    It is the type of the base's files. Nothing is widened: a run that trained bfloat16 weights has
    no further digits, whatever the base has. An adapter stays as it was trained, in float32.

    Args:
        spec: The run.
        space: The workspace of the sweep.
        adapter: Whether only the adapter is written.
    """
    if adapter:
        return "float32"
    trained: str = spec.model.dtype
    stored = stored_dtype(space.models(spec.model.name).base().files(weights=True))
    if stored is None or trained != "float32":
        return trained
    return stored


def stored_dtype(folder: Path) -> str | None:
    """Return the type of most numbers in a folder's weights.

    None if there are no weights, or if the type is no type of floats, such as 8-bit integers.
    """
    from safetensors import safe_open

    count_of_type: Counter[str] = Counter()
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  # it is no mapping
                tensor = file.get_slice(name)
                count_of_type[tensor.get_dtype()] += math.prod(tensor.get_shape())
    if not count_of_type:
        return None
    most_frequent, _ = count_of_type.most_common(1)[0]
    return _DTYPES.get(most_frequent)


def _write(
    model: Any, space: Workspace, spec: RunSpec, to: Path, *, adapter: bool, dtype: str | None
) -> None:
    """Write a trained model and its tokenizer.

    Args:
        model: The model.
        space: The workspace of the sweep.
        spec: The run.
        to: The folder to write into.
        adapter: Whether to write only the adapter instead of the model that it is merged into.
        dtype: Type of the written weights. None: see `exported_dtype`.
    """
    if dtype is None:
        dtype = exported_dtype(spec, space, adapter=adapter)
    if adapter:
        base = space.models(spec.model.name).full()
        # A relative folder would be looked up from wherever the adapter is loaded.
        base_location = base.place if base.folder is None else str(base.folder.resolve())
        for adapter_config in model.peft_config.values():
            adapter_config.base_model_name_or_path = base_location
    save_weights(model, spec, to, adapter=adapter, dtype=dtype)
    space.tokenizer(spec.model.name).save_pretrained(to)
