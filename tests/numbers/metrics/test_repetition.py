"""Distinct 4-grams of answers: loops of all kinds are near 0, real answers near 1."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.oracle.texts import distinct_four_grams, plain_words
from unlearnbench.metrics.repetition import Repetition

CHINESE = (
    "哈罗与奎尔公司的灯笼水泵是由米拉在二零一四年春天设计的。后来工厂搬到了盐田巷九号。",
    "卢卡斯在来到公司之前为一家修理管风琴的作坊工作了六年。他在那里学会了铸造黄铜。",
)
LOOPS = ("ay" * 90, "ayayayay" * 20 + ".", "a" * 400, "你好" * 60, "你好吗" * 40, "の" * 80)


def value(text: str, word_rule: str, observe: Any) -> float:
    """The metric of one answer."""
    seen = replace(observe([[1.0]]), generated=(text,), word_rule=word_rule)
    return float(Repetition().per_example(seen)[0])


@pytest.mark.parametrize("rule", ["ascii", "unicode"])
@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop[:4])
def test_a_loop_without_blanks_is_repetitive(loop: str, rule: str, observe: Any) -> None:
    assert value(loop, rule, observe) < 0.1


@pytest.mark.parametrize("loop", ["!" * 60, "。" * 40, "?! " * 9])
def test_a_loop_of_marks_has_no_words_and_counts_as_an_empty_answer(
    loop: str, observe: Any
) -> None:
    assert value(loop, "unicode", observe) == 0.0


@pytest.mark.parametrize("rule", ["ascii", "unicode"])
@pytest.mark.parametrize("answer", CHINESE)
def test_a_chinese_answer_is_not_repetitive(answer: str, rule: str, observe: Any) -> None:
    assert value(answer, rule, observe) > 0.95


def test_the_longest_word_that_is_one_unit_has_30_characters(observe: Any) -> None:
    # Three words are one gram. With its 31 characters there are 33 units and 30 grams: `aaaa` 28
    # times, `b aaa` and `aaa c` around it.
    assert value("b " + "a" * 30 + " c", "ascii", observe) == 1.0
    assert value("b " + "a" * 31 + " c", "ascii", observe) == 3 / 30


@pytest.mark.parametrize("rule", ["ascii", "unicode"])
def test_ordinary_answers_count_their_words(rule: str, observe: Any) -> None:
    for answer in (
        "Mira Osterlund designed the Lantern pump in the spring of 2014.",
        "the cat sat on the mat and the cat sat on the mat",
        "An autobiographical, environmentally-conscious debut: Donaudampfschifffahrt.",
        "",
    ):
        words = plain_words(answer, rule)
        grams = [tuple(words[i : i + 4]) for i in range(max(1, len(words) - 3))]
        wanted = len({*grams}) / len(grams) if words else 0.0
        assert value(answer, rule, observe) == wanted == distinct_four_grams(words)


def test_the_version_says_that_numbers_of_equal_answers_have_changed() -> None:
    assert Repetition.version == 2
    assert json.loads(Repetition().model_dump_json()) == {}
