"""Covers known credentials in texts from outside, because a server may echo what it was sent.

Credentials are replaced literally and in the encodings that programs print: JSON, percent, base64, hexadecimal. Values
that a server computes from a credential (a hash, an encryption, one half of it) are not recognised.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote, quote_plus, urlsplit

__all__ = ["CREDENTIAL_PREFIX", "Cover", "find_environment_credentials", "looks_secret"]

MIN_CREDENTIAL_CHARS: Final = 8  # a shorter value may be an ordinary word
MIN_UNNAMED_CHARS: Final = 16  # for a value with a name that does not suggest a secret
MIN_ENCODED_CHARS: Final = 10  # for an encoded form, above all for base64 without its edges
MAX_DEPTH: Final = 200
PLACEHOLDER: Final = "[credential]"
CREDENTIAL_PREFIX: Final = "TOOLSCOUT_CREDENTIAL_"  # of variables with what a source needs
ENVIRONMENT: Final = (
    CREDENTIAL_PREFIX, "TOOLSCOUT_KEY", "TOOLSCOUT_LLM_KEY", "TOOLSCOUT_EMBEDDINGS_KEY", "TOOLSCOUT_IDENTITY_KEY",
)  # fmt: skip
_SECRET_NAME: Final = re.compile(
    r"key|token|secret|passw|pwd|pass$|auth|credential|cookie|session|private|signature|dsn|bearer|login|pat$|jwt",
    re.IGNORECASE,
)


class Cover:
    """Replaces known credentials in texts and JSON values."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        """Cover these credentials, except those of fewer than 8 characters, which may be ordinary words."""
        forms = {form for value in values for form in _encode_forms(value)}
        self._forms = sorted(forms, key=lambda form: (-len(form), form))

    def __bool__(self) -> bool:
        return bool(self._forms)

    @property
    def max_chars(self) -> int:
        """The length of the longest form of a credential; 0 if there is none."""
        return len(self._forms[0]) if self._forms else 0

    def finds(self, text: str) -> bool:
        """Return whether a text contains a credential."""
        return any(form in text for form in self._forms)

    def text(self, text: str) -> str:
        """Replace every credential in a text with a placeholder."""
        for form in self._forms:
            if form in text:
                text = text.replace(form, PLACEHOLDER)
        return text

    def value(self, value: Any, depth: int = 0) -> Any:
        """Replace every credential in the texts and keys of a JSON value with a placeholder."""
        if isinstance(value, str):
            return self.text(value)
        if depth > MAX_DEPTH:
            return PLACEHOLDER  # nothing so deep is ever shown
        if isinstance(value, Mapping):
            return {self.value(key, depth + 1): self.value(inner, depth + 1) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(inner, depth + 1) for inner in value]
        return value


def looks_secret(name: str, value: str) -> bool:
    """Return whether the value of a variable or header looks secret, judged by its name or its form."""
    if len(value) < MIN_CREDENTIAL_CHARS:
        return False
    if _SECRET_NAME.search(name):
        return True
    if value.startswith(("/", "./", "~", "../")):
        return False
    if "://" in value:
        return bool(urlsplit(value).password)
    return len(value) >= MIN_UNNAMED_CHARS and " " not in value and any(letter.isdigit() for letter in value)


def find_environment_credentials(environ: Mapping[str, str] | None = None) -> set[str]:
    """Return the values of the environment variables from which toolscout reads credentials."""
    environ = os.environ if environ is None else environ
    names = [name for name in environ if name.startswith(ENVIRONMENT)]  # reading all values would take 4 x as long
    return {value for name in names if (value := environ.get(name))}


def _encode_forms(value: str) -> Iterator[str]:
    """Yield a credential itself, and in the encodings that programs print."""
    if len(value) < MIN_CREDENTIAL_CHARS:
        return
    yield value
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield quote(value, safe="")
    yield quote(value)
    yield quote_plus(value)
    data = value.encode("utf-8", "surrogatepass")
    encoded = [data.hex(), data.hex().upper()]
    for shift in range(3):  # base64 differs with the position in a longer text, modulo 3
        for letters in (base64.b64encode, base64.urlsafe_b64encode):
            encoded_text = letters(b"\0" * shift + data).decode().rstrip("=")
            spare = -(shift + len(data)) % 3
            encoded.append(encoded_text[(0, 2, 3)[shift] : len(encoded_text) - (1 if spare else 0)])
    yield from (form for form in encoded if len(form) >= MIN_ENCODED_CHARS)
