"""Words of many scripts and ROUGE of them, against lists and values worked by hand."""

import random
import string
import unicodedata
from typing import Literal

import numpy as np
import pytest
from rouge_score.rouge_scorer import RougeScorer

from unlearnbench.stats import text_overlap
from unlearnbench.stats.text_overlap import (
    matched_form,
    rouge_l_f1,
    rouge_recall,
    rouge_words,
    union_recall,
)
from unlearnbench.stats.words import normalised, unicode_sentences, unicode_words

WORDS = {
    "Chinese": ("她1950年出生于北京。", "她|1950|年|出|生|于|北|京"),
    "Chinese with Latin": ("GPT-4模型，很好！", "gpt|4|模|型|很|好"),
    "rare Chinese": ("𠮷野家、〇", "𠮷|野|家|〇"),
    "Japanese": ("コーヒーを飲む。", "コ|ー|ヒ|ー|を|飲|む"),
    "half-width Kana": ("ｶﾞｷﾞ", "ガ|ギ"),
    "Thai": ("น้ำแข็งไทย ๒๐", "น้ำ|แ|ข็|ง|ไ|ท|ย|๒|๐"),
    "Lao": ("ນ້ຳໃຈ", "ນ້ຳ|ໃ|ຈ"),
    "Khmer": ("ខ្ញុំ", "ខ្ញុំ"),
    "Myanmar": ("မြန်မာ", "မြ|န်|မာ"),
    "Russian": ("Владимир Набоков — «Лолита», 1955.", "владимир|набоков|лолита|1955"),
    "Russian й apart": ("и\u0306", "й"),
    "Ukrainian": ("м'ята", "м|ята"),
    "Arabic": ("وُلِدَ في القاهرة؟", "وُلِدَ|في|القاهرة"),
    "stretched Arabic": ("كتـــاب", "كتاب"),
    "Arabic forms": ("ﻛﺘﺎﺏ", "كتاب"),
    "Persian with a joiner": ("می\u200cخواهم", "میخواهم"),
    "Urdu": ("اردو ہے۔", "اردو|ہے"),
    "Hindi": ("हिन्दी में स्त्री, ज़रूर।", "हिन्दी|में|स्त्री|ज़रूर"),
    "Hindi with joiners": ("क\u094d\u200dष", "क\u094dष"),
    "Bengali": ("বাংলা ভাষা", "বাংলা|ভাষা"),
    "Tamil": ("தமிழ் மொழி", "தமிழ்|மொழி"),
    "Korean": ("한국어를 씁니다", "한국어를|씁니다"),
    "Korean in Jamo": ("\u1112\u1161\u11ab", "한"),
    "Hebrew with points": ("שָׁלוֹם, עולם", "שָׁלוֹם|עולם"),
    "Greek": ("ΟΔΥΣΣΕΥΣ Οδυσσευς", "οδυσσευσ|οδυσσευσ"),
    "Vietnamese": ("Tiếng Việt", "tiếng|việt"),
    "Vietnamese with marks apart": ("Tie\u0302\u0301ng Vie\u0323\u0302t", "tiếng|việt"),
    "German": ("Straße STRASSE", "strasse|strasse"),
    "French": ("L’été, c'est l'œuvre", "l|été|c|est|l|œuvre"),
    "Amharic": ("አማርኛ፡ቋንቋ።", "አማርኛ|ቋንቋ"),
    "Tibetan": ("བོད་ཡིག", "བོད|ཡིག"),
    "full width": ("ＡＢＣ１２", "abc12"),
    "ligature": ("ﬁne", "fine"),
    "soft hyphen": ("un\u00adlearn", "unlearn"),
    "emoji": (
        "ok👍🏽 👨\u200d👩\u200d👧 🇩🇪🇫🇷 ❤\ufe0f ❤",
        "ok|👍🏽|👨\u200d👩\u200d👧|🇩🇪|🇫🇷|❤|❤",
    ),
    "English": ("Don't: 3.14 well-known_words!", "don|t|3|14|well|known|words"),
    "none": ("«—» … ?!", ""),
}


@pytest.mark.parametrize(("text", "words"), WORDS.values(), ids=[*WORDS])
def test_words_are_those_of_a_reader(text: str, words: str) -> None:
    wanted = words.split("|") if words else []
    assert [*unicode_words(text)] == wanted
    assert [*rouge_words(text, "unicode", stemmer=False)] == wanted


# Recall is of the reference's words; the longest common subsequence is worked by hand.
ROUGE = {
    "Chinese": ("北京是首都", "首都是北京。", 5 / 5, 2 / 5),
    "Japanese": ("東京タワー", "東京のタワーです", 5 / 5, 5 / 5),
    "Thai": ("น้ำแข็ง", "น้ำ", 1 / 4, 1 / 4),
    "Russian": ("Он родился в Москве", "родился он в МОСКВЕ.", 4 / 4, 3 / 4),
    "Arabic": ("ولد في القاهرة", "في القاهرة ولد", 3 / 3, 2 / 3),
    "Hindi": ("वह दिल्ली में रहती है", "वह दिल्ली में थी", 3 / 5, 3 / 5),
    "Korean": ("서울에서 태어났다", "서울에서 살았다", 1 / 2, 1 / 2),
    "Hebrew": ("נולד בתל אביב", "בתל אביב נולד", 3 / 3, 2 / 3),
    "Greek": ("γεννήθηκε στην Αθήνα", "ΣΤΗΝ ΑΘΉΝΑ", 2 / 3, 2 / 3),
    "Vietnamese": ("sinh ở Hà Nội", "Ha\u0300 No\u0323\u0302i", 2 / 4, 2 / 4),
    "emoji": ("🎉👨\u200d👩\u200d👧", "👨\u200d👩\u200d👧", 1 / 2, 1 / 2),
    "English among Chinese": ("她 WRITES 小说", "她 writing 小说", 4 / 4, 4 / 4),
    "without an answer": ("北京", "", 0, 0),
    "other": ("北京", "Peking", 0, 0),
}


@pytest.mark.parametrize(
    ("reference", "prediction", "rouge1", "rouge_l"), ROUGE.values(), ids=[*ROUGE]
)
def test_rouge_by_hand(reference: str, prediction: str, rouge1: float, rouge_l: float) -> None:
    found = rouge_recall([reference], [prediction], word_rule="unicode")
    assert [values.tolist() for values in found] == [[rouge1], [rouge_l]]


def test_f1_by_hand() -> None:
    # Five of five characters are found, in an answer of six; in order two of them are.
    found = rouge_l_f1(["北京是首都"], ["首都是北京吗"], stemmer=False, word_rule="unicode")
    assert found.tolist() == [pytest.approx(2 * (2 / 5) * (2 / 6) / (2 / 5 + 2 / 6))]


def test_the_profiles_of_others_count_no_word_of_other_scripts() -> None:
    for name in ("Chinese", "Russian", "Arabic", "Hindi", "Thai"):
        reference = ROUGE[name][0]
        assert rouge_recall([reference], [reference])[1].tolist() == [0]
        assert rouge_recall([reference], [reference], word_rule="unicode")[1].tolist() == [1]


LETTERS = {
    "spaced": "éßяЙΣςاُבְקमितর한글ấëաა௧٣²",
    "unspaced": "北京あカヿ゙ไทາកမ〇",
    "between": " \t\n.,;!?。、؟।«»-_'\"()+=$€\u00b7\u05be",
    "invisible": "\u200c\u200d\u00ad\u200f\u2060\ufeff\u0640",
}
"""Characters of each kind, and marks among the letters of their scripts.

Without a virama, which joins letters of its own script to one character of a reader.
"""


def is_unspaced(character: str) -> bool:
    """Whether the name of a character is of a script without spaces."""
    scripts = ("CJK", "IDEOGRAPHIC", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")
    return unicodedata.name(character, "").startswith(scripts)


def plain_words(text: str) -> list[str]:
    """Words by a loop over characters, their categories and names; no character of two bases."""
    words: list[str] = []
    is_open = False
    for character in normalised(text):
        category = unicodedata.category(character)
        if category == "Cf":
            continue
        if category.startswith("M"):
            if is_open:
                words[-1] += character
        elif not category.startswith(("L", "N")):
            is_open = False
        elif is_open and not is_unspaced(character) and not is_unspaced(words[-1][0]):
            words[-1] += character
        else:
            words.append(character)
            is_open = True
    return words


def test_random_text_has_the_words_of_a_plain_loop() -> None:
    rng = random.Random(0)
    for _ in range(5000):
        kinds = rng.choices([*LETTERS], weights=(6, 3, 3, 1), k=rng.randrange(30))
        text = "".join(rng.choice(LETTERS[kind]) for kind in kinds)
        assert [*unicode_words(text)] == plain_words(text), ascii(text)


def test_no_encoding_of_a_text_changes_its_words() -> None:
    forms: tuple[Literal["NFC", "NFD", "NFKC", "NFKD"], ...] = ("NFC", "NFD", "NFKC", "NFKD")
    rng = random.Random(1)
    known = [chr(i) for i in range(0x20, 0x30000) if unicodedata.category(chr(i))[0] in "LMNPSZ"]
    for _ in range(5000):
        text = "".join(rng.choices(known, k=rng.randrange(1, 8)))
        words = unicode_words(text)
        for form in forms:
            assert unicode_words(unicodedata.normalize(form, text)) == words, ascii(text)
        assert unicode_words(" ".join(words)) == words, ascii(text)


def test_ascii_text_has_the_values_of_rouge_score() -> None:
    rng = random.Random(0)
    alphabet = string.ascii_letters * 3 + string.digits + string.printable + " " * 40 + "\x00\x7f"
    vocabulary = ["writing", "writes", "novels", "Don't", "3.14", "ies", "The", "running", "a_b"]

    def text() -> str:
        if rng.random() < 0.5:
            return " ".join(rng.choices(vocabulary, k=rng.randrange(12)))
        return "".join(rng.choices(alphabet, k=rng.randrange(60)))

    pairs = [(text(), text()) for _ in range(2000)]
    references = [reference for reference, _ in pairs]
    predictions = [prediction for _, prediction in pairs]
    for stemmer in (True, False):
        scorer = RougeScorer(["rouge1", "rougeL"], use_stemmer=stemmer)
        wanted = [scorer.score(*pair) for pair in pairs]
        found = rouge_l_f1(references, predictions, stemmer=stemmer, word_rule="unicode")
        np.testing.assert_allclose(found, [row["rougeL"].fmeasure for row in wanted], rtol=1e-12)
        if stemmer:
            rouge1, rouge_l = rouge_recall(references, predictions, word_rule="unicode")
            np.testing.assert_array_equal(rouge1, [row["rouge1"].recall for row in wanted])
            np.testing.assert_array_equal(rouge_l, [row["rougeL"].recall for row in wanted])


def test_sentences_end_in_all_scripts() -> None:
    text = "你好。再见！Ça va? नमस्ते। مرحبا؟ Bye.\nLine"
    wanted = ["你好", "再见", "Ça va", " नमस्ते", " مرحبا", " Bye", "Line"]
    assert unicode_sentences(text) == wanted


def test_union_recall_of_other_scripts_by_hand() -> None:
    # Distinct characters of the reference: 北 京 是 首 都 它 大. In the best pairs of sentences
    # 首 都 (or 北 京) of the first are found in order, and 它 大 of the second: 4 of 7.
    found = union_recall("北京是首都。它大。", "首都是北京。它很大！", word_rule="unicode")
    assert found == 4 / 7
    assert union_recall("北京是首都。它大。", "首都是北京。它很大！") == 0


def test_words_of_repetition_and_matches_follow_the_rule() -> None:
    assert [*text_overlap.plain_words("你好 世界", "ascii")] == ["你好", "世界"]
    assert [*text_overlap.plain_words("你好 世界", "unicode")] == ["你", "好", "世", "界"]
    assert matched_form(" Straße ", "ascii") == "straße"
    assert matched_form(" Straße ", "unicode") == matched_form("STRASSE", "unicode")
    assert matched_form("ＡＢ", "unicode") == "ab"
