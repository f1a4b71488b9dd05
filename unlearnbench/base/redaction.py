"""Passwords and tokens inside addresses, removed from whatever is stored or printed.

An address (`tracking.uri`, `storage`) may carry the secret that it is opened with. The process
keeps it in memory; `redact` stands at each boundary: plan, records, log, terminal, MLflow. Text
without a secret comes back unchanged, so that identities of configurations without one stay.
"""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

MARK = "***"
_DATABASES = ("postgres", "mysql", "mariadb", "mssql", "oracle")
"""A user's name alone is no secret there, and part of the address."""
# Lengths are bounded, so that no text takes more than linear time.
_ADDRESS = re.compile(r"""[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s'"<>`]{1,2048}""")
_USER = re.compile(
    r"""://(?P<info>[^/?#]*               # user, token, or user:password
        |[^/@:]*:(?!\d+(?:/|$)).*         # a password that holds a slash (a port does not)
        )@""",
    re.VERBOSE,
)
_QUERY = re.compile(
    r"""(?P<key>[?&][^=&?]*(?:token|secret|password|passwd|pwd|credentials?|signature|api_?key
        |access_?key|(?<![a-z])(?:key|sig|auth|pass))=)(?P<value>[^&#]+)""",
    re.VERBOSE | re.IGNORECASE,
)
_SHORT = 3
"""A secret of so few characters is not looked for outside its address: it is part of any text."""


def redact(text: str, *addresses: str) -> str:
    """`text` without user and password of the addresses in it, and values of secret parameters.

    addresses  whose secrets are removed wherever else they stand, as in a library's message
    """
    text = _ADDRESS.sub(_without_secret, text) if "://" in text else text
    for address in addresses:
        for secret in _secrets(address):
            text = text.replace(secret, MARK)
    return text


def redact_tree(value: Any) -> Any:
    """`value`, a tree of JSON, with every text redacted."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {redact_tree(key): redact_tree(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact_tree(item) for item in value]
    return value


def _without_secret(match: re.Match[str]) -> str:
    address = _USER.sub("://", match[0]) if _has_secret_user(match[0]) else match[0]
    return _QUERY.sub(rf"\g<key>{MARK}", address)


def _has_secret_user(address: str) -> bool:
    user = _USER.search(address)
    return user is not None and (":" in user["info"] or not address.startswith(_DATABASES))


def _secrets(address: str) -> set[str]:
    """Passwords and tokens of an address, as written and unquoted."""
    users = [result["info"] for result in _USER.finditer(address) if _has_secret_user(address)]
    words = [info.partition(":")[2] or info for info in users]
    words += [result["value"] for result in _QUERY.finditer(address)]
    return {item for word in words for item in (word, unquote(word)) if len(item) > _SHORT}
