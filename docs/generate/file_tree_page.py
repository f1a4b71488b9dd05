"""The page of files: the folders of the project, and what each file is for.

The line of a file is the first sentence of its docstring, so it cannot go out of date. To read the
tree without building the site: `python docs/generate/file_tree_page.py`.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from markup import escaped

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {
    "unlearnbench": "the package. Its folders are the rooms of [Architecture](architecture.md)",
    "methods": "the methods, which are losses, one file each",
    "modifiers": "the modifiers of gradients, updates and weights, one file each",
    "configs": "the configurations that come with the project, as YAML",
    "dashboards": "the page of a sweep, its sections, and the figures",
    "docs/generate": "the code that makes parts of this documentation",
    "benchmarks": "the scripts that measure speed side by side",
    "tests": "the tests. Their folders are named after what they test",
    ".ci": "what CI, releases and GPU machines run",
}
"""Each folder with what it is for."""
INTRODUCTION = """\
# Files

This page lists every Python file of the project with one line that says what the file is for. The
line is the first sentence of the file's docstring. Read [Architecture](architecture.md) first: it
says how the parts work together.
"""


def page() -> str:
    """The text of the page."""
    return "\n".join([INTRODUCTION, *_sections()])


def _sections() -> Iterator[str]:
    for folder, purpose in FOLDERS.items():
        yield f"## `{folder}/`\n\nThis folder has {purpose}.\n"
        for parent, files in _files_by_folder(ROOT / folder).items():
            is_top = parent == ROOT / folder
            if not is_top:
                yield f"\n### `{parent.relative_to(ROOT).as_posix()}/`\n"
            yield "| file | what it is for |\n|---|---|"
            for path in files:
                yield f"| `{path.name}` | {escaped(first_sentence(path)).replace('|', '&#124;')} |"
        yield ""


def _files_by_folder(folder: Path) -> dict[Path, list[Path]]:
    """Python files by their folder, without files that have no code."""
    by_folder: dict[Path, list[Path]] = {}
    for path in sorted(folder.rglob("*.py"), key=lambda path: (path.parent, path.name)):
        if path.stat().st_size:
            by_folder.setdefault(path.parent, []).append(path)
    return by_folder


def first_sentence(path: Path) -> str:
    """The first sentence of a file's docstring, on one line."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    sentence, dot, _ = paragraph.partition(". ")
    return sentence + "." if dot else paragraph


if __name__ == "__main__":
    print(page())  # noqa: T201
