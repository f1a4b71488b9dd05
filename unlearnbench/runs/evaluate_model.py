"""Evaluation of one model in one call, plain or under attacks: for a script or a notebook.

    from unlearnbench import evaluate_model, get_profile, summarize
    evaluation = evaluate_model("./my-model", data="../tofu", forget=0.10)
    metrics = summarize(evaluation, None, get_profile("tofu"))

    setup = set_up("./my-model", data="../tofu")
    attacked = attack_checkpoint("./my-model", attack_specs({"relearning": {}}), setup)
    attacked.under["relearning@13"]  # an Evaluation, as attacked.plain is

Needs neither Ray nor MLflow nor Plotly. Under `torchrun` every process calls it and gets the same
evaluation. The model's files are not changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unlearnbench.api.attack import AttackRows
from unlearnbench.api.benchmark import Benchmark, Dataset, Question, SplitKey
from unlearnbench.api.callbacks import ProgressCallback
from unlearnbench.api.observations import Evaluation
from unlearnbench.api.profile import Profile
from unlearnbench.api.registry import names
from unlearnbench.base.distributed import join_group
from unlearnbench.base.errors import EvaluationError, did_you_mean, shortened
from unlearnbench.config.entries import (
    AttackSpec,
    attack_from_spec,
    benchmark_named,
    benchmark_of,
)
from unlearnbench.config.precision import Precision
from unlearnbench.config.profiles import get_profile
from unlearnbench.config.schema import ModelSettings
from unlearnbench.config.training_settings import TrainingSettings
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.evaluation.sets import evaluation_sets
from unlearnbench.models.device import cuda_variables, disable_cudnn_attention
from unlearnbench.models.encoding import Encoder, TemplateArgs, resolve_template
from unlearnbench.models.loading import (
    Source,
    check_vocabulary,
    load_tokenizer,
    pad_id,
    quiet_transformers,
    reading,
)
from unlearnbench.models.lora import adapter_base, is_adapter, load_any_model
from unlearnbench.models.rows_loading import load_benchmark, other_rows
from unlearnbench.runs.under_attack import attack_rows, evaluations_under
from unlearnbench.training.fine_tuning import FineTuner


def evaluate_model(
    model: Any,
    *,
    data: str | Benchmark = "tofu",
    forget: SplitKey = 0.1,
    profile: str | Profile = "tofu",
    tokenizer: Any = None,
    template: str = "auto",
    template_args: TemplateArgs | None = None,
    dtype: str = "float32",
    precision: Precision | None = None,
    batch_tokens: int | None = None,
    progress: ProgressCallback | None = None,
) -> Evaluation:
    """Evaluate a causal LM on the benchmark's sets.

    model         folder (a LoRA adapter's too), hub id, or a model in memory, which is not changed
    data          `tofu` (from the hub), a folder of its files, the name of another benchmark, or a
                  benchmark with its settings
    forget        split: the share that is to be forgotten, or its name
    profile       name of the rules, or rules of your own
    tokenizer     folder, hub id or tokenizer; default: the model's own, or its base's
    template      as in `ModelSettings`; `auto` is the tokenizer's chat template, else plain
    template_args  variables of the chat template (`date_string`), and `system_prompt`
    dtype         float32 or bfloat16, for a model that is loaded here
    precision     bf16 (autocast, where weights are float32) or fp32; default: bf16 on CUDA, the
                  weights' own elsewhere. Numbers of different precisions do not compare.
    batch_tokens  tokens of one batch; default: fast on the device; changes no number
    progress      called with the work done and the work in all
    """
    setup = set_up(
        model,
        data=data,
        forget=forget,
        profile=profile,
        tokenizer=tokenizer,
        template=template,
        template_args=template_args,
        dtype=dtype,
        precision=precision,
        batch_tokens=batch_tokens,
    )
    with setup.ready(model) as loaded:
        return setup.evaluator(loaded, None, progress)


@dataclass(frozen=True, eq=False)
class EvaluationSetup:
    """Rows, rules and tokenizer by which any number of models are evaluated."""

    rows: Dataset
    forget: SplitKey
    evaluator: Evaluator
    settings: ModelSettings
    """Settings of the models, but for their names."""

    def loaded(self, location: str | Path) -> Any:
        """The model of a folder or hub id, in evaluation mode.

        Raises: ModelError where it cannot be loaded, or has too few tokens for the tokenizer.
        """
        part = self.settings.model_copy(update={"name": str(location), "base": str(location)})
        model = load_any_model(Source(str(location)), part)
        check_vocabulary(model, self.evaluator.encoder.tokenizer)
        return model.eval()

    @contextmanager
    def ready(self, model: Any) -> Generator[Any, None, None]:
        """The model of a folder or hub id, or one in memory, in evaluation mode for a while."""
        loaded = self.loaded(model) if isinstance(model, str | Path) else model
        check_vocabulary(loaded, self.evaluator.encoder.tokenizer)
        was_training = loaded.training
        loaded.eval()
        try:
            yield loaded
        finally:
            loaded.train(was_training)


def set_up(
    model: Any,
    *,
    data: str | Benchmark = "tofu",
    forget: SplitKey = 0.1,
    profile: str | Profile = "tofu",
    tokenizer: Any = None,
    template: str = "auto",
    template_args: TemplateArgs | None = None,
    dtype: str = "float32",
    precision: Precision | None = None,
    batch_tokens: int | None = None,
) -> EvaluationSetup:
    """Load the rows and encode them with the tokenizer of `model`; as `evaluate_model`.

    Joins the process group of a launcher such as torchrun.
    """
    if torch.cuda.is_available():
        os.environ.update(cuda_variables())
    rules = get_profile(profile) if isinstance(profile, str) else profile
    benchmark = data_settings(data)
    rows = load_benchmark(benchmark, (forget,))
    sets = evaluation_sets(rows, forget, rules)
    join_group()  # under a launcher such as torchrun
    quiet_transformers()
    disable_cudnn_attention()
    named = isinstance(model, str | Path)
    settings = model_settings(str(model) if named else "in memory", template, dtype)
    if tokenizer is None or isinstance(tokenizer, str | Path):
        if tokenizer is None and not named:
            raise EvaluationError(
                "evaluate_model: a model in memory has no tokenizer with it; give tokenizer="
            )
        tokenizer = find_tokenizer(str(model if tokenizer is None else tokenizer), settings)
    evaluator = Evaluator(
        sets,
        tokenizer,
        resolve_template(template, tokenizer, template_args),
        rules,
        pad_id(tokenizer),
        batch_tokens,
        precision,
        benchmark.roles,
    )
    return EvaluationSetup(rows, forget, evaluator, settings)


def data_settings(data: str | Benchmark) -> Benchmark:
    """The benchmark that `--data` stands for: one by its name, or TOFU from a folder.

    Raises: EvaluationError for what is neither.
    """
    if isinstance(data, Benchmark):
        return data
    known = names("benchmarks")
    if data in known:
        return benchmark_named(data)
    if "/" not in data and not Path(data).expanduser().exists():
        near = did_you_mean(data, known) or "; one in a file of its own needs --plugin FILE"
        raise EvaluationError(
            f"data: {shortened(data)} is no folder, and no benchmark of {', '.join(known)}{near}"
        )
    return benchmark_of({"source": "tofu", "path": data})


def model_settings(name: str, template: str, dtype: str) -> ModelSettings:
    """Settings of a model that is only evaluated."""
    return ModelSettings.model_validate(
        {"name": name, "base": name, "template": template, "dtype": dtype}
    )


def find_tokenizer(location: str, settings: ModelSettings) -> Any:
    """The tokenizer of a model; an adapter folder without one has its base's."""
    source = Source(location)
    if is_adapter(source) and not any(Path(location).glob("tokenizer*")):
        return load_tokenizer(adapter_base(source), settings)
    if is_adapter(source):
        # `load_tokenizer` refuses a folder without a model; the tokenizer is whole in an adapter's.
        from transformers import AutoTokenizer

        with reading("tokenizer", source):
            return AutoTokenizer.from_pretrained(location)
    return load_tokenizer(source, settings)


@dataclass(frozen=True, eq=False)
class AttackedModel:
    """The evaluations of one model."""

    plain: Evaluation
    """On every set of the benchmark."""
    under: Mapping[str, Evaluation]
    """By variant, on the sets and rows that the attack is about."""


@dataclass(eq=False)
class CheckpointTools:
    """Help for attacks on a checkpoint, see `api.attack.AttackTools`."""

    rows: AttackRows
    fine_tune: FineTuner
    """With the length and precision that runs have by default."""
    _setup: EvaluationSetup
    _start: str | Path | None
    """Folder or hub id of the model before unlearning."""
    _loaded: Any = None

    @classmethod
    def of(cls, setup: EvaluationSetup, start: str | Path | None) -> CheckpointTools:
        """The tools for models that are evaluated by `setup`."""
        part = setup.evaluator
        length = TrainingSettings().max_length
        encoder = Encoder(part.encoder.tokenizer, part.encoder.template, length)
        return cls(
            attack_rows(setup.rows, setup.forget), FineTuner(encoder, part.pad), setup, start
        )

    def start_model(self) -> Any:
        """The start model, loaded once. Raises: EvaluationError where none is given."""
        if self._start is None:
            raise EvaluationError(
                "an attack reads the start model, the one before unlearning: give it with --start"
            )
        if self._loaded is None:
            self._loaded = self._setup.loaded(self._start)
        return self._loaded

    def other_rows(self, source: Benchmark | str) -> tuple[Question, ...]:
        """The training rows of another benchmark, or the rows of a file."""
        return other_rows(source)


def attack_checkpoint(
    model: Any,
    attacks: Sequence[AttackSpec],
    setup: EvaluationSetup,
    *,
    start: str | Path | None = None,
    progress: ProgressCallback | None = None,
    done: Callable[[str], None] = lambda _: None,
) -> AttackedModel:
    """Evaluate a model, then attack it in each way and evaluate it again.

    model     folder, hub id, or a model in memory, whose weights are restored bit for bit
    start     folder or hub id of the start model, for attacks that read it
    progress  of the plain evaluation
    done      called with the name of each variant that has been evaluated
    """
    tools = CheckpointTools.of(setup, start)
    with setup.ready(model) as loaded:
        plain = setup.evaluator(loaded, None, progress)
        under: dict[str, Evaluation] = {}
        for spec in attacks:
            options = spec.name, attack_from_spec(spec), loaded, setup.evaluator, tools, plain
            for name, result in evaluations_under(*options):
                under[name] = result
                done(name)
    return AttackedModel(plain, under)
