"""ICUL: show forget rows with wrong answers before the question."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Literal

from unlearnbench.api.benchmark import Question
from unlearnbench.api.defender_rows import is_asked
from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.inference_method import DefenderRows, PromptWrapper


class ICUL(PromptWrapper):
    """In-context unlearning: Pawelczyk et al. 2024, arXiv:2310.07579.

    x' = (f₁, w₁) … (f_k, w_k) (r₁, a₁) … (r_l, a_l) x

    x, x'  the question, and what the model is asked in its place
    f, w   questions of k forget rows, each with a wrong answer;  k  `forget_rows`
    r, a   questions of l retain rows, with their true answers;  l  `retain_rows`

    No weight changes. Each pair is a turn of the model's template. In front of a text that is
    continued, pairs are texts with blank lines between them. If the prompt has turns of its own,
    the pairs stand in front of them. Only training rows are shown. All draws depend only on the
    seed of the run and on the question.

    In the paper, the task is to classify texts, the label of a text to forget is flipped, and texts
    with their true labels are drawn from the training rows. All texts to forget stand in front of
    every question, which is possible only for few of them. Here, `choose` says which k forget rows
    are shown. By default, they are the rows whose questions share most rare words with the
    question, and a forget row's own question is among them.

    Answers to questions have no opposite, so `wrong` says what a wrong answer is. With `retain`, it
    is the answer of the retain row with the most alike question, such as another author's place of
    birth. With `forget`, it is the answer of the next forget row, as in Jounce-IO's code. The
    prompt then has true answers of forget rows, and may even have the one that is asked for: in 5
    of the 400 questions of TOFU's forget10 with Jounce-IO's settings, in 48 with `nearest`. With
    `refusal`, it is a refusal. An option of a multiple choice is replaced by one of its other
    options, whatever `wrong` says.

    Literature: the paper shows one text to forget and 1, 3 or 5 others (`n_ctxt` 2, 4, 6), which
    is `{forget_rows: 1, retain_rows: 5}`. [source: MartinPawel/In-Context-Unlearning@e740b1d
    eval.py, eval_sbatches_ubs1] For TOFU, Jounce-IO shows the first rows of both files, and never
    the row that is asked: `{forget_rows: 5, retain_rows: 4, choose: first, wrong: forget,
    show_asked: false}`. [source: Jounce-IO/open-unlearning@5618804 src/evals/guardrails.py]
    """

    family = "prompts"

    forget_rows: int = setting(
        5,
        "number of forget rows with wrong answers, k",
        "Jounce-IO/open-unlearning@5618804 src/evals/guardrails.py, K",
        ge=1,
        le=100,
    )
    retain_rows: int = setting(
        4,
        "number of retain rows with true answers, l",
        "Jounce-IO/open-unlearning@5618804 src/evals/guardrails.py, L",
        ge=0,
        le=100,
    )
    choose: Literal["nearest", "random", "first"] = setting(
        "nearest",
        "which forget rows are shown: those with the most alike questions, drawn ones for each "
        "question, or the first ones. Retain rows are drawn, or the first ones with `first`",
        "ours: the paper shows the texts to forget themselves, and there is no room for all",
    )
    wrong: Literal["retain", "forget", "refusal"] = setting(
        "retain",
        "wrong answer of a forget row: the answer of the most alike retain row, the answer of the "
        "next forget row, or a refusal",
        "ours: like a flipped label, it is an answer of the same kind and nothing to forget",
    )
    show_asked: bool = setting(
        True,
        "whether a forget row may be shown in front of its own question",
        "arXiv:2310.07579, in which the text to forget is in its own context",
    )

    def asked(self, row: Question, rows: DefenderRows) -> Question:
        """Return a row with forget rows and retain rows in front of it. Plain text stays."""
        if row.is_plain_text:
            return row
        forget_pairs = islice(self._forget_pairs(row, rows), self.forget_rows)
        retain_pairs = islice(self._retain_pairs(row, rows), self.retain_rows)
        return replace(row, examples=(*forget_pairs, *retain_pairs, *row.examples))

    def _forget_pairs(self, row: Question, rows: DefenderRows) -> Iterator[tuple[str, str]]:
        """Yield questions of forget rows with wrong answers. Rows without one are left out."""
        for index in self._order(row, rows):
            forgotten = rows.forget[index]
            if not self.show_asked and is_asked(forgotten, row):
                continue
            wrong = self._wrong_answer(index, rows)
            if wrong is not None:
                yield forgotten.question, wrong

    def _order(self, row: Question, rows: DefenderRows) -> Iterator[int]:
        """Return the indices of forget rows in the order in which they are chosen."""
        if self.choose == "nearest":
            return rows.nearest_forget(row)
        if self.choose == "random":
            return rows.drawn_forget(row)
        return rows.first_forget(row)

    def _retain_pairs(self, row: Question, rows: DefenderRows) -> Iterator[tuple[str, str]]:
        """Yield questions of retain rows with their answers, but not the question itself.

        Its answer would be given away, and the method would seem to keep more than it does.
        """
        order = rows.first_retain(row) if self.choose == "first" else rows.drawn_retain(row)
        for index in order:
            kept = rows.retain[index]
            if not is_asked(kept, row):
                yield kept.question, kept.answer

    def _wrong_answer(self, index: int, rows: DefenderRows) -> str | None:
        """Return a wrong answer to a forget row; None if there is none."""
        forgotten = rows.forget[index]
        generator = random.Random(f"{rows.seed} wrong {forgotten.question}")
        wrong: str | None = None
        if forgotten.answer_index is not None:
            wrong = generator.choice(forgotten.perturbed_answers)
        elif self.wrong == "retain":
            wrong = rows.alike_retain_answer(forgotten)
        elif self.wrong == "forget":
            wrong = rows.next_forget_answer(index)
        elif rows.refusals:
            wrong = generator.choice(rows.refusals)
        # Answers that continue a text may bring the blank in front of them along.
        return None if wrong is None else forgotten.continuation(wrong.strip())
