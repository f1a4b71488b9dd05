"""Every refusal of everyday work, as `messages.txt` has it.

A block of that file is a session in a shell: what was typed, what was printed, and the exit code.
The first block makes the folder that each of the others begins in. After a change, or for a new
case of which only the typed lines are written,

    pytest tests/test_messages.py --update-messages

writes what is printed now; the difference is read in review.
"""

import difflib
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.api import registry
from unlearnbench.base import deferred_warnings
from unlearnbench.cli.main import main

FILE = Path(__file__).with_name("messages.txt")
TITLE, PROMPT, CONTINUED = "### ", "$ ", "> "
PREFACE, *SESSIONS = re.split(rf"^{TITLE}", FILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
SETUP, *CASES = SESSIONS

NORMAL = {
    re.escape(version("unlearnbench")): "<version>",
    r"\b[0-9a-f]{16}\b": "<id>",
    r"\d+(\.\d+)? s\b": "<time>",
    r"([\w.-]+, [\w.-]+)(, (?!got)[\w.-]+){5,}": r"\1, …",
    r"cannot be loaded \(.*?\); ": "cannot be loaded (…); ",
    r"(?m)^(evaluating .*|.*: (working|loading \w+) …)\n": "",
}
"""Text that differs from one release, machine or run to the next, and long lists of names."""


def typed(session: str) -> Iterator[str]:
    """Commands of a session, each with the lines that continue it."""
    for command in re.findall(r"^\$ .*(?:\n>.*)*", session, flags=re.MULTILINE):
        yield "\n".join(line[2:] for line in command.splitlines())


def in_shell(command: str) -> None:
    subprocess.run(["sh", "-ec", command], check=True)


def snapshot() -> dict[str, bytes]:
    """All files but locks."""
    return {str(p): p.read_bytes() for p in Path().rglob("[!.]*") if p.is_file()}


@pytest.fixture(scope="module")
def shelf(
    tmp_path_factory: pytest.TempPathFactory, make_model: Callable[[], Any], tokenizer: Any
) -> Path:
    """The folder that the first block makes, with a small model and a sweep's results."""
    folder = tmp_path_factory.mktemp("shelf")
    make_model().save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    shutil.copytree(FILE.parent / "data" / "small_sweep", folder / "runs" / "old")
    shutil.copytree(FILE.parent / "data" / "open_unlearning", folder / "logs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for command in typed(SETUP):
            in_shell(command)
    return folder


@pytest.fixture(scope="module")
def rewritten(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """Sessions as they are now, by title; the file is written with them on request."""
    found: dict[str, str] = {}
    yield found
    if request.config.getoption("update_messages"):
        cases = [found.get(case.partition("\n")[0], case) for case in CASES]
        FILE.write_text(PREFACE + "".join(f"{TITLE}{s}" for s in (SETUP, *cases)), encoding="utf-8")


@pytest.mark.parametrize("case", CASES, ids=[case.partition("\n")[0] for case in CASES])
def test_messages(
    case: str,
    shelf: Path,
    rewritten: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    folder = tmp_path / "here"
    shutil.copytree(shelf, folder, symlinks=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    def printed(words: list[str]) -> str:
        """Output of a command that fails, and its exit code; no file is written or lost.

        But by `run`, which begins what its method then fails at.
        """
        monkeypatch.setattr(registry, "_files", {})  # as in a process of its own
        deferred_warnings.drain()
        before = snapshot()
        code = main(words)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        if not code:
            return "[0]\n"
        assert out == ""
        assert words[0] == "run" or snapshot() == before
        text = err.replace(str(folder), "$PWD")
        for pattern, name in NORMAL.items():
            text = re.sub(pattern, name, text)
        return f"{text}[{code}]\n"

    title = case.partition("\n")[0]
    now = f"{title}\n"
    for command in typed(case):
        now += PROMPT + command.replace("\n", f"\n{CONTINUED}") + "\n"
        if command.startswith("unlearnbench "):
            now += printed(shlex.split(command)[1:])
        else:
            in_shell(command)
    now += "\n"
    rewritten[title] = now
    if not request.config.getoption("update_messages"):
        difference = difflib.unified_diff(
            case.splitlines(), now.splitlines(), "messages.txt", "now", lineterm="", n=3
        )
        assert now.rstrip() == case.rstrip(), "\n".join(difference)
