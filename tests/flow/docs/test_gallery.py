"""Each picture of the gallery stands below the code that writes it."""

import re
from pathlib import Path

from .blocks import blocks

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "tutorials" / "gallery.md"


def test_each_block_writes_the_picture_below_it() -> None:
    text = PAGE.read_text(encoding="utf-8")
    written = [re.findall(r"([\w-]+)\.html", block.text) for block in blocks(text)]
    shown = re.findall(r"\]\(\.\./images/(?:gallery/)?([\w-]+)\.svg\)", text)
    assert written == [[name] for name in shown]


def test_no_picture_is_left_over_or_missing() -> None:
    shown = re.findall(r"images/gallery/([\w-]+\.svg)", PAGE.read_text(encoding="utf-8"))
    assert sorted(shown) == sorted(path.name for path in (DOCS / "images/gallery").iterdir())
