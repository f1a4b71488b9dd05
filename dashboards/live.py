"""The page as it is served while its sweep runs: the file's page, which asks whether it is old.

The file keeps its strict policy; what is served may ask its own origin, and nobody else.
"""

from __future__ import annotations

from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

STRICT, OWN = "default-src 'none'; ", "default-src 'none'; connect-src 'self'; "
END = "</body>"


def served(page: str | None, name: str, version: str) -> str:
    """`page` with the line that says how live it is; without one, a page that waits for it.

    name     the sweep's
    version  of this page: it is loaded again when the server tells another
    """
    if page is None:
        return _template("waiting.html.j2", name=name, live=Markup(_line(version)))
    before, strict, after = page.partition(STRICT)  # the first one is in the head, above all data
    body, end, rest = after.rpartition(END)
    if not strict or not end:
        raise ValueError("a page without the policy or the end of pages made here")
    return "".join((before, OWN, body, _line(version), end, rest))


def _line(version: str) -> str:
    return _template("live.html.j2", version=version)


def _template(file: str, /, **values: str) -> str:
    text = (files(__package__ or "dashboards") / "templates" / file).read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    return environment.from_string(text).render(**values)
