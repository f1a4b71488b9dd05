"""Evaluation of a model on the benchmark's sets: scores, greedy answers, ROUGE.

Scoring the true answer also verifies it as a draft of the greedy one; the rest is decoded. Plain
text, and sets of which no metric reads generated answers (`metric.SCORED_ONLY`), are only scored.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from unlearnbench.api.attack import SamplingAttack
from unlearnbench.api.benchmark import Question
from unlearnbench.api.callbacks import ProgressCallback
from unlearnbench.api.metric import GRADIENTS, MOMENTS, Reads, Role
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
from unlearnbench.base.deferred_warnings import warn_later
from unlearnbench.base.distributed import all_gather, world_size
from unlearnbench.base.errors import EvaluationError
from unlearnbench.base.out_of_memory import (
    empty_cache,
    is_out_of_memory,
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
from unlearnbench.models.encoding import Encoder, Row, Template
from unlearnbench.models.generation_settings import (
    LogitRules,
    generation_config_of,
    logit_settings,
    stop_ids,
)
from unlearnbench.models.limits import max_context
from unlearnbench.models.prompt_shift import ShiftedModel, Shifts
from unlearnbench.stats.text_overlap import rouge_recall

_Found = TypeVar("_Found")


@dataclass(frozen=True, eq=False)
class _Item:
    """One question as tokens."""

    question: Question
    rows: tuple[Row, ...]
    """The answer, the base of its truth ratio, perturbed answers; may repeat."""
    tree: Tree
    reference: str
    """The text of the true answer."""
    scored_text: str
    """The text of its scored tokens, which lack what a token shares with the prompt."""
    answered: bool
    """True if an answer is generated."""
    moments: bool
    """True if the moments of log-probabilities are computed for its true answer."""
    most: int
    """Tokens that its rows may have."""

    @property
    def prompt(self) -> tuple[int, ...]:
        """Tokens before an answer."""
        return self.tree.prompt

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return max(len(row.ids) for row in self.rows)


class _Greedy(NamedTuple):
    """The most probable tokens in place of a true answer's."""

    argmax_tokens: Sequence[int]
    tied: Sequence[bool]


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

        roles         what each set is for; one without a role is answered, and has no moments
        extra         further observations to make, see `metric.EXTRA`
        batch_tokens  tokens of a forward pass, approximately; default: fast on the device
        precision     default: bf16 on CUDA, the weights' own elsewhere, see `precision.py`
        plain         the rows as they are asked without an attack: `max_length` is for these, and a
                      row whose prompt is longer has as many tokens more
        observations  columns by token that metrics bring along
        context       tokens that the models can read, where the profile leaves `max_length` to
                      them; default: no bound
        """
        self.profile, self.pad, self.batch_tokens = profile, pad, batch_tokens
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
        self.sets: dict[SetName, list[_Item]] = {}
        for name, rows in sets.items():
            for row in rows:
                self.control.check_answers(row)
            role = self.roles.get(name)
            options = is_answered(rows, role), role in MOMENTS
            pairs = zip(rows, rows if plain is None else plain[name], strict=True)
            self.sets[name] = [self._item(q, other, *options) for q, other in pairs]

    def _item(self, question: Question, plain: Question, answered: bool, moments: bool) -> _Item:
        prompt, most = self.encoder.prompt(question), question.max_length or self.max_length
        if self.profile.reads_whole_context:  # a benchmark's own length may be longer, too
            most = min(most, self.max_length)
        elif question != plain:
            most += max(len(prompt) - len(self.encoder.prompt(plain)), 0)
        encoder = replace(self.encoder, max_length=most)
        rows = tuple(encoder.row(question, answer) for answer in question.scored_answers)
        reference = encoder.reference(rows[0], question)
        scored_text = encoder.scored_text(rows[0], question)
        tree = build_tree(rows, prompt)
        return _Item(question, rows, tree, reference, scored_text, answered, moments, most)

    def with_sets(
        self,
        sets: Mapping[SetName, Sequence[Question]],
        plain: Mapping[SetName, Sequence[Question]],
    ) -> Evaluator:
        """An evaluator of other rows by the same rules, without the `extra` observations.

        plain  the same rows as they are asked here
        """
        part = (self.encoder.tokenizer, self.encoder.template, self.profile, self.pad)
        options = (self.batch_tokens, self.precision, self.roles)
        return Evaluator(
            sets,
            *part,
            *options,
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
        """Entry of a record's provenance: what `eos_as_padding` came to."""
        if not self.profile.eos_as_padding:
            return {}
        items = [item for rows in self.sets.values() for item in rows]
        masked = sum(len(row.masked) for item in items for row in item.rows)
        result = {"masked_tokens": masked, "behind_answer": self.encoder.template.end}
        return {"eos_as_padding": result}

    def __call__(
        self,
        model: Any,
        previous: Evaluation | None = None,
        progress: ProgressCallback | None = None,
    ) -> Evaluation:
        """Evaluate `model`, which must be in evaluation mode; it may be a `ShiftedModel`.

        previous  an evaluation whose answers may be like this model's: of the epoch before, of the
                  fine-tuned model. It saves time and changes no number.
        progress  counts each question of this process when scored, and again when answered; one
                  that is only scored counts twice then

        In a torch.distributed group every process must call it, with the same model; the work is
        split, and every process returns the same evaluation.
        """
        result = self._retried(
            model, lambda tokens: self._evaluated(model, previous, progress, tokens)
        )
        return self._with_gradients(result, model) if "grad_norm" in self.extra else result

    def _retried(self, model: Any, work: Callable[[int], _Found]) -> _Found:
        """Call `work` with the tokens of a batch, and again with fewer until they fit."""
        inner = model.model if isinstance(model, ShiftedModel) else model
        tokens = self.batch_tokens or fast_batch_tokens(next(inner.parameters()).device)
        result, fitting = retry_with_fewer_tokens(work, tokens)
        if fitting != tokens:
            self.batch_tokens = fitting  # for good
        return result

    def _with_gradients(self, evaluation: Evaluation, model: Any) -> Evaluation:
        """Add the gradient norms of the sets that are compared by them."""
        names = [name for name in self.sets if self.roles.get(name) in GRADIENTS]
        items = [item for name in names for item in self.sets[name]]
        model, shifts = _unshifted(model, items)
        rows = [(item.rows[0], item.prompt) for item in items]
        try:
            norms = gradient_norms(model, rows, self.precision, shifts)
        except RuntimeError as error:
            if not is_out_of_memory(error):
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

        evaluation  of this evaluator; one from a log has no tokens, and gets no losses
        start       in evaluation mode, whole in each process
        """
        if evaluation.answers is None:
            return evaluation
        names = [name for name, answers in evaluation.answers.items() if answers]
        rows: list[Row] = []
        for name in names:
            for item, answer in zip(self.sets[name], evaluation.answers[name], strict=True):
                # Behind a cut answer, too, so that an empty one has a loss.
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

        evaluation  of this evaluator and the same model, whose greedy answers serve as drafts
        model       in evaluation mode; it may be a `ShiftedModel`
        """
        names = [
            name
            for name, items in self.sets.items()
            if self.roles.get(name) in attack.roles and items and all(i.answered for i in items)
        ]
        items = [item for name in names for item in self.sets[name]]
        if not items:
            return evaluation
        inner, shifts = _unshifted(model, items)
        prompts = self._prompts(items, _checked_context(inner, items), evaluation)
        longest = max([*(i.longest for i in items), *(len(p.ids) + p.limit for p in prompts)])

        def sampled(batch_tokens: int) -> list[list[Answer]]:
            predictor = self._predictor(inner, items[0].tree, longest, batch_tokens, shifts)
            with predictor.ready():
                return sampled_answers(predictor, prompts, attack, self._stops(inner))

        rows, sets = iter(self._retried(model, sampled)), dict(evaluation.sets)
        for name in names:
            items = self.sets[name]
            samples = self._samples([next(rows) for _ in items], items)
            sets[name] = replace(sets[name], samples=samples)
        return replace(evaluation, sets=sets)

    def _samples(self, answers: Sequence[Sequence[Answer]], items: Sequence[_Item]) -> Samples:
        """The texts of n lists of s answers, and their ROUGE-L recall against n references."""
        texts = [
            tuple(self._text(answer, item.question) for answer in sampled)
            for sampled, item in zip(answers, items, strict=True)
        ]
        rouge = np.full((len(answers), len(answers[0])), np.nan)
        rule = self.profile.words
        for i, (row, item) in enumerate(zip(texts, items, strict=True)):
            rouge[i] = rouge_recall([item.reference] * len(row), row, word_rule=rule)[1]
        rouge[~np.array([[answer.finite for answer in row] for row in answers])] = np.nan
        return Samples(tuple(texts), rouge)

    def _predictor(
        self, model: Any, trial: Tree, longest: int, batch_tokens: int, shifts: Shifts | None
    ) -> Predictor:
        """Predictions for rows of at most `longest` tokens. Collective."""
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
        # It depends on free memory, and batches have to be the same in all processes.
        predictor.slot_tokens = min(all_gather(predictor.slot_tokens))
        return predictor

    def _evaluated(
        self,
        model: Any,
        previous: Evaluation | None,
        progress: ProgressCallback | None,
        batch_tokens: int,
    ) -> Evaluation:
        items = [item for rows in self.sets.values() for item in rows]
        model, shifts = _unshifted(model, items)
        answered = [item for item in items if item.answered]
        stops = self._stops(model)
        rules = self._rules(model)
        prompts = self._prompts(answered, _checked_context(model, items), previous)
        if rules is not None:
            prompts = [
                replace(prompt, whole=self._whole_prompt(item.question))
                for item, prompt in zip(answered, prompts, strict=True)
            ]
        longest = max([*(i.longest for i in items), *(len(p.ids) + p.limit for p in prompts)])
        predictor = self._predictor(model, items[0].tree, longest, batch_tokens, shifts)
        count = _counter(progress, 2 * len(items))
        with predictor.ready():
            # What scoring finds most probable is no greedy answer where rules change logits.
            can_verify = rules is None
            kept = self._kept(predictor, answered, prompts if can_verify else [], stops)
            scores = _scores(predictor, items, count, self.observations, kept)
            verified = [
                self._verified(item, prompt, scores[item], stops)[0] if can_verify else Answer()
                for item, prompt in zip(answered, prompts, strict=True)
            ]
            pairs = zip(verified, prompts, strict=True)
            done_with = sum(not answer.unfinished(p.limit) for answer, p in pairs)
            count((done_with + len(items) - len(answered)) // world_size())
            answers, steps = decode(
                predictor, prompts, verified, stops, count, kept=kept.by_question, rules=rules
            )
        # ROUGE follows at the end: in a thread beside the model's work it would delay the start of
        # a GPU's operations, which needs the interpreter.
        sets: dict[SetName, SetEvaluation] = {}
        ids: dict[SetName, tuple[tuple[int, ...], ...]] = {}
        result = dict(zip(answered, answers, strict=True))
        for name, rows in self.sets.items():
            part = [result[item] for item in rows if item.answered]
            sets[name] = self._result(rows, [scores[item] for item in rows], part)
            ids[name] = tuple(tuple(answer.ids) for answer in part)
        statistics = replace(_statistics(scores, result, steps), remarks=self._remarks(model))
        return Evaluation(self.profile.id, sets, statistics, ids, predictor.precision)

    def _stops(self, model: Any) -> Stops:
        """What ends the answers of a model.

        A profile that follows `generate` stops at the ids of the model's `generation_config`, and
        nowhere else. Every other profile stops at the turn's end and EOS, too.
        """
        config = generation_config_of(model)
        if self.profile.follows_generate and config is not None:
            return Stops(stop_ids(config))
        ids = self.encoder.stops | stop_ids(config)
        return Stops(ids, self.encoder.end_text, self.encoder.decode)

    def _rules(self, model: Any) -> LogitRules | None:
        """What changes logits before a greedy token is chosen."""
        if not self.profile.follows_generate:
            return None
        return LogitRules.of(generation_config_of(model))

    def _remarks(self, model: Any) -> tuple[str, ...]:
        """Return a sentence about each text or setting that makes numbers other than they seem."""
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
        """The prompt with the tokens that are masked inside it, which `generate` counts."""
        return replace(self.encoder, eos_as_padding=False).prompt(question)

    def _prompts(
        self, items: Sequence[_Item], context: int | None, previous: Evaluation | None
    ) -> list[Prompt]:
        """One prompt for each of `items`, whose rows are not longer than `context`."""
        drafts = {} if previous is None else self._previous_answers(previous)
        prompts: list[Prompt] = []
        for item in items:
            new = item.question.max_new_tokens or self.profile.max_new_tokens
            limit = item.most - len(item.prompt) if new is None else new
            limit = limit if context is None else min(limit, context - len(item.prompt))
            like = tuple(row.ids[row.start :] for row in item.tree.rows)
            draft = drafts.get(item.question.question, ())
            prompts.append(Prompt(item.prompt, limit, draft, (draft, *like) if draft else like))
        return prompts

    def _previous_answers(self, previous: Evaluation) -> dict[str, tuple[int, ...]]:
        """The answers of `previous` by question, each with the token that ends it."""
        by_question: dict[str, tuple[int, ...]] = {}
        for name, result in previous.sets.items():
            if previous.answers is not None:
                answers = list(previous.answers[name])
            else:  # read from a log; encoded again, the tokens may differ and still serve as drafts
                texts = zip(result.questions, result.generated, strict=False)
                answers = [self._ids(question, text) for question, text in texts]
            for question, answer in zip(result.questions, answers, strict=False):
                by_question[question] = (*answer, *self.encoder.end_ids(Question(question, "")))
        return by_question

    def _ids(self, question: str, text: str) -> tuple[int, ...]:
        answer = text.removeprefix(self.encoder.template.label).strip()
        # A row may have been asked with a length of its own.
        row = replace(self.encoder, max_length=sys.maxsize).row(Question(question, answer))
        return tuple(token for token in row.ids[row.start :] if token not in self.encoder.stops)

    def _verified(
        self, item: _Item, prompt: Prompt, scores: QuestionScores | _Greedy, stops: Stops
    ) -> tuple[Answer, int]:
        """The greedy answer, as far as the true answer's scores verify it as a draft.

        And how many first tokens of its text they have read as decoding would.
        """
        answer, row = Answer(), item.tree.rows[0]
        if row.ids[: row.start] != prompt.ids:  # they were read in another context
            return answer, 0
        labels = row.ids[row.start :]
        right = answer.accept(labels, scores.argmax_tokens, scores.tied, prompt.limit, stops)
        return answer, len(prompt.ids) + min(right, len(answer.ids) - 1)

    def _kept(
        self,
        predictor: Predictor,
        items: Sequence[_Item],
        prompts: Sequence[Prompt],
        stops: Stops,
    ) -> KeptKeys:
        """What to keep of scoring for decoding the answers that it does not finish.

        prompts  of the items; none where scoring verifies no answer
        """

        def wanted(index: int, argmax: Sequence[int], tied: Sequence[bool]) -> int:
            prompt, greedy = prompts[index], _Greedy(argmax, tied)
            answer, read = self._verified(items[index], prompt, greedy, stops)
            return read if answer.ids and answer.unfinished(prompt.limit) else 0

        # Which process decodes an answer is not known before.
        is_kept = bool(prompts) and world_size() == 1
        return KeptKeys(wanted, predictor.kept_tokens if is_kept else 0)

    def _result(
        self, items: Sequence[_Item], scores: Sequence[QuestionScores], answers: Sequence[Answer]
    ) -> SetEvaluation:
        """One set; `answers` are of all its questions, or of none."""
        references = tuple(item.reference for item in items)
        generated = tuple(
            self._text(answer, item.question) for item, answer in zip(items, answers, strict=False)
        )
        rouge = np.full((2, len(items)), np.nan)
        if generated:
            rouge[:] = rouge_recall(references, generated, word_rule=self.profile.words)
        rouge[:, [i for i, answer in enumerate(answers) if not answer.finite]] = np.nan
        losses = [
            [s.losses[item.tree.rows.index(row)] for row in item.rows]
            for item, s in zip(items, scores, strict=True)
        ]
        # Both [n, 2 + k]: the answer, the base of its truth ratio, at most k perturbed answers.
        shape = len(items), max(len(item.rows) for item in items)
        loss, tokens = np.full(shape, np.nan), np.zeros(shape, dtype=np.int64)
        for i, row in enumerate(losses):
            loss[i, : len(row)] = [each.mean() for each in row]
            tokens[i, : len(row)] = [len(each) for each in row]
        return SetEvaluation(
            questions=tuple(item.question.question for item in items),
            generated=generated,
            references=references,
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
            word_rule=self.profile.words,
            **_of_questions([item.question for item in items]),
        )

    def _text(self, answer: Answer, question: Question) -> str:
        """A generated answer as text, up to the question's stops or the text that has ended it."""
        ends = (*question.stops, self.encoder.end_text) if answer.at_text else question.stops
        text = _stopped(self.encoder.untrimmed(tuple(answer.ids)), ends)
        # As in references: open-unlearning decodes the words that end a turn with the answer.
        return text if self.profile.eos_as_padding else self.encoder.without_end(text, question)

    def answer_tokens(
        self, rows: Sequence[Row], scores: Sequence[QuestionScores]
    ) -> AnswerTokens | None:
        """The values by token of true answers, without a label of the template in front of them."""
        starts = [row.start + row.label for row in rows]
        labels = [np.array(row.ids[start:]) for row, start in zip(rows, starts, strict=True)]

        def column(values: Iterable[Sequence[Any] | FloatArray], dtype: Any) -> Any:  # [T, …]
            parts = [np.asarray(v)[row.label :] for row, v in zip(rows, values, strict=True)]
            return np.concatenate([np.empty((0, *parts[0].shape[1:])), *parts]).astype(dtype)

        result = [s.moments for s in scores if s.moments is not None]
        moments = column(result, np.float32) if result else None  # [T, 2]
        greedy = column((s.argmax_tokens for s in scores), np.int64)
        losses = column((s.losses[0] for s in scores), np.float32)
        names = [observation.name for observation in self.observations]
        observed = column((s.observed for s in scores), np.float32) if names else None  # [T, O]
        if observed is not None:
            observed[np.isnan(losses)] = np.nan
        return AnswerTokens(
            lengths=np.array([len(label) for label in labels]),
            ended=np.array([row.ended for row in rows], dtype=np.bool_),
            end_lengths=_end_lengths(rows),
            loss=losses,
            hit=greedy == np.concatenate(labels),
            tied=column((s.tied for s in scores), np.bool_),
            mean_logprob=None if moments is None else moments[:, 0],
            logprob_variance=None if moments is None else moments[:, 1],
            observed={} if observed is None else dict(zip(names, observed.T, strict=True)),
        )


def _end_lengths(rows: Sequence[Row]) -> IntArray | None:
    """[n] tokens that end each turn; None if none has more than one, as in most templates."""
    counts = np.array([row.end_tokens for row in rows], dtype=np.int64)
    return counts if (counts > 1).any() else None


def _stopped(text: str, stops: Sequence[str]) -> str:
    # Before outer blanks are removed: an answer that begins with a stop is empty.
    for stop in stops:
        text = text.partition(stop)[0]
    return text.strip()


def _compressed_bytes(items: Sequence[_Item]) -> IntArray | None:
    """Bytes of each scored text after zlib; None where all scored texts are the references."""
    texts = [item.scored_text for item in items]
    if texts == [item.reference for item in items]:
        return None
    return np.array([len(zlib.compress(text.encode(errors="surrogatepass"))) for text in texts])


def _of_questions(rows: Sequence[Question]) -> dict[str, Any]:
    """The columns of a set that hold what its rows say, where they say it."""
    columns: dict[str, Any] = {}
    if any(row.labels for row in rows):
        columns["labels"] = tuple(row.labels for row in rows)
    if any(row.options for row in rows):
        columns["options"] = tuple(row.options for row in rows)
        columns["answer_index"] = np.array([row.answer_index for row in rows])
    return columns


def _unshifted(model: Any, items: Sequence[_Item]) -> tuple[Any, Shifts | None]:
    """The model itself, and the shifts of all prompts; plain text has none."""
    if not isinstance(model, ShiftedModel):
        return model, None
    prompts = [item.prompt for item in items if not item.question.is_plain_text]
    return model.model, Shifts(model.shift, prompts)


def _counter(progress: ProgressCallback | None, total: int) -> Callable[[int], None]:
    """A function that adds to the work done, of `total`."""
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        if progress is not None:
            progress(done, total)

    return count


def _checked_context(model: Any, items: Sequence[_Item]) -> int | None:
    """Tokens that `model` can read. Raises: EvaluationError where a row is longer."""
    context = max_context(model)
    for item in items:
        if context is not None and item.longest > context:
            where = item.question.place or f"question {row_text(item.question.opening)}"
            raise EvaluationError(
                f"{where}: {len(item.prompt)} tokens as a prompt, {item.longest} with its longest "
                f"answer, but the model's context is {context}; set max_length to {context} or "
                "less, or leave the question out"
            )
    return context


def _scores(
    predictor: Predictor,
    items: Sequence[_Item],
    count: Callable[[int], None],
    observations: Sequence[Observation],
    kept: KeptKeys,
) -> dict[_Item, QuestionScores]:
    """The scores of all items, in their order; `kept` is about those that are answered.

    Items that are only scored have batches of their own: with them or without, the others' batches,
    and so their numbers to the last digit, are the same.
    """
    scoress: dict[_Item, QuestionScores] = {}
    for answered in (True, False):
        group = [item for item in items if item.answered is answered]
        trees, moments = [item.tree for item in group], [item.moments for item in group]
        options = (moments, observations, kept if answered else None)
        scoress |= zip(group, score(predictor, trees, count, *options), strict=True)
    return {item: scoress[item] for item in items}


def _statistics(
    scores: Mapping[_Item, QuestionScores], answers: Mapping[_Item, Answer], steps: int
) -> Statistics:
    broken = [
        item.question.opening
        for item, result in scores.items()
        if (item in answers and not answers[item].finite)
        or not all(np.isfinite(each).all() for each in result.losses)
    ]
    return Statistics(
        generated=sum(answer.tokens for answer in answers.values()),
        drafted=sum(answer.drafted for answer in answers.values()),
        steps=steps,
        ties=tuple(item.question.question for item, answer in answers.items() if answer.tied),
        not_finite=broken[0] if broken else None,
        cut=sum(item.rows[0].cut for item in scores),
    )
