"""What every model of a benchmark is asked, and how its text is read."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from unlearnbench.bench import STATES
from unlearnbench.bench.plain import PlainEvaluator
from unlearnbench.data.benchmark import Question
from unlearnbench.data.encoding import TEMPLATES
from unlearnbench.data.loading import load_benchmark
from unlearnbench.errors import EvaluationError
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.evaluation.profiles import Profile, get_profile
from unlearnbench.evaluation.result import SetName
from unlearnbench.evaluation.sets import evaluation_sets
from unlearnbench.evaluation.standalone import data_settings
from unlearnbench.models.loading import pad_id
from unlearnbench.settings import DataSettings, Precision

Sets = Mapping[SetName, tuple[Question, ...]]

QUICK_ROWS = 4
QUICK_LENGTH = 64
"""Tokens of prompt and answer in a quick run."""


@dataclass(frozen=True)
class Settings:
    """What is measured; goes into the record as it is."""

    size: str
    dtype: str
    states: tuple[str, ...]
    data: str
    forget: float
    profile: str
    rows: int | None
    quick: bool

    @classmethod
    def from_arguments(cls, args: Namespace) -> Settings:
        """From the command line; raise EvaluationError for a state that a size does not have."""
        large = args.size == "1b" and not args.quick
        states = tuple(dict.fromkeys(args.states or (("random",) if large else STATES)))
        if large and states != ("random",):
            raise EvaluationError(
                f"--states {' '.join(states)} --size 1b: the large model is not trained here, so "
                "it is measured with random weights; leave --states out, or take --size tiny"
            )
        quick = bool(args.quick)
        rows: int | None = args.rows
        return cls(
            size="quick" if quick else args.size,
            dtype=args.dtype,
            states=states,
            data=args.data,
            forget=0.5 if quick and args.data == "synthetic" else args.forget,
            profile=args.profile,
            rows=QUICK_ROWS if quick and rows is None else rows,
            quick=quick,
        )

    @property
    def precision(self) -> Precision:
        """In which both ways evaluate: the weights' own."""
        return "bf16" if self.dtype == "bfloat16" else "fp32"

    def rules(self) -> Profile:
        """The profile, with what the settings override."""
        length = QUICK_LENGTH if self.quick else None
        return get_profile(self.profile, rows=self.rows, max_length=length)

    def sets(self) -> Sets:
        """The questions."""
        data = data_settings(self.data)
        if self.quick and self.data == "synthetic":
            data = DataSettings(authors=4, questions_per_author=2, pretraining_authors=0)
        return evaluation_sets(load_benchmark(data, (self.forget,)), self.forget, self.rules())


@dataclass(frozen=True, eq=False)
class Exam:
    """Questions, rules, and a tokenizer; the two evaluators are made from the same ones."""

    sets: Sets
    tokenizer: Any
    profile: Profile
    precision: Precision = "fp32"

    def plain(self) -> PlainEvaluator:
        """The usual way."""
        template, pad = TEMPLATES["plain"], pad_id(self.tokenizer)
        return PlainEvaluator(self.sets, self.tokenizer, template, self.profile, pad)

    def fast(self) -> Evaluator:
        """Ours."""
        template, pad = TEMPLATES["plain"], pad_id(self.tokenizer)
        return Evaluator(
            self.sets, self.tokenizer, template, self.profile, pad, precision=self.precision
        )

    def beginning(self) -> Exam:
        """Two questions of each set, for what is paid once in a process."""
        return replace(self, sets={name: rows[:2] for name, rows in self.sets.items()})
