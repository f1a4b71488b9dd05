"""Evaluation of one model in one call, plain or under attacks: for a script or a notebook.

    from unlearnbench import evaluate_model, get_profile, summarize
    evaluation = evaluate_model("./my-model", data="../tofu", forget=0.10)
    metrics = summarize(evaluation, None, get_profile("tofu"))

    setup = set_up("./my-model", data="../tofu")
    attacked = dict(setup.evaluations("./my-model", attack_specs({"relearning": {}})))
    attacked["relearning@13"]  # an Evaluation, as attacked[""] is, without an attack

Needs neither Ray nor MLflow nor Plotly. Under `torchrun` every process calls it and gets the same
evaluation. The model's files are not changed.
"""

import os
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from unlearnbench.api.benchmark import Benchmark, Dataset, SplitKey
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
from unlearnbench.models.chat_template import TemplateArgs, resolve_template
from unlearnbench.models.device import cuda_variables, disable_cudnn_attention
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.limits import check_vocabulary, context_length, pad_id
from unlearnbench.models.lora import load_any_model
from unlearnbench.models.named_models import source_of
from unlearnbench.models.quiet_libraries import quiet_transformers
from unlearnbench.models.rows_loading import load_benchmark
from unlearnbench.models.whole_model import load_tokenizer, read_config
from unlearnbench.runs.attack_model import Tools
from unlearnbench.runs.under_attack import attack_rows, evaluations_under
from unlearnbench.training.fine_tuning import FineTuner


def evaluate_model(
    model: Any, *, progress: ProgressCallback | None = None, **options: Any
) -> Evaluation:
    """Evaluate a causal LM on the benchmark's sets.

    model     folder (a LoRA adapter's too), hub id, or a model in memory, which is not changed
    progress  called with the work done and the work in all
    options   those of `set_up`: data, forget, profile, tokenizer, template, precision and others
    """
    return dict(set_up(model, **options).evaluations(model, progress=progress))[""]


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
        model = load_any_model(source_of(part, str(location)), part)
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

    def evaluations(
        self,
        model: Any,
        attacks: Sequence[AttackSpec] = (),
        *,
        start: str | Path | None = None,
        progress: ProgressCallback | None = None,
    ) -> Iterator[tuple[str, Evaluation]]:
        """Yield the evaluation of a model, named ``, then by variant those under attacks.

        model     folder, hub id, or a model in memory, whose weights are restored bit for bit
        start     folder or hub id of the start model, for attacks that read it
        progress  of the plain evaluation

        Under an attack, an evaluation has the sets and rows that the attack is about.
        """

        @lru_cache(maxsize=1)
        def start_model() -> Any:
            if start is None:
                raise EvaluationError(
                    "an attack reads the start model, the one before unlearning: give it with "
                    "--start"
                )
            return self.loaded(start)

        part = self.evaluator
        encoder = part.encoder.tokenizer, part.encoder.template, TrainingSettings().max_length
        tuner = FineTuner(Encoder(*encoder), part.pad)
        tools = Tools(attack_rows(self.rows, self.forget), tuner, start_model)
        with self.ready(model) as loaded:
            plain = part(loaded, None, progress)
            yield "", plain
            for spec in attacks:
                attack = attack_from_spec(spec)
                yield from evaluations_under(spec.name, attack, loaded, part, tools, plain)


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
    attention: str = "sdpa",
    trust_remote_code: bool = False,
    adapter_base: str | None = None,
    precision: Precision | None = None,
    batch_tokens: int | None = None,
) -> EvaluationSetup:
    """Load the rows and encode them with the tokenizer of `model`.

    data          `tofu` (from the hub), a folder of its files, the name of another benchmark, or a
                  benchmark with its settings
    forget        split: the share to forget, or its name
    profile       name of the rules, or rules of your own
    tokenizer     folder, hub id or tokenizer; default: the model's own, or its base's
    template      as in `ModelSettings`; `auto` is the tokenizer's chat template, else plain
    template_args  variables of the chat template (`date_string`), and `system_prompt`
    dtype         float32, bfloat16 or float16, for a model that is loaded here
    attention     sdpa (eager in models without SDPA), eager or flash_attention_2, likewise
    adapter_base  base of an adapter folder, in place of the one that the adapter names
    trust_remote_code  whether to run Python code that comes with the model or its tokenizer
    precision     bf16 or fp16 (autocast, where weights are float32), or fp32; default: bf16 on
                  CUDA, the weights' own elsewhere. Numbers of different precisions do not compare.
    batch_tokens  tokens of one batch; default: fast on the device; changes no number

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
    settings = model_settings(
        str(model) if named else "in memory",
        template,
        dtype,
        attention=attention,
        trust_remote_code=trust_remote_code,
        adapter_base=adapter_base,
    )
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
        benchmark.set_roles,
        context=_context_of(model, settings) if rules.reads_whole_context else None,
    )
    return EvaluationSetup(rows, forget, evaluator, settings)


def _context_of(model: Any, settings: ModelSettings) -> int | None:
    """The tokens that a model can read; an adapter's base says it."""
    if not isinstance(model, str | Path):
        return context_length(model.config)
    return context_length(read_config(source_of(settings, str(model)), settings))


def data_settings(data: str | Benchmark) -> Benchmark:
    """The benchmark that `--data` stands for: one by its name, also with a folder or a data set of
    the hub behind `=`, or TOFU from a folder.

    Raises: EvaluationError for what is neither.
    """
    if isinstance(data, Benchmark):
        return data
    known = names("benchmarks")
    if data in known:
        return benchmark_named(data)
    source, _, place = data.partition("=")
    if source in known:
        setting = "hub_id" if _is_hub_id(source, place) else "path"
        return benchmark_of({"source": source, setting: place})
    if "/" not in data and not Path(data).expanduser().exists():
        near = did_you_mean(data, known) or "; one in a file of its own needs --plugin FILE"
        raise EvaluationError(
            f"data: {shortened(data)} is no folder, and no benchmark of {', '.join(known)}{near}"
        )
    return benchmark_of({"source": "tofu", "path": data})


def _is_hub_id(source: str, place: str) -> bool:
    """Whether the place of a benchmark's rows is `ORG/NAME` on the hub, and no folder."""
    looks_like_id = re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", place) is not None
    has_setting = "hub_id" in type(benchmark_named(source)).model_fields
    return looks_like_id and has_setting and not Path(place).expanduser().exists()


def model_settings(name: str, template: str, dtype: str, **others: Any) -> ModelSettings:
    """Settings of a model that is only evaluated; `others` are further fields by name."""
    return ModelSettings.model_validate(
        {"name": name, "base": name, "template": template, "dtype": dtype, **others}
    )


def find_tokenizer(location: str, settings: ModelSettings) -> Any:
    """The tokenizer of a model; an adapter folder without one has its base's."""
    return load_tokenizer(source_of(settings, location), settings)
