"""Secrets of addresses leave no trace, and what has none stays as it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unlearnbench.base.redaction import redact, redact_tree


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("http://u:hunter2@127.0.0.1:9/", "http://127.0.0.1:9/"),
        ("https://hunter2token@h/a", "https://h/a"),
        ("https://u:hun/ter2@h/x", "https://h/x"),
        ("https://u:hu@nter2@h/x", "https://h/x"),
        ("s3://AK:hunter2@b/p?secret_key=hunter2&region=x", "s3://b/p?secret_key=***&region=x"),
        ("postgresql+psycopg://u:hunter2@h:5/db", "postgresql+psycopg://h:5/db"),
        ("see https://h/x?a=1&access_token=hunter2, later", "see https://h/x?a=1&access_token=***"),
        ("a://x,b://u:hunter2@h", "a://h"),
    ],
)
def test_a_secret_is_removed(text: str, left: str) -> None:
    assert "hunter2" not in redact(text)
    assert redact(text).startswith(left)
    assert redact_tree({"a": [text, 1, None]}) == {"a": [redact(text), 1, None]}


@pytest.mark.parametrize(
    "text",
    [
        "meta-llama/Llama-3.2-1B@main",
        "me@home.org",
        "http://h:8080/a@b",
        "git+https://github.com/a/b@c0ffee",
        "postgresql://u@h/db",
        "sqlite:////tmp/a@b/mlflow.db?timeout=5",
        "https://h/?author=me&design=2&monkey=3",
        "a ? token=b : c & key=d",
    ],
)
def test_what_has_no_secret_stays(text: str) -> None:
    assert redact(text) == text


PASSWORDS = st.text("abcXYZ059!$%*+,;=-._~@", min_size=4) | st.text(
    "abcXYZ!$%*+,;=-._~/", min_size=4
)
"""Unquoted `@` and `/` in one address have more than one reading."""


@given(PASSWORDS, st.sampled_from(["http", "https", "s3", "ftp", "postgresql"]))
def test_no_password_of_an_address_is_left(password: str, scheme: str) -> None:
    address = f"{scheme}://user:{password}@host.example/p"
    assert redact(f"at {address} it failed") == f"at {scheme}://host.example/p it failed"
    assert password not in redact(f"{password} ", address)
