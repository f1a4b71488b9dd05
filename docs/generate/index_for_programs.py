"""`llms.txt`: an index of the site for programs that read documentation, one line for each page.

The form is that of https://llmstxt.org: a title, a summary, and for each tab a list of links with
descriptions. A page's description is its first sentence, so the index follows the pages by itself.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from html import unescape

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure import StructureItem
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page

NAME = "llms.txt"
_PARAGRAPH = re.compile(r"<p>(.*?)</p>", re.DOTALL)
_TAG = re.compile(r"<[^>]+>")
_SENTENCE = re.compile(r".*?[.!?](?=\s|$)")


def description(html: str) -> str:
    """Return the first sentence of a page, without markup; empty if it has no paragraph."""
    for paragraph in _PARAGRAPH.findall(html):
        text = " ".join(unescape(_TAG.sub("", paragraph)).split())
        if text:
            sentence = _SENTENCE.match(text)
            return sentence[0] if sentence else text.removesuffix(":") + "."
    return ""


def text(navigation: Navigation, config: MkDocsConfig, descriptions: Mapping[str, str]) -> str:
    """Return the index; `descriptions` are by the path of a page's source."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for tab in navigation.items:
        lines += [f"## {tab.title}", ""]
        for page in _pages([tab]):
            path = page.file.src_uri
            about = descriptions.get(path, "")
            lines.append(
                f"- [{page.title}]({page.file.dest_uri})" + (f": {about}" if about else "")
            )
        lines.append("")
    return "\n".join(lines)


def _pages(items: Iterable[StructureItem]) -> Iterator[Page]:
    """The pages of these items of the navigation and of their sections, in order."""
    for item in items:
        if isinstance(item, Page):
            yield item
        elif isinstance(item, Section):
            yield from _pages(item.children)
