"""Evaluation of a model on the benchmark's sets: scores, greedy answers, ROUGE.

For each model, all questions are scored (`question_scores.py`). Scoring the true answer also
verifies it as a draft of the greedy answer. What is left of the greedy answers is decoded
(`generation.py`), and compared with the true ones by ROUGE.

Plain text is only scored, and so are sets of which no metric reads generated answers
(`metric.SCORED_ONLY`).
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from unlearnbench.api.attack import SamplingAttack
from unlearnbench.api.benchmark import Question
from unlearnbench.api.callbacks import ProgressCallback
from unlearnbench.api.metric import GRADIENTS, MOMENTS, OBSERVATIONS, Reads, Role
from unlearnbench.api.observation import Observation
from unlearnbench.api.observations import (
    AnswerTokens,
    Evaluation,
    FloatArray,
    IntArray,
    Samples,
    SetEvaluation,
    SetName,
    Statistics,
)
from unlearnbench.api.profile import Profile
from unlearnbench.base.computed_ahead import computed_ahead
from unlearnbench.base.deferred_warnings import warn_later
from unlearnbench.base.distributed import all_gather, world_size
from unlearnbench.base.errors import EvaluationError
from unlearnbench.base.out_of_memory import (
    can_repeat_smaller,
    empty_cache,
    raise_oom_everywhere,
    retry_with_fewer_tokens,
)
from unlearnbench.base.row_texts import row_text
from unlearnbench.config.precision import Precision
from unlearnbench.evaluation.answers import Answer, Prompt, Stops
from unlearnbench.evaluation.generation import decode, sampled_answers
from unlearnbench.evaluation.gradient_norms import gradient_norms
from unlearnbench.evaluation.predictor import Predictor
from unlearnbench.evaluation.prefix_tree import Tree, build_tree
from unlearnbench.evaluation.question_scores import KeptKeys, QuestionScores, score
from unlearnbench.evaluation.remarks import (
    control_remark,
    label_remark,
    prompt_remark,
    settings_remark,
)
from unlearnbench.evaluation.sets import is_answered
from unlearnbench.models.batching import fast_batch_tokens
from unlearnbench.models.control_text import ControlText
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.generation_settings import (
    LogitRules,
    generation_config_of,
    logit_settings,
    stop_ids,
)
from unlearnbench.models.limits import max_context
from unlearnbench.models.prompt_shift import ShiftedModel, Shifts
from unlearnbench.models.prompted_model import PromptedModel, bare_model
from unlearnbench.models.templates import Template
from unlearnbench.models.token_row import Row
from unlearnbench.stats.text_overlap import rouge_recall
from unlearnbench.stats.token_entropy import token_entropy

_T = TypeVar("_T")
_ENCODED_TOGETHER = 64
"""Rows whose texts are encoded together. Few keep the memory small if prompts are long."""


@dataclass(frozen=True, eq=False)
class _Item:
    """One question as tokens."""

    question: Question
    rows: tuple[Row, ...]
    """One row for each of: the answer, the base of its truth ratio, perturbed answers.

    Rows may repeat.
    """
    tree: Tree
    reference: str
    """The text of the true answer."""
    scored_text: str
    """The text of the true answer's scored tokens.

    It lacks the beginning of the answer if a token holds it together with the prompt's end.
    """
    answered: bool
    """Whether an answer is generated."""
    moments: bool
    """Whether the moments of log-probabilities are computed for its true answer."""
    most: int
    """Largest number of tokens of its rows."""
    added: int
    """Number of tokens by which its prompt is longer than the plain row's."""

    @property
    def prompt(self) -> tuple[int, ...]:
        """Tokens before an answer."""
        return self.tree.prompt

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return max(len(row.ids) for row in self.rows)


class _Greedy(NamedTuple):
    """The most probable token in place of each token of a true answer, and whether it was tied."""

    argmax_tokens: Sequence[int]
    tied: Sequence[bool]


class _Verified(NamedTuple):
    """A greedy answer as far as scoring has verified it."""

    answer: Answer
    read: int
    """Number of the first tokens of its text that scoring has read as decoding would."""


class Evaluator:
    """The sets as tokens, ready for any number of models with the same tokenizer."""

    def __init__(
        self,
        sets: Mapping[SetName, Sequence[Question]],
        tokenizer: Any,
        template: Template,
        profile: Profile,
        pad: int,
        batch_tokens: int | None = None,
        precision: Precision | None = None,
        roles: Mapping[SetName, Role] | None = None,
        extra: Collection[Reads] = frozenset(),
        plain: Mapping[SetName, Sequence[Question]] | None = None,
        observations: Sequence[Observation] = (),
        context: int | None = None,
    ) -> None:
        """Encode the sets.

        Args:
            sets: The questions of each evaluation set.
            tokenizer: The models' tokenizer.
            template: Text around questions and answers.
            profile: Evaluation rules.
            pad: Id of the padding token.
            batch_tokens: Tokens of a forward pass, approximately. Defaults to a fast number.
            precision: Defaults to bf16 on CUDA, and elsewhere to the weights' own dtype, see
                `precision.py`.
            roles: What each set is for. A set without a role is answered, and has no moments.
            extra: Further observations to make, see `metric.EXTRA`.
            plain: The rows as they are asked without an attack, and without a method that changes
                prompts. `max_length` holds for these. A row whose prompt is longer than its plain
                one may have as many more tokens.
            observations: Columns by token that metrics bring along.
            context: Tokens that the models can read, for profiles that leave `max_length` to the
                model. Defaults to no bound.
        """
        self.profile = profile
        self.pad = pad
        self.batch_tokens = batch_tokens
        self.context = context
        self.max_length = profile.max_length
        if profile.reads_whole_context and context is not None:
            self.max_length = context
        self.precision: Precision | None = precision
        self.extra = frozenset(extra)
        self.observations = tuple(observations)
        self.roles: Mapping[SetName, Role] = dict(roles or {})
        self.encoder = Encoder(
            tokenizer,
            template,
            self.max_length,
            profile.eos_after_cut,
            eos_as_padding=profile.eos_as_padding,
        )
        self.derived: dict[Hashable, Evaluator] = {}
        """Evaluators of the same rules that ask other questions, see `under_attack.py`."""
        self.control = ControlText.of(tokenizer)
        self.plain_rows: Mapping[SetName, Sequence[Question]] = sets if plain is None else plain
        """The rows as they are asked without an attack."""
        self.sets: dict[SetName, list[_Item]] = {}
        for name, rows in sets.items():
            for row in rows:
                self.control.check_answers(row)
            role = self.roles.get(name)
            answered = is_answered(rows, role)
            self.sets[name] = [
                self._item(encoder, question, plain, answered=answered, moments=role in MOMENTS)
                for encoder, question, plain in self._with_encoders(rows, self.plain_rows[name])
            ]

    def _with_encoders(
        self, rows: Sequence[Question], plain_rows: Sequence[Question]
    ) -> Iterator[tuple[Encoder, Question, Question]]:
        """Yield an encoder for each row, the row, and the row as it is asked without an attack."""
        parts = [
            slice(first, first + _ENCODED_TOGETHER)
            for first in range(0, len(rows), _ENCODED_TOGETHER)
        ]
        encoders = (self.encoder.encode_ahead(rows[part]) for part in parts)
        if getattr(self.encoder.tokenizer, "is_fast", False):
            # A fast tokenizer computes outside of Python. So it encodes a part in a thread while
            # this thread builds the trees of the part before. A tokenizer that is written in Python
            # would gain nothing, and may not bear a second thread.
            encoders = computed_ahead(encoders)
        for part, encoder in zip(parts, encoders, strict=True):
            for question, plain in zip(rows[part], plain_rows[part], strict=True):
                yield encoder, question, plain

    def _item(
        self,
        encoder: Encoder,
        question: Question,
        plain: Question,
        *,
        answered: bool,
        moments: bool,
    ) -> _Item:
        """Encode a question. `plain` is the question as it is asked without an attack."""
        prompt = encoder.prompt(question)
        most = question.max_length or self.max_length
        added = 0
        if question != plain:
            added = max(len(prompt) - len(encoder.prompt(plain)), 0)
        if self.profile.reads_whole_context:
            # A benchmark's own length may be longer than the context.
            most = min(most, self.max_length)
        else:
            most += added
        encoder = replace(encoder, max_length=most)
        rows = tuple(encoder.row(question, answer) for answer in question.scored_answers)
        reference = encoder.reference(rows[0], question)
        scored_text = encoder.scored_text(rows[0], question)
        tree = build_tree(rows, prompt)
        return _Item(question, rows, tree, reference, scored_text, answered, moments, most, added)

    def with_sets(
        self,
        sets: Mapping[SetName, Sequence[Question]],
        plain: Mapping[SetName, Sequence[Question]],
    ) -> Evaluator:
        """Return an evaluator of the rows as an attack asks them, by the same rules.

        Args:
            sets: The questions of each set.
            plain: The same questions as this evaluator asks them.
        """
        extra: set[Reads] = {name for name in self.extra if OBSERVATIONS[name].of_attacked_models}
        return self._with_sets(sets, plain, extra)

    def _with_sets(
        self,
        sets: Mapping[SetName, Sequence[Question]],
        plain: Mapping[SetName, Sequence[Question]],
        extra: Collection[Reads],
    ) -> Evaluator:
        """Return an evaluator of other rows that makes the observations `extra`."""
        return Evaluator(
            sets,
            self.encoder.tokenizer,
            self.encoder.template,
            self.profile,
            self.pad,
            self.batch_tokens,
            self.precision,
            self.roles,
            extra,
            plain=plain,
            observations=self.observations,
            context=self.context,
        )

    def references(self, names: Iterable[SetName]) -> dict[SetName, tuple[str, ...]]:
        """Return the true answers of the sets that have generated answers, as ROUGE reads them."""
        return {
            name: tuple(item.reference for item in self.sets[name] if item.answered)
            for name in names
            if name in self.sets
        }

    @property
    def padding_entry(self) -> dict[str, Any]:
        """Entry of a record's provenance: the effect of `eos_as_padding`; empty if it is off."""
        if not self.profile.eos_as_padding:
            return {}
        items = [item for rows in self.sets.values() for item in rows]
        masked = sum(len(row.masked) for item in items for row in item.rows)
        effect = {"masked_tokens": masked, "behind_answer": self.encoder.template.end}
        return {"eos_as_padding": effect}

    def __call__(
        self,
        model: Any,
        previous: Evaluation | None = None,
        progress: ProgressCallback | None = None,
    ) -> Evaluation:
        """Evaluate a model. Collective.

        In a torch.distributed group every process must call it, with the same model. The work is
        split, and every process returns the same evaluation.

        Args:
            model: In evaluation mode. It may be a `ShiftedModel` or a `PromptedModel`. The
                evaluation has the questions of this evaluator, whatever the model is asked.
            previous: An evaluation whose answers may be like this model's, such as that of the
                epoch before or of the start model. It saves time and changes no number.
            progress: Counts each question of this process when it is scored, and again when it is
                answered. A question that is only scored counts twice then.
        """
        if isinstance(model, PromptedModel):
            asking = self._asking(model)
            evaluation = asking(model.model, previous, progress)
            self.batch_tokens = asking.batch_tokens
            return self._with_own_questions(evaluation, asking)
        evaluation = self._retried(
            model, lambda tokens: self._evaluated(model, previous, progress, tokens)
        )
        return self._with_gradients(evaluation, model) if "grad_norm" in self.extra else evaluation

    def _asking(self, model: PromptedModel) -> Evaluator:
        """Return an evaluator of the same rows as a model is asked them."""
        asked: dict[SetName, tuple[Question, ...]] = {}
        for name, items in self.sets.items():
            asked[name] = model.asked([item.question for item in items])
        return self._with_sets(asked, self.plain_rows, self.extra)

    def _with_own_questions(self, evaluation: Evaluation, asking: Evaluator) -> Evaluation:
        """Return an evaluation of the rows as `asking` asks them, with this evaluator's questions.

        Results are compared by question with those of models that are asked the plain rows.
        """
        sets: dict[SetName, SetEvaluation] = {}
        own_question: dict[str, str] = {}
        for name, items in self.sets.items():
            questions = tuple(item.question.question for item in items)
            sets[name] = replace(evaluation.sets[name], questions=questions)
            asked = (item.question.question for item in asking.sets[name])
            own_question |= zip(asked, questions, strict=True)
        statistics = evaluation.statistics
        if statistics is not None:
            ties = tuple(own_question[question] for question in statistics.ties)
            statistics = replace(statistics, ties=ties)
        return replace(evaluation, sets=sets, statistics=statistics)

    def _retried(self, model: Any, work: Callable[[int], _T]) -> _T:
        """Call `work` with the number of tokens of a batch, and with fewer until they fit."""
        inner = bare_model(model)
        tokens = self.batch_tokens or fast_batch_tokens(next(inner.parameters()).device)
        outcome, fitting = retry_with_fewer_tokens(work, tokens)
        if fitting != tokens:
            # Later models begin with the number that fits.
            self.batch_tokens = fitting
        return outcome

    def _with_gradients(self, evaluation: Evaluation, model: Any) -> Evaluation:
        """Add gradient norms to the sets whose role is in `GRADIENTS`.

        If memory is short they are left out, with a warning.
        """
        names = [name for name in self.sets if self.roles.get(name) in GRADIENTS]
        items = [item for name in names for item in self.sets[name]]
        model, shifts = _unshifted(model, items)
        rows = [(item.rows[0], item.prompt) for item in items]
        try:
            norms = gradient_norms(model, rows, self.precision, shifts)
        except RuntimeError as error:
            if not can_repeat_smaller(error):
                raise
            empty_cache()
            warn_later(
                "mia_grad_norm has no values: there is no memory for a gradient of all weights "
                "beside the model; leave mia-grad-norm out of evaluation.metrics, or take a "
                "larger device"
            )
            return evaluation
        return self._with_column(evaluation, "grad_norm", names, norms)

    def _with_column(
        self, evaluation: Evaluation, column: str, names: Sequence[SetName], values: FloatArray
    ) -> Evaluation:
        """Add a column to the sets `names`, from the values of all their questions."""
        sizes = [len(self.sets[name]) for name in names]
        parts = zip(names, np.split(values, np.cumsum(sizes)[:-1]), strict=True)
        changed: dict[SetName, SetEvaluation] = {}
        for name, part in parts:
            new: dict[str, Any] = {column: part}
            changed[name] = replace(evaluation.sets[name], **new)
        return replace(evaluation, sets={**evaluation.sets, **changed})

    def with_start_losses(self, evaluation: Evaluation, start: Any) -> Evaluation:
        """Add the losses of greedy answers under the start model. Collective.

        Args:
            evaluation: An evaluation of this evaluator. It is returned as it is if it has no
                tokens, because it was read from a log.
            start: The start model, in evaluation mode and whole in each process.
        """
        if evaluation.answers is None:
            return evaluation
        names = [name for name, answers in evaluation.answers.items() if answers]
        rows: list[Row] = []
        for name in names:
            for item, answer in zip(self.sets[name], evaluation.answers[name], strict=True):
                # The end is added also to a cut answer, so that an empty answer has a loss.
                ids = (*item.prompt, *answer, *self.encoder.end_ids(item.question))
                rows.append(Row(ids, max(len(item.prompt), 1)))
        trees = [build_tree((row,), row.ids[: row.start]) for row in rows]
        longest = max(len(row.ids) for row in rows)

        def losses(batch_tokens: int) -> FloatArray:
            predictor = self._predictor(start, trees[0], longest, batch_tokens, None)
            with predictor.ready():
                return np.array([entry.losses[0].mean() for entry in score(predictor, trees)])

        return self._with_column(evaluation, "start_loss", names, self._retried(start, losses))

    def with_samples(
        self,
        evaluation: Evaluation,
        model: Any,
        attack: SamplingAttack,
    ) -> Evaluation:
        """Add sampled answers to the sets that the attack is for. Collective.

        Args:
            evaluation: An evaluation of this evaluator and the same model. Its greedy answers serve
                as drafts.
            model: In evaluation mode. It may be a `ShiftedModel` or a `PromptedModel`.
            attack: Number of samples, distribution and seed.
        """
        if isinstance(model, PromptedModel):
            asking = self._asking(model)
            sampled_evaluation = asking.with_samples(evaluation, model.model, attack)
            self.batch_tokens = asking.batch_tokens
            return sampled_evaluation
        names: list[SetName] = []
        for name, items in self.sets.items():
            is_meant = self.roles.get(name) in attack.roles
            if is_meant and items and all(item.answered for item in items):
                names.append(name)
        items = [item for name in names for item in self.sets[name]]
        if not items:
            return evaluation
        inner, shifts = _unshifted(model, items)
        prompts = self._prompts(items, _checked_context(inner, items), evaluation)
        longest = _longest_text(items, prompts)

        def sampled(batch_tokens: int) -> list[list[Answer]]:
            predictor = self._predictor(inner, items[0].tree, longest, batch_tokens, shifts)
            with predictor.ready():
                return sampled_answers(predictor, prompts, attack, self._stops(inner))

        answers = iter(self._retried(model, sampled))
        sets = dict(evaluation.sets)
        for name in names:
            items_of_set = self.sets[name]
            samples = self._samples([next(answers) for _ in items_of_set], items_of_set)
            sets[name] = replace(sets[name], samples=samples)
        return replace(evaluation, sets=sets)

    def _samples(self, answers: Sequence[Sequence[Answer]], items: Sequence[_Item]) -> Samples:
        """Return texts and ROUGE-L recall of s samples for each of n items.

        Recall is NaN for a sample that stopped because logits were not finite.
        """
        texts: list[tuple[str, ...]] = []
        rouge = np.full((len(answers), len(answers[0])), np.nan)
        for i, (samples, item) in enumerate(zip(answers, items, strict=True)):
            texts.append(tuple(self._text(answer, item.question) for answer in samples))
            references = [item.reference] * len(samples)
            rouge[i] = rouge_recall(references, texts[-1], word_rule=self.profile.words)[1]
            rouge[i, [not answer.finite for answer in samples]] = np.nan
        return Samples(tuple(texts), rouge)

    def _predictor(
        self, model: Any, trial: Tree, longest: int, batch_tokens: int, shifts: Shifts | None
    ) -> Predictor:
        """Return a predictor for rows of at most `longest` tokens. Collective."""
        predictor = raise_oom_everywhere(
            lambda: Predictor(
                model,
                trial,
                pad=self.pad,
                longest=longest,
                batch_tokens=batch_tokens,
                shifts=shifts,
                precision=self.precision,
            )
        )
        # The number depends on free memory, and batches have to be the same in all processes.
        predictor.slot_tokens = min(all_gather(predictor.slot_tokens))
        return predictor

    def _evaluated(
        self,
        model: Any,
        previous: Evaluation | None,
        progress: ProgressCallback | None,
        batch_tokens: int,
    ) -> Evaluation:
        """Evaluate a model with batches of `batch_tokens` tokens, see `__call__`."""
        items = [item for rows in self.sets.values() for item in rows]
        answered = [item for item in items if item.answered]
        model, shifts = _unshifted(model, items)
        stops = self._stops(model)
        rules = self._rules(model)
        prompts = self._prompts(answered, _checked_context(model, items), previous)
        if rules is not None:
            prompts = [
                replace(prompt, whole=self._whole_prompt(item.question))
                for item, prompt in zip(answered, prompts, strict=True)
            ]
        # If rules change logits, the tokens that scoring finds most probable are no greedy answer.
        can_verify = rules is None
        longest = _longest_text(items, prompts)
        predictor = self._predictor(model, items[0].tree, longest, batch_tokens, shifts)
        count = _counter(progress, 2 * len(items))
        with predictor.ready():
            kept = self._kept(predictor, answered, prompts if can_verify else [], stops)
            scores = _scores(predictor, items, count, self.observations, kept)
            verified: list[Answer] = []
            finished = 0
            for item, prompt in zip(answered, prompts, strict=True):
                answer = Answer()
                if can_verify:
                    answer = self._verified(item, prompt, scores[item], stops).answer
                verified.append(answer)
                finished += not answer.unfinished(prompt.limit)
            only_scored = len(items) - len(answered)
            count((finished + only_scored) // world_size())
            answers, steps = decode(
                predictor, prompts, verified, stops, count, kept=kept.by_question, rules=rules
            )

        # ROUGE follows at the end. In a thread during the model's work it would delay the start of
        # a GPU's operations, which needs the interpreter.
        answer_of = dict(zip(answered, answers, strict=True))
        sets: dict[SetName, SetEvaluation] = {}
        ids: dict[SetName, tuple[tuple[int, ...], ...]] = {}
        for name, items_of_set in self.sets.items():
            answers_of_set = [answer_of[item] for item in items_of_set if item.answered]
            scores_of_set = [scores[item] for item in items_of_set]
            sets[name] = self._set_evaluation(items_of_set, scores_of_set, answers_of_set)
            ids[name] = tuple(tuple(answer.ids) for answer in answers_of_set)
        statistics = _statistics(scores, answer_of, steps)
        statistics = replace(statistics, remarks=self._remarks(model))
        return Evaluation(self.profile.id, sets, statistics, ids, predictor.precision)

    def _stops(self, model: Any) -> Stops:
        """Return the tokens and the text that end a model's answers.

        A profile that follows `generate` stops only at the ids of the model's `generation_config`.
        Every other profile stops also at the turn's end and at EOS.
        """
        config = generation_config_of(model)
        if self.profile.follows_generate and config is not None:
            return Stops(stop_ids(config))
        ids = self.encoder.stops | stop_ids(config)
        return Stops(ids, self.encoder.end_text, self.encoder.decode)

    def _rules(self, model: Any) -> LogitRules | None:
        """Return the rules that change logits before a greedy token is chosen; None without any."""
        if not self.profile.follows_generate:
            return None
        return LogitRules.of(generation_config_of(model))

    def _remarks(self, model: Any) -> tuple[str, ...]:
        """Return a sentence about each text or setting that may mislead who reads the numbers."""
        items = [item for rows in self.sets.values() for item in rows]
        ignored = logit_settings(generation_config_of(model))
        template = self.encoder.template
        in_template = [
            item
            for item in items
            if item.question.format == "chat" and item.question.answer_index is None
        ]
        # The label of an answer whose beginning is given is part of the prompt.
        labelled = [item.rows[0] for item in in_template if not item.question.prefix]
        sentences = (
            label_remark(template, labelled, len(self.encoder.text(template.tag))),
            prompt_remark(template) if in_template else "",
            control_remark(self.control, [item.question for item in items]),
            "" if self.profile.follows_generate else settings_remark(ignored, self.profile.name),
        )
        return tuple(filter(None, sentences))

    def _whole_prompt(self, question: Question) -> tuple[int, ...]:
        """Return the prompt with the tokens that are masked inside it, which `generate` counts."""
        return replace(self.encoder, eos_as_padding=False).prompt(question)

    def _prompts(
        self, items: Sequence[_Item], context: int | None, previous: Evaluation | None
    ) -> list[Prompt]:
        """Return a prompt for each item.

        Args:
            items: Questions whose rows are not longer than `context`.
            context: Tokens that the model can read; None without a bound.
            previous: An evaluation whose answers serve as drafts.
        """
        drafts = {} if previous is None else self._previous_answers(previous)
        prompts: list[Prompt] = []
        for item in items:
            limit = item.question.max_new_tokens or self.profile.max_new_tokens
            if limit is None:
                limit = item.most - len(item.prompt)
            if context is not None:
                limit = min(limit, context - len(item.prompt))
            similar = tuple(row.ids[row.start :] for row in item.tree.rows)
            draft = drafts.get(item.question.question, ())
            if draft:
                similar = (draft, *similar)
            prompts.append(Prompt(item.prompt, limit, draft, similar))
        return prompts

    def _previous_answers(self, previous: Evaluation) -> dict[str, tuple[int, ...]]:
        """Return the answers of an evaluation by question, each with the token that ends it."""
        by_question: dict[str, tuple[int, ...]] = {}
        for name, evaluated in previous.sets.items():
            if previous.answers is not None:
                answers = list(previous.answers[name])
            else:
                # A log has only texts. Encoded again, their tokens may differ and still serve.
                texts = zip(evaluated.questions, evaluated.generated, strict=False)
                answers = [self._ids(question, text) for question, text in texts]
            for question, answer in zip(evaluated.questions, answers, strict=False):
                by_question[question] = (*answer, *self.encoder.end_ids(Question(question, "")))
        return by_question

    def _ids(self, question: str, text: str) -> tuple[int, ...]:
        """Encode the text of a generated answer, without the tokens that end it."""
        answer = text.removeprefix(self.encoder.template.label).strip()
        # A row may have been asked with a length of its own.
        row = replace(self.encoder, max_length=sys.maxsize).row(Question(question, answer))
        return tuple(token for token in row.ids[row.start :] if token not in self.encoder.stops)

    def _verified(
        self, item: _Item, prompt: Prompt, scores: QuestionScores | _Greedy, stops: Stops
    ) -> _Verified:
        """Return the greedy answer as far as the true answer's scores verify it as a draft."""
        answer = Answer()
        row = item.tree.rows[0]
        if row.ids[: row.start] != prompt.ids:
            # The true answer was read behind another prompt, so its scores say nothing.
            return _Verified(answer, 0)
        draft = row.ids[row.start :]
        right = answer.accept(draft, scores.argmax_tokens, scores.tied, prompt.limit, stops)
        return _Verified(answer, len(prompt.ids) + min(right, len(answer.ids) - 1))

    def _kept(
        self,
        predictor: Predictor,
        items: Sequence[_Item],
        prompts: Sequence[Prompt],
        stops: Stops,
    ) -> KeptKeys:
        """Return which attention keys scoring keeps, so that decoding need not read them again.

        Scoring reads the true answer, and so verifies it as the model's greedy answer, up to the
        first token that differs. Decoding continues there. If scoring has already found the end of
        an answer, or nothing of it, none of its keys are kept.

        Args:
            predictor: The model.
            items: The questions that are answered.
            prompts: Their prompts. Empty if scoring verifies no answer, and no keys are kept then.
            stops: Tokens and text that end an answer.
        """

        def wanted(index: int, argmax: Sequence[int], tied: Sequence[bool]) -> int:
            """Return how many tokens of a question, prompt included, decoding continues after."""
            prompt = prompts[index]
            verified = self._verified(items[index], prompt, _Greedy(argmax, tied), stops)
            is_begun = bool(verified.answer.ids) and verified.answer.unfinished(prompt.limit)
            return verified.read if is_begun else 0

        # With several processes it is not known yet which one decodes an answer.
        is_kept = bool(prompts) and world_size() == 1
        return KeptKeys(wanted, predictor.kept_tokens if is_kept else 0)

    def _set_evaluation(
        self, items: Sequence[_Item], scores: Sequence[QuestionScores], answers: Sequence[Answer]
    ) -> SetEvaluation:
        """Return one set; `answers` are those of all its questions, or empty."""
        references = tuple(item.reference for item in items)
        generated = tuple(
            self._text(answer, item.question) for item, answer in zip(items, answers, strict=False)
        )
        rouge = np.full((2, len(items)), np.nan)
        if generated:
            rouge[:] = rouge_recall(references, generated, word_rule=self.profile.words)
        not_finite = [i for i, answer in enumerate(answers) if not answer.finite]
        rouge[:, not_finite] = np.nan
        # Both [n, 2 + k]: the answer, the base of its truth ratio, at most k perturbed answers.
        shape = len(items), max(len(item.rows) for item in items)
        loss = np.full(shape, np.nan)
        tokens = np.zeros(shape, dtype=np.int64)
        for i, (item, question_scores) in enumerate(zip(items, scores, strict=True)):
            # The tree has each distinct row once.
            for j, row in enumerate(item.rows):
                token_losses = question_scores.losses[item.tree.rows.index(row)]
                loss[i, j] = token_losses.mean()
                tokens[i, j] = len(token_losses)
        return SetEvaluation(
            questions=tuple(item.question.question for item in items),
            generated=generated,
            references=references,
            sentences=_sentences(items),
            compressed_bytes=_compressed_bytes(items),
            answer_loss=loss[:, 0],
            answer_tokens=tokens[:, 0],
            base_loss=loss[:, 1],
            base_tokens=tokens[:, 1],
            perturbed_loss=loss[:, 2:],
            perturbed_tokens=tokens[:, 2:],
            rouge1_recall=rouge[0],
            rouge_l_recall=rouge[1],
            token_columns=self.answer_tokens([item.rows[0] for item in items], scores),
            token_entropy=self._token_entropies(generated, answers),
            word_rule=self.profile.words,
            **_of_questions([item.question for item in items]),
        )

    def _token_entropies(
        self, generated: Sequence[str], answers: Sequence[Answer]
    ) -> FloatArray | None:
        """Return the entropy of each answer's tokens [n]; None if no metric reads it.

        Args:
            generated: Texts of the answers. They are encoded again, as in the metric's source.
            answers: The same answers as tokens.
        """
        if "token_entropy" not in self.extra or not generated:
            return None
        tokenize = self.encoder.tokenizer.tokenize
        entropies = np.array([token_entropy(tokenize(text)) for text in generated])
        entropies[[not answer.finite for answer in answers]] = np.nan
        return entropies

    def _text(self, answer: Answer, question: Question) -> str:
        """Return an answer as text, up to the question's stops or the text that has ended it."""
        ends = (*question.stops, self.encoder.end_text) if answer.at_text else question.stops
        text = _stopped(self.encoder.untrimmed(tuple(answer.ids)), ends)
        # As in references: open-unlearning decodes the words that end a turn with the answer.
        return text if self.profile.eos_as_padding else self.encoder.without_end(text, question)

    def answer_tokens(
        self, rows: Sequence[Row], scores: Sequence[QuestionScores]
    ) -> AnswerTokens | None:
        """Return the values by token of true answers, without a label of the template before them.

        Args:
            rows: The true answers of n questions.
            scores: Their scores.
        """
        starts = [row.start + row.label for row in rows]
        labels = [np.array(row.ids[start:]) for row, start in zip(rows, starts, strict=True)]

        def column(values: Iterable[Sequence[Any] | FloatArray], dtype: Any) -> Any:
            """Concatenate the values of all answers to [T, …]."""
            parts = [np.asarray(v)[row.label :] for row, v in zip(rows, values, strict=True)]
            return np.concatenate([np.empty((0, *parts[0].shape[1:])), *parts]).astype(dtype)

        moments_of_rows = [entry.moments for entry in scores if entry.moments is not None]
        moments = column(moments_of_rows, np.float32) if moments_of_rows else None  # [T, 2]
        greedy = column((entry.argmax_tokens for entry in scores), np.int64)
        losses = column((entry.losses[0] for entry in scores), np.float32)
        observed: dict[str, Any] = {}
        if self.observations:
            values = column((entry.observed for entry in scores), np.float32)  # [T, O]
            values[np.isnan(losses)] = np.nan
            names = [observation.name for observation in self.observations]
            observed = dict(zip(names, values.T, strict=True))
        return AnswerTokens(
            lengths=np.array([len(label) for label in labels]),
            ended=np.array([row.ended for row in rows], dtype=np.bool_),
            end_lengths=_end_lengths(rows),
            loss=losses,
            hit=greedy == np.concatenate(labels),
            tied=column((entry.tied for entry in scores), np.bool_),
            mean_logprob=None if moments is None else moments[:, 0],
            logprob_variance=None if moments is None else moments[:, 1],
            observed=observed,
        )


def _end_lengths(rows: Sequence[Row]) -> IntArray | None:
    """Return the number of tokens that end each turn [n].

    None if no turn has more than one, as in most templates.
    """
    counts = np.array([row.end_tokens for row in rows], dtype=np.int64)
    return counts if (counts > 1).any() else None


def _stopped(text: str, stops: Sequence[str]) -> str:
    """Return a text up to its first stop, without outer blanks."""
    # Blanks are removed at the end, because a stop may begin with one, such as a line break. An
    # answer that begins with the stop is empty.
    for stop in stops:
        text = text.partition(stop)[0]
    return text.strip()


def _compressed_bytes(items: Sequence[_Item]) -> IntArray | None:
    """Return the bytes of each scored text after zlib; None if all texts are the references."""
    texts = [item.scored_text for item in items]
    if texts == [item.reference for item in items]:
        return None
    return np.array([len(zlib.compress(text.encode(errors="surrogatepass"))) for text in texts])


def _sentences(items: Sequence[_Item]) -> tuple[str, ...]:
    """Return the true answers as whole sentences; empty if no row has one."""
    if not any(item.question.sentence_answer for item in items):
        return ()
    return tuple(item.question.sentence_answer or item.reference for item in items)


def _of_questions(rows: Sequence[Question]) -> dict[str, Any]:
    """Return the columns of a set that come from its rows and not from the model.

    Records have them, so that metrics need the rows no more: options and the index of the right one
    for multiple choice, and `Question.labels`, such as the subject of a question, by which metrics
    give a number for each group.

    Returns:
        Fields of `SetEvaluation`. A column is left out if no row has it.
    """
    columns: dict[str, Any] = {}
    if any(row.labels for row in rows):
        columns["labels"] = tuple(row.labels for row in rows)
    if any(row.options for row in rows):
        columns["options"] = tuple(row.options for row in rows)
        columns["answer_index"] = np.array([row.answer_index for row in rows])
    return columns


def _unshifted(model: Any, items: Sequence[_Item]) -> tuple[Any, Shifts | None]:
    """Return the model that computes, and what a method adds to the embeddings of its prompts.

    Only a method such as ECO, which changes prompts in place of weights, makes a `ShiftedModel`:
    its inner model computes. Any other model computes by itself, and the second value is None.
    Plain text has no prompt to shift.
    """
    if not isinstance(model, ShiftedModel):
        return model, None
    prompts = [item.prompt for item in items if not item.question.is_plain_text]
    return model.model, Shifts(model.shift, prompts)


def _counter(progress: ProgressCallback | None, total: int) -> Callable[[int], None]:
    """Return a function that adds to the work done, and reports it as a part of `total`."""
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        if progress is not None:
            progress(done, total)

    return count


def _longest_text(items: Sequence[_Item], prompts: Sequence[Prompt]) -> int:
    """Return the tokens of the longest row, or of the longest prompt with its answer."""
    rows = [item.longest for item in items]
    answered = [len(prompt.ids) + prompt.limit for prompt in prompts]
    return max(rows + answered)


def _checked_context(model: Any, items: Sequence[_Item]) -> int | None:
    """Return the number of tokens that a model can read; None without a bound.

    Raises:
        EvaluationError: A row is longer.
    """
    context = max_context(model)
    for item in items:
        if context is None or item.longest <= context:
            continue
        where = item.question.place or f"question {row_text(item.question.opening)}"
        fix = f"set max_length to {context} or less, or leave the question out"
        if item.added:
            fix = (
                f"{item.added} of them are text that the method or the attack puts around the "
                "question; let it show less, or set a smaller max_length"
            )
        raise EvaluationError(
            f"{where}: {len(item.prompt)} tokens as a prompt, {item.longest} with its longest "
            f"answer, but the model's context is {context}; {fix}"
        )
    return context


def _scores(
    predictor: Predictor,
    items: Sequence[_Item],
    count: Callable[[int], None],
    observations: Sequence[Observation],
    kept: KeptKeys,
) -> dict[_Item, QuestionScores]:
    """Return the scores of all items, in their order.

    Items that are only scored have batches of their own. So the batches of answered items, and
    their numbers to the last digit, do not depend on which other sets there are.

    Args:
        predictor: The model, ready.
        items: All questions.
        count: Is called with the number of questions that this process has scored.
        observations: Are made of the tokens of true answers.
        kept: What is kept of the items that are answered.
    """
    scores: dict[_Item, QuestionScores] = {}
    for answered in (True, False):
        group = [item for item in items if item.answered is answered]
        scores_of_group = score(
            predictor,
            [item.tree for item in group],
            count,
            [item.moments for item in group],
            observations,
            kept if answered else None,
        )
        scores |= zip(group, scores_of_group, strict=True)
    return {item: scores[item] for item in items}


def _statistics(
    scores: Mapping[_Item, QuestionScores], answers: Mapping[_Item, Answer], steps: int
) -> Statistics:
    """Return counts and remarks about an evaluation, see `Statistics`."""
    not_finite: list[str] = []
    for item, question_scores in scores.items():
        has_finite_losses = all(np.isfinite(losses).all() for losses in question_scores.losses)
        has_finite_answer = item not in answers or answers[item].finite
        if not (has_finite_losses and has_finite_answer):
            not_finite.append(item.question.opening)
    return Statistics(
        generated=sum(answer.tokens for answer in answers.values()),
        drafted=sum(answer.drafted for answer in answers.values()),
        steps=steps,
        ties=tuple(item.question.question for item, answer in answers.items() if answer.tied),
        not_finite=not_finite[0] if not_finite else None,
        cut=sum(item.rows[0].cut for item in scores),
    )
