"""A section of another package, as docs/tutorials/add-a-page-section.md has it."""

import re
import sys
from pathlib import Path

import pytest

from unlearnbench.analysis.results import Results
from unlearnbench.base.errors import PluginError
from unlearnbench.report.report import finish

ROOT = Path(__file__).resolve().parents[2]
OLD = ROOT / "tests" / "data" / "sweep_0_2"
GUIDE = (ROOT / "docs" / "tutorials" / "add-a-page-section.md").read_text(encoding="utf-8")


def install(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package with the guide's entry point and this file."""
    (line,) = re.findall(r"^hours = .*$", GUIDE, re.MULTILINE)
    info = folder / "hours-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "hours.py").write_text(code, encoding="utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hours\nVersion: 1.0\n")
    points = f"[unlearnbench.sections]\n{line.replace(chr(34), '')}\n"
    (info / "entry_points.txt").write_text(points, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "hours", raising=False)


def guide_code() -> str:
    (code,) = re.findall(r'```python title="hours.py"\n(.*?)```', GUIDE, re.DOTALL)
    assert len(code.splitlines()) <= 40
    return str(code)


def test_it_stands_on_the_page_in_its_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(guide_code(), tmp_path / "site", monkeypatch)
    page = finish(OLD, tmp_path / "page.html").page.read_text(encoding="utf-8")
    order = re.findall(r'<section id="([\w-]+)"', page)
    assert order.index("best") < order.index("hours") < order.index("numbers")
    body = page.partition('<section id="hours"')[2].partition("</section>")[0]
    records = [one for one in Results.read(OLD).records if one.kind == "run"]
    seconds = sum(e.training_seconds for one in records for e in one.epochs)
    shown = [float(number) for number in re.findall(r'"num">([\d.]+)<', body)]
    assert sum(shown) == pytest.approx(seconds / 3600, abs=1e-3 * len(shown))


def test_one_that_needs_what_is_not_there_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(guide_code().replace('"rows"', '"attacked"'), tmp_path / "site", monkeypatch)
    page = finish(OLD, tmp_path / "page.html").page.read_text(encoding="utf-8")
    assert 'id="hours"' not in page


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("results.records", "results.recrods", r"`render` of the section 'hours' raised .*records"),
        ('title, order = "hours", "Hours", 45', 'order = "hours", 45', r"does not define title"),
        ("def render", "def write", r"does not define render"),
    ],
)
def test_a_mistake_is_one_line(
    old: str, new: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(guide_code().replace(old, new), tmp_path / "site", monkeypatch)
    with pytest.raises(PluginError, match=message):
        finish(OLD, tmp_path / "page.html")
