"""The questions, rules and tokenizer of `bench evaluation`, shared by both evaluators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from unlearnbench.api.benchmark import Benchmark, Question, SplitKey
from unlearnbench.api.metric import SCORED_ONLY
from unlearnbench.api.observations import SetName
from unlearnbench.api.profile import Profile
from unlearnbench.bench import STATES
from unlearnbench.bench.plain_evaluator import PlainEvaluator
from unlearnbench.config.benchmark_section import benchmark_of
from unlearnbench.config.choices import Precision
from unlearnbench.config.profiles import get_profile
from unlearnbench.data.encoding import TEMPLATES, Template
from unlearnbench.data.loading import load_benchmark
from unlearnbench.errors import EvaluationError
from unlearnbench.evaluation.evaluate_model import data_settings
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.evaluation.sets import evaluation_sets
from unlearnbench.models.loading import pad_id

Sets = Mapping[SetName, tuple[Question, ...]]

QUICK_ROWS = 4
QUICK_LENGTH = 64
"""Tokens of prompt and answer in a quick run."""


@dataclass(frozen=True)
class EvaluationBenchSettings:
    """The options of the benchmark, stored in its record."""

    size: str = "tiny"
    dtype: str = "float32"
    states: tuple[str, ...] = STATES
    data: str = "synthetic"
    forget: SplitKey = 0.1
    profile: str = "tofu"
    rows: int | None = None
    quick: bool = False

    @classmethod
    def from_options(
        cls, *, states: Sequence[str] | None = None, **options: Any
    ) -> EvaluationBenchSettings:
        """Settings of the command line; raises EvaluationError for a state that a size lacks."""
        own = cls(**options)
        large = own.size == "1b" and not own.quick
        chosen = tuple(dict.fromkeys(states or (("random",) if large else STATES)))
        if large and chosen != ("random",):
            raise EvaluationError(
                f"--states {' '.join(chosen)} --size 1b: the large model is not trained here, so "
                "it is measured with random weights; leave --states out, or take --size tiny"
            )
        if own.quick:
            forget = 0.5 if own.data == "synthetic" else own.forget
            rows = QUICK_ROWS if own.rows is None else own.rows
            own = replace(own, size="quick", forget=forget, rows=rows)
        return replace(own, states=chosen)

    @property
    def precision(self) -> Precision:
        """The precision of both ways: that of the weights."""
        return "bf16" if self.dtype == "bfloat16" else "fp32"

    def rules(self) -> Profile:
        """The profile with the overrides of these settings."""
        length = QUICK_LENGTH if self.quick else None
        return get_profile(self.profile, rows=self.rows, max_length=length)

    def benchmark(self) -> Benchmark:
        """The benchmark whose rows are measured."""
        if self.quick and self.data == "synthetic":
            return benchmark_of({"authors": 4, "questions_per_author": 2, "pretraining_authors": 0})
        return data_settings(self.data)

    def sets(self) -> Sets:
        """The questions by evaluation set, but for sets that are only scored: all are answered."""
        data = self.benchmark()
        sets = evaluation_sets(load_benchmark(data, (self.forget,)), self.forget, self.rules())
        return {n: rows for n, rows in sets.items() if data.roles.get(n) not in SCORED_ONLY}


@dataclass(frozen=True, eq=False)
class EvaluationCase:
    """Questions, rules and a tokenizer, from which both evaluators are made."""

    sets: Sets
    tokenizer: Any
    profile: Profile
    precision: Precision = "fp32"

    def plain(self) -> PlainEvaluator:
        """The evaluator of the usual way."""
        return PlainEvaluator(*self.arguments)

    def fast(self) -> Evaluator:
        """The evaluator under test."""
        return Evaluator(*self.arguments, precision=self.precision)

    @property
    def arguments(self) -> tuple[Sets, Any, Template, Profile, int]:
        """The first arguments of either evaluator."""
        return self.sets, self.tokenizer, TEMPLATES["plain"], self.profile, pad_id(self.tokenizer)

    def warm_up(self) -> EvaluationCase:
        """Two questions of each set, as a warm-up."""
        return replace(self, sets={name: rows[:2] for name, rows in self.sets.items()})
