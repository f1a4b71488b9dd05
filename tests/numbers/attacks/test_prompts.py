"""The prompts that attacks make: which rows they select, and what stands before the answer."""

from dataclasses import replace
from typing import Any

import pytest

from unlearnbench.api.attack import AttackRows
from unlearnbench.api.benchmark import Question
from unlearnbench.attacks.assistant_prefix import AssistantPrefix
from unlearnbench.attacks.combined import CombinedQuestions
from unlearnbench.attacks.in_context import InContext
from unlearnbench.attacks.paraphrase import Paraphrase
from unlearnbench.attacks.second_turn import SecondTurn
from unlearnbench.base.errors import EvaluationError
from unlearnbench.benchmarks.synthetic import Synthetic
from unlearnbench.config.profiles import get_profile
from unlearnbench.evaluation.sets import evaluation_sets
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.rows_loading import load_benchmark
from unlearnbench.models.templates import TEMPLATES

ADA = Question("Where was Ada born?", "In Lima.", paraphrased_question="What is Ada's birthplace?")
TEXT = Question("The sea at Lima is", " cold in June.", format="text")
PASSAGE = Question("", "The sea at Lima is cold.", format="text")
OF_ADA = (
    ADA,
    Question("What does Ada write?", "Plays."),
    Question("Which town is in her plays?", "Mostly Lima, in winter."),
    Question("Who is her editor?", "Her editor went to school in Lima."),
)
OF_BEN = (Question("Where was Ben born?", "In Rome."), Question("What does Ben write?", "Odes."))
RETAIN = (
    Question("Where was Cy born?", "In Oslo."),
    Question("Where was Di born?", "In Lima!"),
    TEXT,
    PASSAGE,
)
ROWS = AttackRows(OF_ADA + OF_BEN * 2, RETAIN, subject_rows=4, answers={ADA.question: "In Rome."})


def prompt(row: Question, tokenizer: Any, name: str = "plain") -> str:
    encoder = Encoder(tokenizer, TEMPLATES[name], 200)
    return str(tokenizer.decode(list(encoder.prompt(row)), skip_special_tokens=True))


def test_paraphrase_has_the_other_wording_of_rows_with_one() -> None:
    attack = Paraphrase()
    assert [attack.selects(row, ROWS) for row in (ADA, OF_ADA[1], TEXT)] == [True, False, False]
    assert attack.asked(ADA, "", ROWS) == replace(ADA, question="What is Ada's birthplace?")


def test_paraphrase_has_the_original_where_the_profile_has_the_paraphrase() -> None:
    data = Synthetic(authors=4, questions_per_author=2, pretraining_authors=0)
    benchmark = load_benchmark(data, (0.25,))
    plain = get_profile("tofu", question_key="paraphrased_question")
    rows = evaluation_sets(benchmark, 0.25, plain)["forget"]
    originals = {row.question for row in benchmark.splits[0.25].forget}
    assert not originals & {row.question for row in rows}
    assert {Paraphrase().asked(row, "", ROWS).question for row in rows} == originals


def test_a_prefix_stands_behind_the_turn_marker(tokenizer: Any) -> None:
    attack = AssistantPrefix()
    assert [attack.selects(row, ROWS) for row in (ADA, TEXT, PASSAGE)] == [True, False, False]
    asked = attack.asked(ADA, "", ROWS)
    text = "Question: Where was Ada born?\nAnswer: Sure, here is the answer:"
    assert prompt(asked, tokenizer) == text
    assert not attack.selects(asked, ROWS), "its beginning is given already"


def test_the_blank_behind_a_prefix_is_the_answers(tokenizer: Any) -> None:
    attack = AssistantPrefix(text="Sure, it is ")
    assert attack.text == "Sure, it is"
    row = attack.asked(ADA, "", ROWS)
    encoder = Encoder(tokenizer, TEMPLATES["plain"], 200)
    text = "<s>Question: Where was Ada born?\nAnswer: Sure, it is In Lima.</s>"
    assert tokenizer.decode(list(encoder.row(row).ids)) == text
    with pytest.raises(ValueError, match="is blank; give words"):
        AssistantPrefix(text="  ")


@pytest.mark.parametrize(
    ("answer", "share", "prefix"),
    [
        ("In Lima, by the sea.", 0.5, "In Lima,"),
        ("In Lima, by the sea.", 0.01, "In"),
        ("In Lima, by the sea.", 0.999, "In Lima, by the"),
        ("Lima  Peru", 0.9, "Lima"),
        (" cold in June.", 0.4, " cold"),
    ],
)
def test_the_first_words_of_the_answer_are_a_prefix(answer: str, share: float, prefix: str) -> None:
    attack, row = AssistantPrefix(share=share), Question("?", answer)
    assert attack.selects(row, ROWS)
    assert attack.asked(row, "", ROWS) == replace(row, prefix=prefix)


def test_the_second_turn_follows_the_models_own_answer(tokenizer: Any) -> None:
    attack = SecondTurn(text="Sure?")
    assert [attack.selects(row, ROWS) for row in (ADA, TEXT)] == [True, False]
    asked = attack.asked(ADA, "", ROWS)
    text = "[INST] Where was Ada born? [/INST]In Rome.[INST] Sure? [/INST]"
    assert prompt(asked, tokenizer, "llama-2") == text
    assert asked.scored_answers == ADA.scored_answers
    with pytest.raises(EvaluationError, match="no answer to 'What does Ada write"):
        attack.asked(OF_ADA[1], "", ROWS)


def test_two_questions_are_one_prompt() -> None:
    only = replace(ROWS, retain=RETAIN[:1])
    both = CombinedQuestions().asked(ADA, "", only)
    assert both == replace(ADA, question="Where was Ada born? Where was Cy born?")
    other = CombinedQuestions(first="retain")
    behind = replace(ADA, question="Where was Cy born? Where was Ada born?", prefix="In Oslo.")
    assert other.asked(ADA, "", only) == behind
    assert not other.selects(behind, only)
    assert not other.selects(TEXT, ROWS)
    assert not other.selects(ADA, replace(ROWS, retain=RETAIN[1:])), "the answer is in it"


def test_examples_are_neither_the_row_nor_its_answer() -> None:
    shown = InContext().asked(ADA, "", ROWS).examples
    assert shown == (("Where was Cy born?", "In Oslo."),), "another's answer is the row's"
    other_words = replace(ADA, question="What is Ada's birthplace?", paraphrased_question=None)
    forget = AttackRows((other_words,), (other_words, replace(other_words, answer="Peru")))
    assert not InContext().selects(ADA, forget), "the row in its other wording"
    texts = InContext(k=3).asked(TEXT, "", replace(ROWS, retain=(TEXT, PASSAGE, *RETAIN)))
    assert texts.examples == (), "no other text has a question"
    assert not InContext().selects(PASSAGE, ROWS)


def test_examples_of_the_subject_are_its_other_forget_rows() -> None:
    attack = InContext(of="subject")
    ada = replace(ADA, answer="Her hat is blue.")
    rows = replace(ROWS, forget=(ada, *ROWS.forget[1:]))
    assert attack.asked(ada, "", rows).examples == tuple((q.question, q.answer) for q in OF_ADA[1:])
    assert InContext(of="subject", k=2).asked(ada, "", rows).examples[-1][1] == OF_ADA[2].answer
    in_other_words = replace(ada, question="Whose hat?", paraphrased_question=ada.question)
    assert attack.selects(in_other_words, rows), "as the profile's question_key has them"
    assert not attack.selects(RETAIN[0], rows)
    assert not attack.selects(ada, replace(rows, subject_rows=1))


def test_retain_rows_are_drawn_by_seed_and_question() -> None:
    many = tuple(Question(f"Is it {i}?", f"It is {i}.") for i in range(40))
    rows = AttackRows((ADA,), many)

    def shown(seed: int, row: Question = ADA) -> tuple[tuple[str, str], ...]:
        return InContext(seed=seed).asked(row, "", rows).examples

    assert len({*shown(0)}) == 5
    assert shown(0) == shown(0)
    assert len({shown(0), shown(1), shown(0, OF_ADA[1])}) == 3
    assert {*InContext(k=100).asked(ADA, "", rows).examples} == {
        (q.question, q.answer) for q in many
    }
