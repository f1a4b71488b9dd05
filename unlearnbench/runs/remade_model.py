"""The unlearned model of a recorded run: trained again from its spec, written, and evaluated.

Weights are no part of a record. A run depends on its spec alone, so the same spec gives the same
model: on a CPU to the last bit, on a GPU to rounding.
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
from unlearnbench.results.finalize import references_of
from unlearnbench.results.records import Record, read_record
from unlearnbench.runs.baselines import START
from unlearnbench.runs.build_trainer import build_trainer
from unlearnbench.runs.request_sequence import save_weights
from unlearnbench.runs.workspace import Workspace, workspace


def spec_of(record: Record) -> RunSpec:
    """Read the spec of a recorded run. Raises: RecordError for a record of anything else."""
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
    """Train a recorded run again up to `epoch`, write model and tokenizer into `to`, evaluate them.

    epoch    or step, of a run by steps
    records  of the sweep in `folder`, whose configuration is `config`
    adapter  write the LoRA adapter, in place of the model that it is merged into
    dtype    of the written weights; default: see `exported_dtype`
    attention  implementation that computes the run; default: the record's
    show     prints a line on the progress

    Returns what was observed of the written model. Raises: DataError where the benchmark's rows are
    others now; RecordError or UnlearnbenchError for a run without weights.
    """
    spec = spec_of(record)
    name, split, repeats = spec.model.name, spec.forget_fraction, spec.training.deterministic
    method = method_from_spec(spec.method)
    if isinstance(method, Wrapper):
        raise UnlearnbenchError(
            f"record {record.id}: {record.method} trains nothing, so there are no weights to export"
        )
    if adapter and spec.model.lora is None:
        raise ModelError(f"record {record.id}: not a LoRA run, so it has no adapter to write")
    resources = config.resources_of(name)
    if resources.gpu:
        os.environ.update(cuda_variables(deterministic=repeats))
    use_device(resources)
    quiet_transformers()
    hub.pin(planned_commits(folder))
    space = workspace(_config(spec, config), folder)
    if (now := fingerprint(space.benchmark, split)) != spec.data_fingerprint:
        raise DataError(
            f"record {record.id} was made on other data: {spec.data_fingerprint} then, {now} now; "
            "give the benchmark the rows that it had"
        )
    space.fetch_models(name, "full")
    if attention is not None:
        # Only of this run: a start model is known by the settings that it was prepared with.
        spec = spec.model_copy(
            update={"model": spec.model.model_copy(update={"attention": attention})}
        )
    with deterministic(repeats):
        trainer = build_trainer(spec, space, method)
        if spec.unit is Unit.STEP:
            show(f"train {spec.unit.counted(epoch)}")
            for _ in trainer.until(epoch):
                pass
        else:
            for number in range(1, epoch + 1):
                show(f"epoch {number} of {epoch}: train")
                for _ in trainer.epoch(number):
                    pass
        with trainer.evaluation_model(exact=True) as model:
            _write(model, space, spec, to, adapter=adapter, dtype=dtype)
        del trainer, model  # frees memory for the model that was written
        show("evaluate the written model")
        start = _start_evaluation(space, records, spec)
        whole = spec.model.model_copy(update={"lora": None, "gradient_checkpointing": False})
        result = space.evaluator(name, split)(load_any_model(Source(str(to)), whole), start)
        result = space.with_start_losses(name, split, result)
        # The sweep's table, which it is compared with, may be of evaluations without texts.
        return space.kept(result, split)


def _start_evaluation(
    space: Workspace, records: Iterable[Record], spec: RunSpec
) -> Evaluation | None:
    """Evaluation of the run's own start model, else of the sweep's only one."""
    name, split = spec.model.name, spec.forget_fraction
    stored = space.baselines.record_folder(name, START, split)
    if stored.is_dir():
        record = read_record(stored)
    else:
        only = references_of(records).get(("fine-tuned", name, split, ""))
        if only is None:
            return None
        record = only.record
    return record.evaluations[min(record.evaluations)] if record.evaluations else None


def _config(spec: RunSpec, config: SweepConfig) -> SweepConfig:
    """The sweep's configuration, as it was for one run."""
    split, changes = spec.forget_fraction, dict[str, Any]()
    if split not in config.split_keys:  # a benchmark's rows may depend on all of them
        by_name = isinstance(split, str)
        changes["forget_fractions"] = None if by_name else (split,)
        changes["splits"] = (split,) if by_name else None
    stated = next((m for m in config.models if m.name == spec.model.name), spec.model)
    model = spec.model.model_copy(update={"resources": stated.resources})
    changes |= {"data": spec.data, "models": (model,), "evaluation": spec.evaluation}
    if config.storage and MARK in config.storage:  # its secret is in no file
        changes["storage"] = None
    return config.model_copy(update=changes)


def exported_dtype(spec: RunSpec, space: Workspace, *, adapter: bool) -> str:
    """The dtype in which a run's model is written, if none is named.

    It is the base's, as it is stored. Nothing is widened: a run that trained bfloat16 weights has
    no further digits, whatever the base has. An adapter stays as it was trained, in float32.
    """
    if adapter:
        return "float32"
    trained: str = spec.model.dtype
    stored = stored_dtype(space.models(spec.model.name).base().files(weights=True))
    return trained if stored is None or trained != "float32" else stored


_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""Types of floats by the names that safetensors files have for them."""


def stored_dtype(folder: Path) -> str | None:
    """The dtype of most numbers in a folder's weights; None for another one, such as 8-bit."""
    from safetensors import safe_open

    sizes: Counter[str] = Counter()
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  # it is no mapping
                tensor = file.get_slice(name)
                sizes[tensor.get_dtype()] += math.prod(tensor.get_shape())
    return _DTYPES.get(sizes.most_common(1)[0][0]) if sizes else None


def _write(
    model: Any, space: Workspace, spec: RunSpec, to: Path, *, adapter: bool, dtype: str | None
) -> None:
    """Write a trained model, with its adapter merged unless that is wanted, and its tokenizer."""
    dtype = dtype or exported_dtype(spec, space, adapter=adapter)
    if adapter:
        source = space.models(spec.model.name).full()
        folder = source.folder
        for item in model.peft_config.values():
            item.base_model_name_or_path = source.place if folder is None else str(folder.resolve())
    save_weights(model, spec, to, adapter=adapter, dtype=dtype)
    space.tokenizer(spec.model.name).save_pretrained(to)
