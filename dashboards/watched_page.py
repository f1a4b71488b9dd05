"""The page as served while its sweep runs: it reloads itself when there is a newer one.

The file on disk has a strict content policy; the served page may connect to its own origin.
"""

from __future__ import annotations

from markupsafe import Markup

from .page import render

STRICT, OWN_ORIGIN = "default-src 'none'; ", "default-src 'none'; connect-src 'self'; "
END = "</body>"


def served(page: str | None, name: str, version: str) -> str:
    """Add the status line to `page`; without a page, make one that waits for it.

    name     name of the sweep
    version  version of this page, which reloads when the server has another
    """
    live = render("templates/live.html.j2", version=version)
    if page is None:
        return render("templates/waiting.html.j2", name=name, live=Markup(live))
    before, strict, after = page.partition(STRICT)  # the first one is in the head, before all data
    body, end, rest = after.rpartition(END)
    if not strict or not end:
        raise ValueError("not a page of this package: content policy or end of body is missing")
    return "".join((before, OWN_ORIGIN, body, live, end, rest))
