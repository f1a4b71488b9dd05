"""Every block of every page works: commands end as they should, Python runs, YAML loads; and every
cell of every notebook.

The blocks of a page are carried out in order, in one empty folder and one Python namespace. A block
```text title="printed" is what the block before it prints. `shell`, below, has the rules for
commands.
"""

import json
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from unlearnbench.base.errors import ConfigError
from unlearnbench.cli.main import main, root_command
from unlearnbench.config import loader

from .blocks import Block, blocks, commands, inline_commands

ROOT = Path(__file__).parents[3]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
PAGES = sorted({ROOT / "README.md", *(ROOT / "docs").rglob("*.md")})
Parse = Callable[[Sequence[str]], dict[str, Any]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's folder: the working directory, with its own plug-ins and modules."""
    place = tmp_path / "page"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(place)
    return place


@pytest.mark.long
@pytest.mark.usefixtures("small_models", "shared_ray")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page(
    page: Path,
    folder: Path,
    parse_command: Parse,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    text = page.read_text(encoding="utf-8")
    found = blocks(text)
    run = [one for one in found if one.reason is None]
    if any("runs/quickstart" in one.text for one in run if one.language in ("sh", "python")):
        shutil.copytree(request.getfixturevalue("quickstart"), folder / "runs" / "quickstart")
    before = {*sys.modules}
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed = ""
    for block in found:
        where = f"{page.relative_to(ROOT)}:{block.line}"
        try:
            if block.reason is not None:
                parse(block, parse_command)
            elif (block.language, block.title) == ("text", "printed"):
                assert printed == block.text
            else:
                printed = carry_out(block, namespace, parse_command, capsys)
        except BaseException as error:
            error.add_note(f"in the block at {where}")
            raise
    for words in inline_commands(text):
        check_mention(words)
    for name in {*sys.modules} - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
            del sys.modules[name]


def carry_out(
    block: Block, namespace: dict[str, Any], parse: Parse, capsys: pytest.CaptureFixture[str]
) -> str:
    """Carry out a block, or write it to the file that is its title; returns what it prints."""
    capsys.readouterr()
    if block.title:
        Path(block.title).parent.mkdir(parents=True, exist_ok=True)
        Path(block.title).write_text(block.text, encoding="utf-8")
    if block.language == "yaml":
        load_yaml(block)
    elif block.language == "sh":
        return shell(block, parse, capsys)
    elif block.language == "python" and not block.title:
        name = f"<block at line {block.line}>"
        exec(compile(block.text, name, "exec"), namespace)
    else:
        data(block)
    return capsys.readouterr().out


def shell(block: Block, parse: Parse, capsys: pytest.CaptureFixture[str]) -> str:
    """Carry out the commands of `unlearnbench`, in this process; returns what they print.

    `cd` changes the folder, `> FILE` takes the output. Other programs are not run. The exit code is
    0, or the one of a comment `# exit code 2`.
    """
    printed = ""
    for one in commands(block.text):
        if one.words[0] == "cd":
            os.chdir(one.words[1])
        elif one.words[0] == "unlearnbench":
            capsys.readouterr()
            # The small models are hardly trained, and a sweep of them would stop.
            sweeps = one.words[1] in {"sweep", "quickstart"}
            words = [*one.words[1:], *(["--force"] if sweeps else [])]
            code, (out, err) = main(words), capsys.readouterr()
            assert code == one.code, f"{' '.join(one.words)}\n{out}\n{err}"
            if one.out:
                Path(one.out).write_text(out, encoding="utf-8")
            else:
                printed += out
        else:
            parse_line(one.words, parse)
    return printed


def parse(block: Block, parse_command: Parse) -> None:
    """Check a block that is not run: its commands, its syntax."""
    if block.language == "sh":
        for one in commands(block.text):
            parse_line(one.words, parse_command)
    elif block.language == "python":
        compile(block.text, f"<block at line {block.line}>", "exec")
    elif block.language == "yaml":
        assert yaml.safe_load(block.text) is not None
    else:
        data(block)


def parse_line(words: Sequence[str], parse_command: Parse) -> None:
    """Check a command without carrying it out."""
    if words[0] == "unlearnbench":
        words = words[1:]
        group = root_command()
        for word in words:
            group = getattr(group, "commands", {}).get(word, group)
        if not hasattr(group, "commands"):  # a group alone prints its help
            parse_command(words)


def check_mention(words: Sequence[str]) -> None:
    """Check a command in prose, which may lack its arguments: it exists, with its options."""
    command = root_command()
    for word in words[1:]:
        command = getattr(command, "commands", {}).get(word, command)
    assert command is not root_command() or words[1].startswith("-"), words
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    unknown = {word.partition("=")[0] for word in words if word.startswith("--")} - known
    assert unknown <= {"--help"}, (words, unknown)


def load_yaml(block: Block) -> None:
    """Load a configuration; a part of one is loaded with the rest of the quickstart.

    One that needs a plug-in is loaded by the page's own commands, which name the file.
    """
    found = yaml.safe_load(block.text)
    assert isinstance(found, dict)
    name = Path(block.title)
    if "extends" not in found and "models" not in found:
        name = name.with_name(f"with-{name.name}")
        name.write_text(f"extends: quickstart\n{block.text}", encoding="utf-8")
    try:
        loader.load_configs(str(name))
    except ConfigError as error:
        if "--plugin" not in str(error):
            raise


def data(block: Block) -> None:
    """Check the syntax of data."""
    if block.language == "json":
        json.loads(block.text)
    elif block.language == "toml":
        tomllib.loads(block.text)


@pytest.mark.long
@pytest.mark.usefixtures("small_models")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_works(
    path: Path, quickstart: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In IPython's shell in this process: a kernel would load torch again for each notebook."""
    nbformat: Any = import_module("nbformat")  # typed in part
    renderers: Any = import_module("plotly.io").renderers
    notebook: Any = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    shutil.copytree(quickstart, tmp_path / "runs" / "quickstart")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)  # IPython warns of another than its own
    monkeypatch.setattr(renderers, "default", "json")  # no browser
    monkeypatch.setattr(sys, "displayhook", sys.displayhook)
    shell: Any = import_module("IPython.core.interactiveshell").InteractiveShell()
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        assert (cell.outputs, cell.execution_count) == ([], None), "stored without outputs"
        shell.run_cell(cell.source, store_history=False).raise_error()
    assert {one.name for one in tmp_path.iterdir()} & {"figure1.html", "focal.py"}


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "AGENTS.md"])
def test_links_beside_the_documentation_lead_to_files(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", text)
    assert [one for one in links if "://" not in one and not (ROOT / one).exists()] == []
