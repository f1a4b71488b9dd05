"""Equations of docstrings as MathML, which browsers set without a script.

They are written in plain text: `s_ref,b` has the index "ref,b", `p_t^β` an exponent too, and
`e^(t − 1)` one of several terms. All that is not a name, a number or a bracket is an operator.
"""

import re
from html import escape

_INDEX = r"_(?P<sub>\w+?'?(?:[,∈≠]\w+)*(?=[\W]|$))"
_TOKEN = re.compile(
    rf"(?P<space>\s+)|(?:(?P<atom>[^\W\d_]+[₀-₉]?'?|\d[\d.]*|\S)(?:{_INDEX})?"
    r"(?:\^(?:\((?P<group>[^()]*)\)|(?P<sup>−?\w+)))?(?P<square>²)?)"
)
_FUNCTIONS = {"KL", "CEU", "argmax", "exp", "log", "max", "mean", "onehot", "sg"} | {
    *("softmax", "softplus", "std", "tanh")
}


def equation(text: str) -> str:
    """A line such as `L = mean_t log p_t` as a displayed `<math>`."""
    return f'<math display="block"><mrow>{_row(text)}</mrow></math>'


def _row(text: str) -> str:
    return "".join(map(_element, _TOKEN.finditer(text)))


def _index(text: str) -> str:
    """An index: words as they are, other letters one by one."""
    parts = re.findall(r"[^\W\d_]{4,}|ref|\S", text)
    kinds = ["mi" if part[0].isalpha() else "mo" for part in parts]
    return "".join(f"<{kind}>{part}</{kind}>" for kind, part in zip(kinds, parts, strict=True))


def _element(token: re.Match[str]) -> str:
    if token["space"]:
        return '<mspace width="2em"/>' if len(token["space"]) > 1 else ""
    base = _atom(token["atom"])
    sub = f"<mrow>{_index(token['sub'])}</mrow>" if token["sub"] else ""
    exponent = token["group"] or token["sup"] or ("2" if token["square"] else "")
    sup = f"<mrow>{_row(exponent)}</mrow>" if exponent else ""
    if sub and sup:
        base = f"<msubsup>{base}{sub}{sup}</msubsup>"
    elif sub or sup:
        kind = "msub" if sub else "msup"
        base = f"<{kind}>{base}{sub}{sup}</{kind}>"
    return base + ('<mspace width=".2em"/>' if token["atom"] in _FUNCTIONS else "")


def _atom(text: str) -> str:
    if text[0].isdigit():
        return f"<mn>{text}</mn>"
    if not text[0].isalpha() or text == "Σ":
        return f'<mo stretchy="false">{escape(text)}</mo>'
    if text in _FUNCTIONS or len(text.rstrip("'₀₁₂₃")) == 1:
        return f"<mi>{escape(text)}</mi>"
    return f"<mtext>&#160;{escape(text)}&#160;</mtext>"
