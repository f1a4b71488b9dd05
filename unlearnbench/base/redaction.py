"""Remove passwords and tokens inside addresses from everything that is stored or printed.

An address (`tracking.uri`, `storage`) may contain the secret that it is opened with:
`postgresql://user:password@host/runs`. The process keeps the secret in memory, and `redact` removes
it at each boundary: plan, records, log, terminal, MLflow. Text without a secret comes back
unchanged, so that the ids of configurations without secrets do not depend on these rules.
"""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

MARK = "***"
ADDRESS = "://"
"""A text without these characters has no address, and comes back unchanged."""
_DATABASES = ("postgres", "mysql", "mariadb", "mssql", "oracle")
"""Beginnings of addresses in which a user's name without a password is no secret. It is kept,
because the address means something else without it."""
# Lengths are bounded, so that the time is linear in the length of any text.
_ADDRESS = re.compile(r"""[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s'"<>`]{1,2048}""")
_USER = re.compile(
    r"""://(?P<info>[^/?#]*               # user, token, or user:password
        |[^/@:]*:(?!\d+(?:/|$)).*         # a password that contains a slash (a port does not)
        )@""",
    re.VERBOSE,
)
_SECRET_PARAMETER = re.compile(
    r"""(?P<key>[?&][^=&?]*(?:token|secret|password|passwd|pwd|credentials?|signature|api_?key
        |access_?key|(?<![a-z])(?:key|sig|auth|pass))=)(?P<value>[^&#]+)""",
    re.VERBOSE | re.IGNORECASE,
)
_TOO_SHORT = 3
"""A secret of at most so many characters may be part of any text, so it is removed only from its
address."""


def redact(text: str, *addresses: str) -> str:
    """Remove secrets from a text.

    Args:
        text: Any text. Users, passwords and values of secret parameters are removed from all
            addresses in it.
        addresses: Further addresses. Their secrets are replaced by `***` anywhere in the text,
            because messages of libraries may contain a password without its address.
    """
    if ADDRESS in text:
        text = _ADDRESS.sub(_without_secrets, text)
    for address in addresses:
        for secret in _secrets(address):
            text = text.replace(secret, MARK)
    return text


def redact_tree(value: Any) -> Any:
    """Return a tree of JSON with every text redacted, also its keys."""
    if isinstance(value, str):
        return redact(value) if ADDRESS in value else value
    # Most values have no text inside, so no call is made for them.
    if isinstance(value, Mapping):
        return {
            redact_tree(key): child if type(child) in _TEXTLESS else redact_tree(child)
            for key, child in value.items()
        }
    if isinstance(value, list | tuple):
        return [child if type(child) in _TEXTLESS else redact_tree(child) for child in value]
    return value


_TEXTLESS = frozenset({int, float, bool, type(None)})
"""Types of the values of JSON that have no text."""


def _without_secrets(match: re.Match[str]) -> str:
    """Return the address of a match without its secrets."""
    address = match[0]
    if _has_secret_user(address):
        address = _USER.sub("://", address)
    return _SECRET_PARAMETER.sub(rf"\g<key>{MARK}", address)


def _has_secret_user(address: str) -> bool:
    """Whether the part before the `@` of an address is a secret."""
    user = _USER.search(address)
    if user is None:
        return False
    has_password = ":" in user["info"]
    return has_password or not address.startswith(_DATABASES)


def _secrets(address: str) -> set[str]:
    """Return the passwords and tokens of an address, as written and unquoted."""
    written: list[str] = []
    if _has_secret_user(address):
        for user in _USER.finditer(address):
            _, _, password = user["info"].partition(":")
            # Without a password, the user is a token.
            written.append(password or user["info"])
    written += [parameter["value"] for parameter in _SECRET_PARAMETER.finditer(address)]
    secrets = {*written, *map(unquote, written)}
    return {secret for secret in secrets if len(secret) > _TOO_SHORT}
