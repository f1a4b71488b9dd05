"""The words of a text in any script, for metrics that count words.

A text is normalised first (`normalised`). Then it is read from left to right as

- emoji and flags: each is a word, however many code points it has (👨‍👩‍👧, 🇩🇪);
- characters of scripts without spaces (Han, Kana, Thai, Lao, Khmer, Myanmar and their relatives):
  each is a word. A character is what a reader takes for one, by Unicode's UAX #29: a base with its
  marks, so that `น้ำ` is one;
- runs of letters and digits with their marks (vowel signs, accents, points): each is a word.

All other characters (spaces, punctuation, symbols) only separate words. Apostrophe, hyphen and
decimal point are among them, as in rouge-score, which finds the same words in ASCII text.
"""

import unicodedata
from functools import lru_cache

import regex

_UNSPACED_SCRIPTS = (
    "Han",
    "Hiragana",
    "Katakana",
    "Bopomofo",
    "Yi",
    "Thai",
    "Lao",
    "Khmer",
    "Myanmar",
    "Tai_Le",
    "New_Tai_Lue",
    "Tai_Tham",
    "Tai_Viet",
)
"""Scripts that are written without spaces between words, by their names in Unicode."""
_LETTER = r"[\p{L}\p{N}]"
# Script extensions, because the prolonged sound mark of Kana (ー) has the script "Common".
_UNSPACED = "[" + "".join(rf"\p{{scx={script}}}" for script in _UNSPACED_SCRIPTS) + "]"
_MARK = r"[\p{M}\p{Default_Ignorable_Code_Point}]"
# \X is what a reader takes for one character. The three kinds of words, in their order above:
_EMOJI = r"(?P<emoji>(?=[\p{Extended_Pictographic}\p{Regional_Indicator}])\X)"
# Marks follow \X, because by UAX #29 some vowel signs of Myanmar are not part of its character.
_UNSPACED_CHARACTER = rf"(?=[{_LETTER}&&{_UNSPACED}])\X{_MARK}*"
_LETTERS = rf"(?:[{_LETTER}--{_UNSPACED}]{_MARK}*)+"
_WORD = regex.compile(f"{_EMOJI}|{_UNSPACED_CHARACTER}|{_LETTERS}", regex.V1)
# Joiners, soft hyphens and marks of direction change how a word is drawn, but not which word it is.
# Only some people type them.
_INVISIBLE = regex.compile(r"\p{Default_Ignorable_Code_Point}+", regex.V1)
# Inside an emoji, a joiner holds its parts together. Only the selector of its style is optional.
_EMOJI_STYLE = regex.compile(r"[\ufe0e\ufe0f]")
_SENTENCE_END = regex.compile(r"[\p{Sentence_Terminal}\n]+", regex.V1)
_SPELLINGS = {
    # NFKC splits the vowel sign am of Thai and Lao, whose second half would begin a character.
    "\u0e4d\u0e32": "\u0e33",
    "\u0ecd\u0eb2": "\u0eb3",
    # The Arabic tatweel stretches a word.
    "\u0640": "",
}


def normalised(text: str) -> str:
    """Return a text in a form in which equal words are equal strings.

    The form is NFKC and not NFC, because full-width letters, half-width Kana, ligatures and Arabic
    presentation forms are other encodings of the same words. Case is folded, so that `Straße` is
    `STRASSE` and a final sigma is a sigma. Folding may leave the normal form, so the text is
    normalised again (Unicode 16.0, section 3.13.5, D146: compatibility caseless matching).
    """
    if text.isascii():
        return text.lower()
    folded = unicodedata.normalize("NFKC", text).casefold()
    folded = unicodedata.normalize("NFKC", folded)
    for spelling, usual in _SPELLINGS.items():
        folded = folded.replace(spelling, usual)
    return folded


@lru_cache(maxsize=4096)
def unicode_words(text: str) -> tuple[str, ...]:
    """Return the words of a text in their order, normalised.

    Example: `("born", "1950", "出", "生")` for `Born 1950, 出生`.
    """
    words: list[str] = []
    for match in _WORD.finditer(normalised(text)):
        optional = _EMOJI_STYLE if match["emoji"] else _INVISIBLE
        words.append(optional.sub("", match[0]))
    return tuple(word for word in words if word)


def word_starts(text: str) -> list[int]:
    """Return where the words of a text begin, as indices of the text as it is written."""
    return [match.start() for match in _WORD.finditer(text)]


def unicode_sentences(text: str) -> list[str]:
    """Return the sentences of a text, which end at full stops, question marks and the like.

    The marks of all scripts count (`。`, `؟`, `।`), and so does a line break.
    """
    return [sentence for sentence in _SENTENCE_END.split(text) if sentence.strip()]
