"""Reads policies: who a caller is, and which tools they may see and call.

A caller shows a key or a token of an OAuth issuer. The file contains only hashes of the keys.

A pattern is a list of segments separated by slashes. It is compared with a tool's id and with `source/path…/name`. Both
begin with the source. `**` matches any number of segments, `*` any characters within one. The rest is literal. A *run*
is a part of a pattern between two `**`.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import hmac
import logging
import re
import secrets
import sys
import unicodedata
from collections.abc import Callable, Iterable, Sequence, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from toolscout.errors import ConfigError, Denied, explain_unknown_field, name_nearest, require
from toolscout.trust.private_files import read_plain_file
from toolscout.types import Tool

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from jwt import PyJWK, PyJWKClient, PyJWKSet

__all__ = ["LOCAL", "Caller", "Policies", "Rules", "ScopeMissing", "check_patterns", "hashed_key", "new_key"]

KEY_PREFIX: Final = "tsk_"
ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
MAX_CREDENTIAL_CHARS: Final = 16_384
UNKNOWN_CREDENTIAL: Final = "expected a valid key or token, found none: ask whoever runs this service for one"
CLOCK_LEEWAY_S: Final = 30.0  # clocks may differ by this
_KEY: Final = re.compile(r"sha256:[0-9a-f]{64}")
_log: Final = logging.getLogger("toolscout.access.policy")


class ScopeMissing(Denied):
    """A token is valid and belongs to a caller, but lacks scopes.

    Attributes:
        scope: the scopes that are needed, with spaces between them.
    """

    def __init__(self, scope: str) -> None:
        super().__init__(f"Your token lacks a scope. Ask your issuer for one with the scopes: {scope}")
        self.scope = scope


# --- what a caller may see --------------------------------------------------------------------------------------------

Segments = tuple[str, ...]
Part = TypeVar("Part", bound=Sized)


@dataclasses.dataclass(frozen=True)
class Rules:
    """Says which tools a caller may see: a predicate for `Search.visible`. Equal rules are equal and share one mask.

    A tool is allowed only if a pattern of `allow` matches it, character by character. `deny` takes precedence, and also
    matches other spellings: other case, compatibility forms, composed or not, with invisible characters. `read_only`
    leaves only tools that say they are read-only, and do not say they are destructive.
    """

    allow: frozenset[str] = frozenset()
    deny: frozenset[str] = frozenset()
    read_only: bool = False

    def __call__(self, tool: Tool) -> bool:
        """Return whether the tool may be seen."""
        only_reads = tool.hints.read_only is True and tool.hints.destructive is not True  # a hint may be None
        if self.read_only and not only_reads:
            return False
        allow = [_split_runs(pattern, exact=True) for pattern in self.allow]
        if not any(_matches(form, runs) for form in _list_forms(tool) for runs in allow):
            return False
        if not self.deny:
            return True
        deny = [_split_runs(pattern) for pattern in self.deny]
        return not any(_matches(form, runs) for form in _list_folded_forms(tool) for runs in deny)


def _list_forms(tool: Tool) -> set[Segments]:
    """Return what `allow` is compared with: the tool's id, and its path with the name, split at every slash."""
    full_path = "/".join((tool.source, *tool.path, tool.name))
    return {tuple(text.split("/")) for text in (tool.id, full_path)}


def _list_folded_forms(tool: Tool) -> set[Segments]:
    """Return what `deny` is compared with: id, source with name, and path with name, each folded.

    A slash inside a name may separate segments or not. Both count, because a tool must not escape by its name.
    """
    source, _, rest = tool.id.partition("/")
    forms = set()
    for parts in ((source, rest), (source, tool.name), (source, *tool.path, tool.name)):
        folded = tuple(map(_fold, parts))
        split_at_every_slash = tuple("/".join(folded).split("/"))
        forms |= {folded, split_at_every_slash}
    return forms


def _fold(text: str) -> str:
    """Return one spelling for all that differ only in case, compatibility forms, accents or invisible characters."""
    if text.isascii() and text.isprintable():  # control codes are ASCII, and invisible
        return text.casefold()
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", text).casefold())
    return "".join(letter for letter in folded if unicodedata.category(letter) not in ("Cf", "Cc", "Mn", "Me"))


@functools.lru_cache(maxsize=4096)
def _split_runs(pattern: str, *, exact: bool = False) -> tuple[Segments, ...]:
    """Split a pattern at each `**` into runs of segments, which are folded unless `exact`.

    `a/**/b` has the runs `("a",)` and `("b",)`; a run at an end may be empty.
    """
    runs: list[list[str]] = [[]]
    for segment in pattern.split("/"):
        if segment == "**":
            runs.append([])
        else:
            runs[-1].append(segment if exact else _fold(segment))
    return tuple(map(tuple, runs))


def _matches(form: Segments, runs: Sequence[Segments]) -> bool:
    """Return whether the runs of a pattern match `form` from its start to its end, with any segments between them."""

    def occurs(run: Segments, start: int) -> bool:
        return all(_matches_segment(form[start + offset], segment) for offset, segment in enumerate(run))

    return _occur_in_order(runs, len(form), occurs)


def _matches_segment(text: str, segment: str) -> bool:
    """Return whether a text matches a segment. An asterisk in the segment matches any characters."""
    if "*" not in segment:
        return text == segment
    return _occur_in_order(segment.split("*"), len(text), text.startswith)


def _occur_in_order(parts: Sequence[Part], size: int, occurs: Callable[[Part, int], bool]) -> bool:
    """Return whether the parts occur one after the other, the first at the start and the last at the end.

    The earliest position of each part is taken, so the time is at most proportional to the product of both lengths.

    Args:
        parts: texts, or runs of segments; at least one.
        size: length of what is searched, in characters or segments.
        occurs: returns whether a part occurs at a position. It is called only if the part ends within `size`.
    """
    first, *others = parts
    if not others:
        return size == len(first) and occurs(first, 0)
    *middle, last = others
    position, last_start = len(first), size - len(last)
    if position > last_start or not occurs(first, 0) or not occurs(last, last_start):
        return False
    for part in middle:
        while position + len(part) <= last_start and not occurs(part, position):
            position += 1
        position += len(part)
        if position > last_start:
            return False
    return True


Withheld = tuple[tuple[str, frozenset[str]], ...]  # scopes, each with patterns of the tools that need the scope


@dataclasses.dataclass(frozen=True)
class Caller:
    """A person or program that searches and calls.

    Attributes:
        name: for the journal.
        rules: which tools this caller may see and call. None means all.
        operator: whether this caller may read and change what all callers share: the journal, models, figures.
        subject: the subject of the token that they came with. Empty for a key.
        is_anonymous: whether they came without a credential, so that nobody knows who they are.
        withheld: scopes that their token lacks, each with patterns of the tools that need the scope.
    """

    name: str
    rules: Rules | None = None
    operator: bool = False
    subject: str = ""
    is_anonymous: bool = False
    withheld: Withheld = ()

    @functools.cached_property
    def person(self) -> str:
        """Under what the sign-ins at servers are stored: the name, and after a newline the token's subject if any.

        Several people with tokens may share the name of a caller.
        """
        return f"{self.name}\n{self.subject}" if self.subject else self.name

    @property
    def visible(self) -> Rules | None:
        """The predicate for `Search.visible`. It is hashable, and equal for callers with equal rules."""
        return self.rules

    def sees(self, tool: Tool) -> bool:
        """Return whether a search may return the tool to this caller."""
        return self.rules is None or self.rules(tool)

    def may_call(self, tool: Tool) -> bool:
        """Return whether this caller may call the tool. Only visible tools can be called."""
        return self.sees(tool) and not self.find_missing_scope(tool)

    def find_missing_scope(self, tool: Tool) -> str:
        """Return the scope that the tool needs and this caller's token lacks. Empty if there is none."""
        return next((scope for scope, patterns in self.withheld if Rules(allow=patterns)(tool)), "")


LOCAL: Final = Caller("local", operator=True)
"""The person who starts toolscout on their own machine. They may see and call everything."""


# --- the file ---------------------------------------------------------------------------------------------------------


class _CallerTable(msgspec.Struct, forbid_unknown_fields=True):
    """One `[[caller]]` table of the file."""

    name: str
    key: str | list[str] = []
    subjects: list[str] = []
    allow: list[str] = []
    deny: list[str] = []
    read_only: bool = False
    operator: bool = False


class _TokensTable(msgspec.Struct, forbid_unknown_fields=True):
    """The `[tokens]` table of the file."""

    issuer: str
    audience: str
    jwks: str
    claim: str = "sub"
    scopes: list[str] = []
    step_up: dict[str, list[str]] = {}
    algorithms: tuple[str, ...] = ("RS256", "ES256")


class _PolicyFile(msgspec.Struct, forbid_unknown_fields=True):
    """The file. `default` names the caller that everybody without a credential is."""

    caller: list[_CallerTable] = []
    default: str | None = None
    tokens: _TokensTable | None = None


def new_key() -> str:
    """Make an API key: 256 random bits, with a prefix by which scanners find leaked keys."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def hashed_key(key: str) -> str:
    """Hash a key for the file. A plain hash is enough, because nobody can guess 256 random bits."""
    return "sha256:" + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


@dataclasses.dataclass(frozen=True)
class Policies:
    """Says who may do what. Without a file everybody is `LOCAL`; with a file, only what it allows is allowed.

    Attributes:
        callers: those in the file.
        default: the caller that everybody without a credential is. None: a credential is required.
    """

    callers: tuple[Caller, ...] = ()
    default: Caller | None = LOCAL
    _keys: tuple[tuple[str, Caller], ...] = ()  # hash of each key, and its caller
    _tokens: _TokenChecker | None = None

    @classmethod
    def load(cls, path: Path | None) -> Policies:
        """Load the policies of a TOML file (docs/use/security.md). None means that there is no file.

        Raises:
            ConfigError: if the file is missing or an entry is invalid. An invalid file never allows anything.
        """
        if path is None:
            return cls()
        file = _read_file(path)
        callers: dict[str, Caller] = {}
        keys: list[tuple[str, Caller]] = []
        subjects: dict[str, Caller] = {}
        for entry in file.caller:
            where = f"{path}: caller {entry.name!r}"
            if not entry.name.strip() or entry.name in callers:
                raise ConfigError(f"{where}: expected a name of its own, found an empty or a repeated one")
            rules = Rules(check_patterns(where, entry.allow), check_patterns(where, entry.deny), entry.read_only)
            caller = Caller(entry.name, rules, entry.operator)
            callers[entry.name] = caller
            hashed_keys = [entry.key] if isinstance(entry.key, str) else entry.key
            for key in hashed_keys:
                _check_key(where, key, keys)
                keys.append((key, caller))
            _add_subjects(where, entry.subjects, caller, subjects)
        default = None if file.default is None else dataclasses.replace(callers[file.default], is_anonymous=True)
        tokens = None if file.tokens is None else _TokenChecker(path, file.tokens, subjects)
        return cls(tuple(callers.values()), default, tuple(keys), tokens)

    def explain_idle_callers(self) -> list[str]:
        """Write a sentence for each caller that nobody can be, and for each one that may see no tool."""
        reachable = {caller.name for _, caller in self._keys}
        if self._tokens is not None:
            reachable |= {caller.name for caller in self._tokens.subjects.values()}
        if self.default is not None:
            reachable.add(self.default.name)
        sentences = []
        for caller in self.callers:
            if caller.name not in reachable:
                sentences.append(
                    f"Nobody can be the caller {caller.name!r}: it has no key and no subjects, and is not the default. "
                    f"Write  default = {caller.name!r}  at the top of the file, or add a key with  toolscout key NAME"
                )
            allows_nothing = caller.rules is not None and not caller.rules.allow
            if allows_nothing and not caller.operator:  # an operator may need no tool
                sentences.append(
                    f"The policy of {caller.name!r} allows nothing, so this caller sees no tool. "
                    "Write  allow = ['**']  to allow everything that it does not deny"
                )
        return sentences

    @property
    def token_issuer(self) -> str:
        """Who issues the tokens of callers. Empty if callers come with keys only."""
        return "" if self._tokens is None else self._tokens.table.issuer

    def describe_resource(self) -> dict[str, object] | None:
        """Return the metadata of the service as a protected resource (RFC 9728). None if it takes no tokens."""
        if self._tokens is None:
            return None
        table = self._tokens.table
        return {
            "resource": table.audience,
            "authorization_servers": [table.issuer],
            "scopes_supported": sorted({*table.scopes, *table.step_up}),
            "bearer_methods_supported": ["header"],
        }

    def join_scopes(self, scope: str) -> str:
        """Return the scopes that every token needs and one more, with spaces between them."""
        scopes = [] if self._tokens is None else self._tokens.table.scopes
        return " ".join(dict.fromkeys([*scopes, scope]))

    @property
    def waits(self) -> bool:
        """Whether `caller` may have to wait for the issuer of tokens."""
        return self._tokens is not None

    def caller(self, credential: str | None) -> Caller:
        """Return the caller who has this credential.

        Args:
            credential: the API key or token that follows `Bearer` in a request, or None. For a token the issuer may
                be asked for its keys, which takes up to ten seconds.

        Raises:
            ScopeMissing: if their token lacks a scope that all calls need.
            Denied: if the credential belongs to nobody. The message is always the same, so it reveals nothing.
        """
        if not self.callers and self.default is LOCAL:
            return LOCAL
        if credential is None:
            if self.default is not None:
                return self.default
        elif len(credential) <= MAX_CREDENTIAL_CHARS:
            digest = hashed_key(credential)
            # All keys are compared, in constant time each, so that the time of an answer tells nothing.
            matches = [caller for key, caller in self._keys if hmac.compare_digest(key, digest)]
            if matches:
                return matches[0]
            token_owner = None if self._tokens is None else self._tokens.caller(credential)
            if token_owner is not None:
                return token_owner
        raise Denied(UNKNOWN_CREDENTIAL)


def _add_subjects(where: str, names: Sequence[str], caller: Caller, subjects: dict[str, Caller]) -> None:
    """Add the subjects of a caller to `subjects`. Raises ConfigError, which begins with `where`, if one is taken."""
    for subject in names:
        owner = subjects.setdefault(subject, caller)
        if owner is not caller:
            raise ConfigError(f"{where}: expected subjects of its own, found {subject!r} at another caller too")


def _read_file(path: Path) -> _PolicyFile:
    """Read a policy file, and check what its parts say about each other."""
    try:
        file = msgspec.convert(tomllib.loads(read_plain_file(path).decode()), _PolicyFile)
    except FileNotFoundError:
        raise ConfigError(f"{path}: expected a policy file, found none. Begin with  toolscout key NAME") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}. Check the path.") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        reason = explain_unknown_field(error, _PolicyFile, _CallerTable, _TokensTable)
        raise ConfigError(f"{path} is no policy: {reason} (docs/use/security.md)") from None
    if file.tokens is None and any(entry.subjects for entry in file.caller):
        raise ConfigError(f"{path}: expected [tokens] beside subjects, found none: say who issues the tokens")
    names = [entry.name for entry in file.caller]
    if file.default is not None and file.default not in names:
        advice = name_nearest(file.default, names, f"The callers are: {', '.join(names) or 'none'}")
        raise ConfigError(f"{path}: expected the name of a caller as default, found {file.default!r}. {advice}")
    return file


def check_patterns(where: str, patterns: Iterable[str]) -> frozenset[str]:
    """Return the patterns of a caller or profile. Raises ConfigError if one is invalid; `where` begins its message."""
    for pattern in patterns:
        segments = pattern.split("/")
        is_source_alone = bool(pattern) and len(segments) == 1 and pattern != "**"
        if is_source_alone or "" in segments:
            hint = f": write {pattern + '/**'!r} for a whole source" if is_source_alone else ""
            raise ConfigError(f"{where}: expected a pattern such as 'source/*' or '**', found {pattern!r}{hint}")
        if any("**" in segment and segment != "**" for segment in segments):
            raise ConfigError(f"{where}: expected ** to stand alone between slashes, found {pattern!r}")
    return frozenset(patterns)


def _check_key(where: str, key: str, taken: Sequence[tuple[str, Caller]]) -> None:
    """Refuse a key that is not hashed, or is one of `taken`, the keys before it in the file."""
    if not _KEY.fullmatch(key):
        raise ConfigError(
            f"{where}: expected a hashed key (sha256: and 64 hex digits), found something else: keys do not belong "
            "into files; make one with  toolscout key NAME"
        )
    if any(key == other_key for other_key, _ in taken):
        raise ConfigError(f"{where}: expected a key of its own, found one that occurs twice: make another")


# --- tokens -----------------------------------------------------------------------------------------------------------


class _TokenChecker:
    """Checks tokens as an OAuth resource server: signature, issuer, audience, expiry, scopes."""

    def __init__(self, path: Path, table: _TokensTable, subjects: dict[str, Caller]) -> None:
        wrong = [name for name in table.algorithms if name not in ALGORITHMS]
        if wrong or not table.algorithms:
            raise ConfigError(
                f"{path}: expected algorithms of {', '.join(ALGORITHMS)}, found {wrong or 'none'}: "
                "a secret that both sides share signs no tokens here"
            )
        if not table.issuer or not table.audience:
            raise ConfigError(f"{path}: expected an issuer and an audience in [tokens], found an empty one")
        self.table = table
        self.subjects = subjects  # value of the claim that names a caller → the caller
        self.step_up: Withheld = tuple(
            (scope, check_patterns(f"{path}: step_up {scope!r}", patterns)) for scope, patterns in table.step_up.items()
        )
        self.keys = _load_keys(path, table.jwks)

    def caller(self, token: str) -> Caller | None:
        """Return the caller to whom a token belongs. None if it is invalid, or belongs to nobody.

        Raises:
            ScopeMissing: if it lacks a scope that all calls need.
        """
        import jwt

        try:
            claims = jwt.decode(
                token,
                self._find_key(jwt.get_unverified_header(token).get("kid")),
                algorithms=self.table.algorithms,
                audience=self.table.audience,
                issuer=self.table.issuer,
                leeway=CLOCK_LEEWAY_S,
                options={"require": ["exp", "iss", "aud"]},
            )
        except jwt.PyJWKClientConnectionError as error:
            _log.warning("the keys of the tokens' issuer cannot be read now: %s", error)
            return None
        except (jwt.PyJWTError, ValueError, TypeError):  # forged, expired, of another audience, or malformed
            return None
        value = claims.get(self.table.claim)  # one name, or a list such as groups
        names = [value] if isinstance(value, str) else _list_texts(value)
        caller = next((self.subjects[name] for name in names if name in self.subjects), None)
        if caller is None:
            return None
        scopes = {*_split_scopes(claims.get("scope")), *_split_scopes(claims.get("scp"))}
        if not set(self.table.scopes) <= scopes:
            raise ScopeMissing(" ".join(self.table.scopes))
        subject = claims.get("sub")
        if not isinstance(subject, str) or not subject:
            subject = hashed_key(token)  # nobody shares sign-ins with another token
        withheld = tuple((scope, patterns) for scope, patterns in self.step_up if scope not in scopes)
        return dataclasses.replace(caller, subject=subject, withheld=withheld)

    def _find_key(self, kid: object) -> PyJWK:
        """Find the key that a token names: at the issuer's address, or in the file of keys."""
        from jwt import PyJWKClient, PyJWKClientError

        if not isinstance(kid, str):  # the errors are not shown: `caller` turns them into None
            raise PyJWKClientError("a token that names no key")
        if isinstance(self.keys, PyJWKClient):
            return self.keys.get_signing_key(kid)
        key = PyJWKClient.match_kid(self.keys.keys, kid)
        if key is None:
            raise PyJWKClientError("a token of an unknown key")
        return key


def _split_scopes(value: object) -> list[str]:
    """Return the scopes in a claim of a token: words in a text, or the items of a list."""
    return value.split() if isinstance(value, str) else _list_texts(value)


def _list_texts(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _load_keys(path: Path, jwks: str) -> PyJWKClient | PyJWKSet:
    """Load the issuer's public keys from a file, or prepare to fetch them from an https address."""
    jwt = require("jwt", "mcp")
    require("cryptography", "mcp")
    is_on_this_machine = re.match(r"http://(localhost|127\.0\.0\.1|\[::1\])[:/]", jwks)
    if jwks.startswith("https://") or is_on_this_machine:
        client: PyJWKClient = jwt.PyJWKClient(jwks, timeout=10)
        return client
    if jwks.startswith("http://"):
        raise ConfigError(f"{path}: expected an https address as jwks, found {jwks!r}")
    file = path.parent / jwks
    try:
        key_set: PyJWKSet = jwt.PyJWKSet.from_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, AttributeError, TypeError, KeyError, jwt.PyJWTError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{file}: expected a JSON Web Key Set, found something else: {reason}") from None
    return key_set
