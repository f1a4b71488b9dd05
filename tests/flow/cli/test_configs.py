"""`unlearnbench configs list`, `show`, `schema` and `new`."""

from pathlib import Path

from unlearnbench.cli.configs import HEADINGS
from unlearnbench.config.config_sources import shipped_configs
from unlearnbench.config.json_schema import schema_text

from ...factories.command_line import Run


def test_the_schema_is_printed_or_written(run: Run) -> None:
    code, out, _ = run("configs", "schema")
    assert (code, out) == (0, schema_text())
    assert run("configs", "schema", "--out", "s.json")[:2] == (0, "schema  s.json\n")
    assert Path("s.json").read_text() == out


def test_a_new_config_plans_as_it_is_and_is_never_written_over(run: Run) -> None:
    assert run("configs", "new", "mine")[1].splitlines()[1] == "next    unlearnbench plan mine.yaml"
    key, _, file = Path("mine.yaml").read_text().partition("\n")[0].partition("=")
    assert key == "# yaml-language-server: $schema"
    assert Path(file).read_text() == schema_text(), "editors find it"
    assert run("plan", "mine.yaml")[1].startswith("mine: 12 runs into runs/mine\n")
    Path("mine.yaml").write_text("name: kept\n")
    code, _, err = run("configs", "new", "mine.yaml")
    assert (code, "choose another name" in err) == (2, True)
    assert Path("mine.yaml").read_text() == "name: kept\n"


def test_configs_are_listed_by_what_they_need(run: Run) -> None:
    code, out, _ = run("configs", "list")
    assert (code, max(map(len, out.splitlines())) <= 80) == (0, True)
    groups = [part.splitlines() for part in out.split("\n\n")]
    names = {lines[0]: {line.split()[0] for line in lines[1:]} for lines in groups}
    here, cpu, gpu = (names[heading] for heading in HEADINGS.values())
    assert {"quickstart", "wmdp_twin", "passages"} <= here, "data and model are made"
    assert cpu == {"tofu_tiny", "tofu_smollm2"}
    assert {"tofu_llama2_7b_one_gpu", "tofu_smollm2_forget10"} <= gpu, "by what they extend, too"
    assert here | cpu | gpu == {*shipped_configs()}
    wide = run("configs", "list", "--wide")[1].splitlines()
    assert len(wide) == 1 + len(shipped_configs())


def test_a_file_that_is_not_there_is_said_to_be_absent(run: Run) -> None:
    def message(name: str) -> str:
        code, _, err = run("plan", name)
        assert code == 2
        return err

    Path("small.yaml").write_text("name: x\n")
    where = "`unlearnbench configs list` shows the configs that are installed"
    assert f"no such file; {where}" in message("nofile.yaml")
    assert f"no such file; did you mean 'small.yaml'? {where}" in message("smal.yaml")
    assert "is called 'quickstart', without a suffix" in message("quickstart.yaml")
    assert "no such config; did you mean 'quickstart'?" in message("quickstrat")
