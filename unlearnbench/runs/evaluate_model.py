"""Evaluation of one model in one call, plain or under attacks: for a script or a notebook.

    from unlearnbench import evaluate_model, get_profile, summarize
    evaluation = evaluate_model("./my-model", data="../tofu", forget=0.10)
    metrics = summarize(evaluation, None, get_profile("tofu"))

    setup = set_up("./my-model", data="../tofu")
    evaluations = dict(setup.evaluations("./my-model", attack_specs({"relearning": {}})))
    evaluations[""]  # without an attack
    evaluations["relearning@13"]  # after 13 steps of the attack

Neither Ray nor MLflow nor Plotly is needed. Under `torchrun`, every process makes the same calls
and gets the same evaluation. The model's files are not changed.
"""

import os
import re
from collections.abc import Callable, Generator, Iterator, Sequence
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
from unlearnbench.api.registry import load, names
from unlearnbench.base.distributed import join_group
from unlearnbench.base.errors import EvaluationError, did_you_mean, shortened
from unlearnbench.config.entries import (
    AttackSpec,
    attack_from_spec,
    benchmark_named,
    benchmark_of,
    metric_choices,
)
from unlearnbench.config.metric_plan import NO_CHOICES, MetricChoices
from unlearnbench.config.precision import Precision
from unlearnbench.config.profiles import get_profile
from unlearnbench.config.schema import ModelSettings
from unlearnbench.config.training_settings import TrainingSettings
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.evaluation.sets import evaluation_sets
from unlearnbench.evaluation.summary import plan_of
from unlearnbench.models.chat_template import TemplateArgs, resolve_template
from unlearnbench.models.device import cuda_variables, disable_cudnn_attention
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.limits import check_vocabulary, context_length, pad_id
from unlearnbench.models.lora import load_any_model
from unlearnbench.models.named_models import source_of
from unlearnbench.models.quiet_libraries import quiet_transformers
from unlearnbench.models.rows_loading import load_benchmark
from unlearnbench.models.whole_model import load_tokenizer, read_config


def evaluate_model(
    model: Any, *, progress: ProgressCallback | None = None, **options: Any
) -> Evaluation:
    """Evaluate a causal language model on the benchmark's sets.

    Args:
        model: A folder, which may be a LoRA adapter's, a hub id, or a model in memory. A model in
            memory is not changed.
        progress: Called with the work done and the total work.
        options: The options of `set_up`, such as data, forget, profile and tokenizer.
    """
    setup = set_up(model, **options)
    evaluations = dict(setup.evaluations(model, progress=progress))
    return evaluations[""]


@dataclass(frozen=True, eq=False)
class EvaluationSetup:
    """Rows, rules and tokenizer by which any number of models are evaluated.

    Attributes:
        rows: The rows of the benchmark.
        forget: The split.
        evaluator: Evaluates a model on the rows of the split.
        settings: Settings of the models, except for their names.
    """

    rows: Dataset
    forget: SplitKey
    evaluator: Evaluator
    settings: ModelSettings

    def loaded(self, location: str | Path) -> Any:
        """Load the model of a folder or hub id, in evaluation mode.

        Raises:
            ModelError: It cannot be loaded, or has too few tokens for the tokenizer.
        """
        names = {"name": str(location), "base": str(location)}
        settings = self.settings.model_copy(update=names)
        model = load_any_model(source_of(settings, str(location)), settings)
        check_vocabulary(model, self.evaluator.encoder.tokenizer)
        return model.eval()

    @contextmanager
    def ready(self, model: Any) -> Generator[Any, None, None]:
        """Yield a model in evaluation mode. On leaving, the mode from before is restored.

        Args:
            model: A folder, a hub id, or a model in memory.
        """
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
        """Yield the evaluation of a model, and then its evaluations under attacks.

        Args:
            model: A folder, a hub id, or a model in memory, whose weights are restored bit for bit.
            attacks: The attacks.
            start: Folder or hub id of the start model, for attacks and metrics that read it.
            progress: Called with the work done and the total work of the first evaluation.

        Yields:
            The variant and the evaluation. The variant is empty without an attack, and
            `relearning@13` for a point of an attack. Under an attack, an evaluation has only the
            sets and rows that the attack is about.

        Raises:
            EvaluationError: An attack leaves no row to evaluate. Nothing is loaded then.
        """
        self._check_rows_under(attacks)

        @lru_cache(maxsize=1)
        def start_model() -> Any:
            if start is None:
                raise EvaluationError(
                    "an attack reads the start model, the one before unlearning: give it with "
                    "--start"
                )
            return self.loaded(start)

        evaluator = self.evaluator
        with self.ready(model) as loaded:
            plain = evaluator(loaded, None, progress)
            if start is not None and "start_loss" in evaluator.extra:
                is_start = str(model) == str(start)
                plain = evaluator.with_start_losses(plain, loaded if is_start else start_model())
            yield "", plain
            yield from self._under_attacks(attacks, loaded, plain, start_model)

    def _check_rows_under(self, attacks: Sequence[AttackSpec]) -> None:
        """Check that each attack leaves rows to evaluate."""
        if not attacks:
            return
        from unlearnbench.runs.under_attack import attack_rows, check_asked_rows

        rows = attack_rows(self.rows, self.forget)
        for spec in attacks:
            check_asked_rows(spec.name, attack_from_spec(spec), self.evaluator, rows)

    def _under_attacks(
        self,
        attacks: Sequence[AttackSpec],
        loaded: Any,
        plain: Evaluation,
        start_model: Callable[[], Any],
    ) -> Iterator[tuple[str, Evaluation]]:
        """Yield the evaluations of a loaded model under attacks.

        Args:
            attacks: The attacks.
            loaded: The model, in evaluation mode.
            plain: Its evaluation without an attack.
            start_model: Loads the start model.
        """
        if not attacks:
            return
        # Attacks train a model. An evaluation without them need not import how.
        from unlearnbench.runs.attack_model import Tools
        from unlearnbench.runs.under_attack import attack_rows, evaluations_under
        from unlearnbench.training.fine_tuning import FineTuner

        evaluator = self.evaluator
        training_encoder = Encoder(
            evaluator.encoder.tokenizer,
            evaluator.encoder.template,
            TrainingSettings().max_length,
        )
        tuner = FineTuner(training_encoder, evaluator.pad)
        tools = Tools(attack_rows(self.rows, self.forget), tuner, start_model)
        for spec in attacks:
            attack = attack_from_spec(spec)
            yield from evaluations_under(spec.name, attack, loaded, evaluator, tools, plain)


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
    metrics: MetricChoices = NO_CHOICES,
) -> EvaluationSetup:
    """Load the rows and encode them with the tokenizer of `model`.

    If a launcher such as torchrun started this process, it joins the launcher's process group.

    Args:
        model: A folder, a hub id, or a model in memory. Further models need the same tokenizer.
        data: `tofu` (from the hub), a folder of TOFU's files, the name of another benchmark, or a
            benchmark with its settings.
        forget: The split: the fraction to forget, or its name.
        profile: Name of the evaluation rules, or your own rules.
        tokenizer: A folder, a hub id or a tokenizer. None: the model's own tokenizer. An adapter
            without one has its base's.
        template: As in `ModelSettings`. `auto` is the tokenizer's chat template, or `plain` if the
            tokenizer has none.
        template_args: Variables of the chat template (`date_string`), and `system_prompt`.
        dtype: float32, bfloat16 or float16, for a model that is loaded here.
        attention: sdpa (eager in models without SDPA), eager or flash_attention_2, for a model that
            is loaded here.
        trust_remote_code: Whether to run Python code that comes with the model or its tokenizer.
        adapter_base: The base of an adapter's folder. None: the base that the adapter names.
        precision: bf16 or fp16 (autocast if weights are float32), or fp32. None: bf16 on CUDA, and
            the weights' own precision elsewhere. Numbers of different precisions are not
            comparable.
        batch_tokens: Tokens of a batch, which change no number. None: a fast size for the device.
        metrics: Settings by metric, of metrics in addition to the usual ones. What they read is
            observed. To compute them, give them to `summarize` as `chosen`.

    Raises:
        PluginError: A metric is not known, or does not take its settings.
        EvaluationError: `data` is no benchmark, or a model in memory comes without a tokenizer.
        DataError: The rows are missing or damaged.
        ModelError: The tokenizer or its template cannot be used.
    """
    if torch.cuda.is_available():
        os.environ.update(cuda_variables())
    rules = get_profile(profile) if isinstance(profile, str) else profile
    benchmark = data_settings(data)
    plan = plan_of(rules, benchmark, metric_choices(metrics))
    rows = load_benchmark(benchmark, (forget,))
    sets = evaluation_sets(rows, forget, rules)
    join_group()  # under a launcher such as torchrun
    quiet_transformers()
    disable_cudnn_attention()
    is_named = isinstance(model, str | Path)
    settings = model_settings(
        str(model) if is_named else "in memory",
        template,
        dtype,
        attention=attention,
        trust_remote_code=trust_remote_code,
        adapter_base=adapter_base,
    )
    if tokenizer is None:
        if not is_named:
            raise EvaluationError(
                "evaluate_model: a model in memory has no tokenizer with it; give tokenizer="
            )
        tokenizer = find_tokenizer(str(model), settings)
    elif isinstance(tokenizer, str | Path):
        tokenizer = find_tokenizer(str(tokenizer), settings)
    evaluator = Evaluator(
        sets,
        tokenizer,
        resolve_template(template, tokenizer, template_args),
        rules,
        pad_id(tokenizer),
        batch_tokens,
        precision,
        benchmark.set_roles,
        extra=plan.extra,
        observations=plan.observations,
        context=_context_of(model, settings) if rules.reads_whole_context else None,
    )
    return EvaluationSetup(rows, forget, evaluator, settings)


def _context_of(model: Any, settings: ModelSettings) -> int | None:
    """Return the number of tokens that a model can read, or None if its config has no such number.

    The configuration of an adapter is its base's.
    """
    if not isinstance(model, str | Path):
        return context_length(model.config)
    return context_length(read_config(source_of(settings, str(model)), settings))


def data_settings(data: str | Benchmark) -> Benchmark:
    """Return the benchmark that the option `--data` stands for.

    Args:
        data: A benchmark's name (`wmdp`), its name with a folder or a data set of the hub
            (`muse=./rows`, `muse=ORG/NAME`), or a folder of TOFU's files.

    Raises:
        EvaluationError: It is none of these.
    """
    if isinstance(data, Benchmark):
        return data
    known = names("benchmarks")
    if data in known:
        return benchmark_named(data)
    source, _, place = data.partition("=")
    if source in known:
        setting = "hub_id" if _is_hub_id(source, place) else "path"
        kind: type[Benchmark] = load("benchmarks", source)
        if setting not in kind.model_fields:
            raise EvaluationError(
                f"data: {source} reads its rows from no folder, got {shortened(place)}; name "
                f"{source} only"
            )
        return benchmark_of({"source": source, setting: place})
    if "/" not in data and not Path(data).expanduser().exists():
        near = did_you_mean(data, known) or "; one in a file of its own needs --plugin FILE"
        raise EvaluationError(
            f"data: {shortened(data)} is no folder, and no benchmark of {', '.join(known)}{near}"
        )
    return benchmark_of({"source": "tofu", "path": data})


def _is_hub_id(source: str, place: str) -> bool:
    """Whether the place of a benchmark's rows is a data set of the hub, not a folder.

    Args:
        source: Name of the benchmark.
        place: `ORG/NAME` of the data set, or a folder.
    """
    looks_like_id = re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", place) is not None
    has_setting = "hub_id" in type(benchmark_named(source)).model_fields
    return looks_like_id and has_setting and not Path(place).expanduser().exists()


def model_settings(name: str, template: str, dtype: str, **others: Any) -> ModelSettings:
    """Return settings of a model that is only evaluated.

    Args:
        name: Folder or hub id.
        template: See `set_up`.
        dtype: See `set_up`.
        others: Further fields of `ModelSettings` by name.
    """
    return ModelSettings.model_validate(
        {"name": name, "base": name, "template": template, "dtype": dtype, **others}
    )


def find_tokenizer(location: str, settings: ModelSettings) -> Any:
    """Load the tokenizer of a model. An adapter's folder without a tokenizer has its base's."""
    return load_tokenizer(source_of(settings, location), settings)
