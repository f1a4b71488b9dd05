"""Text as LaTeX."""

import re

_ESCAPES = {
    "\\": r"\textbackslash{}",
    **{item: f"\\{item}" for item in "{}$&#%_"},
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "\u2212": "$-$",
    "\u00d7": r"$\times$",
    "\u2026": r"\ldots{}",
    "\u2264": r"$\le$",
    "\u0394": r"$\Delta$",
}
_LOG = re.compile("log(?:\u2081\u2080|10) ")


def tex(text: str) -> str:
    """Escape what LaTeX would read as a command; `log₁₀` is set as a function."""
    parts = _LOG.split(text)
    plain = ("".join(_ESCAPES.get(item, item) for item in part) for part in parts)
    return r"$\log_{10}$ ".join(plain)
