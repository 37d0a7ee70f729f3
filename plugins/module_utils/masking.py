# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Which values are secrets, and how what people read is kept free of them."""

from __future__ import annotations

import json
import re
import typing as t

MASK = "********"

SHORTEST_SECRET = 6
"""Shorter values would blot out parts of ordinary words in every message."""

ENVIRONMENT = "pd_engine_env"
"""Beginning of the variables whose keys are names of environment variables."""

_SECRET_VARIABLE = re.compile(r"KEY|TOKEN|SECRET|PASS|PWD|CREDENTIAL|AUTH|DSN|COOKIE", re.IGNORECASE)
# Options count tokens (max-num-batched-tokens) and name tokenizers, so only the end of a name tells there.
_SECRET_OPTION = re.compile(
    r"(?:.*[-_.])?(?:(?:api|access|secret)[-_]?keys?|token|secret|password|passwd|credentials?)\Z", re.IGNORECASE
)
_LOGIN_IN_URL = re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)")


def is_secret_variable(name: str, value: t.Any) -> bool:
    """Whether an environment variable is one that nobody may read: by its name, or by a login inside a URL."""
    return bool(_SECRET_VARIABLE.search(name)) or (isinstance(value, str) and bool(_LOGIN_IN_URL.search(value)))


def is_secret_option(name: str) -> bool:
    """Whether an option of vllm, or a key inside one, holds a secret; without leading dashes (api-key, hf_token)."""
    return bool(_SECRET_OPTION.match(name))


def masked(value: t.Any, name: str = "") -> t.Any:
    """A copy of a variable's value (or of a mapping of variables) that may be printed; name tells what its keys are."""
    if isinstance(value, dict):
        return {
            key: MASK if _is_secret(name, key, item) else masked(item, _below(name, key)) for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [masked(item, name) for item in value]
    return without_logins(value) if isinstance(value, str) else value


def found_in(value: t.Any, name: str = "") -> set[str]:
    """The secrets that masked() would hide, as texts."""
    if isinstance(value, dict):
        parts = (
            _texts(item) if _is_secret(name, key, item) else found_in(item, _below(name, key))
            for key, item in value.items()
        )
        return set().union(*parts)
    if isinstance(value, (list, tuple)):
        return set().union(*(found_in(item, name) for item in value))
    return set()


def without_logins(text: str) -> str:
    """The text with the logins inside of its URLs masked."""
    return _LOGIN_IN_URL.sub(MASK, text)


def cleaned(value: t.Any, secrets: t.Collection[str]) -> t.Any:
    """A copy of a value with every secret masked in all of its texts."""
    if isinstance(value, dict):
        return {key: cleaned(item, secrets) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [cleaned(item, secrets) for item in value]
    return without(value, secrets) if isinstance(value, str) else value


def without(text: str, secrets: t.Collection[str]) -> str:
    """The text with every secret masked, also where it stands quoted."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SHORTEST_SECRET:
            for form in (secret, repr(secret)[1:-1], json.dumps(secret)[1:-1]):
                text = text.replace(form, MASK)
    return without_logins(text)


def _below(name: str, key: t.Any) -> str:
    """What the keys below this one are: a pd_ variable tells it, also inside pd_instances."""
    return str(key) if str(key).startswith("pd_") else name


def _is_secret(name: str, key: t.Any, value: t.Any) -> bool:
    if value is None:
        return False
    if name.startswith(ENVIRONMENT) and is_secret_variable(str(key), value):
        return True
    return is_secret_option(str(key))


def _texts(value: t.Any) -> set[str]:
    if isinstance(value, dict):
        return set().union(*map(_texts, value.values()))
    if isinstance(value, (list, tuple)):
        return set().union(*map(_texts, value))
    return {value} if isinstance(value, str) else {json.dumps(value)}
