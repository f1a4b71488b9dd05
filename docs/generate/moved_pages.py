"""Addresses that pages had before: each gets a small file that leads to the page's new address."""

from collections.abc import Mapping
from html import escape
from pathlib import Path
from posixpath import dirname, relpath

MOVED: Mapping[str, str] = {
    "architecture.html": "develop/architecture.html",
    "benchmarks.html": "develop/measurements.html",
    "footguns.html": "concepts/footguns.html",
    "modifier-study.html": "studies/modifiers.html",
    "release.html": "develop/release.html",
    "study.html": "studies/real-model.html",
    "studies/page.html": "tutorials/company.html",
    "study/page.html": "tutorials/company.html",
}
"""New address by old address, both relative to the root of the site."""


def write(site: Path) -> None:
    """Write a file at each old address."""
    for old, new in MOVED.items():
        path = site / old
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(redirection(relpath(new, dirname(old) or ".")), encoding="utf-8")


def redirection(address: str) -> str:
    """Return a page that leads to this relative address.

    The script keeps the part behind "#", which a refresh would drop. Neither needs a server.
    """
    quoted = escape(address)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Moved</title>'
        f'<script>location.replace("{quoted}" + location.hash)</script>'
        f'<noscript><meta http-equiv="refresh" content="0; url={quoted}"></noscript></head>'
        f'<body><p>This page has moved: <a href="{quoted}">{quoted}</a></p></body></html>\n'
    )
