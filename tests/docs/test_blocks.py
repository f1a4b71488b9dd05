"""The runner of pages reads blocks, titles, exemptions and command lines."""

from __future__ import annotations

import pytest

from .blocks import Block, Command, blocks, commands, inline_commands

PAGE = """\
Text with `unlearnbench plan my.yaml`, `make test` and `unlearnbench methods …`.

```yaml title="my.yaml"
name: mine
```

1. In a list:

    <!-- not run: needs a GPU -->
    ```sh
    unlearnbench sweep my.yaml \\
      --json > out.json  # comment
    cd runs && unlearnbench methods check x  # exit code 1
    ```
````text
```
````
"""


def test_blocks_have_language_title_text_line_and_reason() -> None:
    first, second, third = blocks(PAGE)
    assert first == Block("yaml", "my.yaml", "name: mine\n", 3, None)
    assert (second.language, second.line, second.reason) == ("sh", 10, "needs a GPU")
    assert second.text.startswith("unlearnbench sweep")
    assert third.text == "```\n"


def test_commands_are_joined_divided_and_redirected() -> None:
    assert list(commands(blocks(PAGE)[1].text)) == [
        Command(("unlearnbench", "sweep", "my.yaml", "--json"), "out.json", 0),
        Command(("cd", "runs"), "", 1),
        Command(("unlearnbench", "methods", "check", "x"), "", 1),
    ]


def test_commands_in_prose_are_found_unless_cut_short() -> None:
    assert inline_commands(PAGE) == [("unlearnbench", "plan", "my.yaml"), ("make", "test")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```\nx\n```", "'' is not one of the languages"),
        ("```bash\nx\n```", "'bash' is not one"),
        ("```yaml\na: 1\n```", "a YAML block has a title"),
        ("<!-- not run: -->\n```sh\nx\n```", "without a reason"),
        ("<!-- not run: because -->\n\n```sh\nx\n```", "not just before a fence"),
        ("```sh\nx", "not closed"),
    ],
)
def test_a_block_that_breaks_a_rule_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        blocks(text)
