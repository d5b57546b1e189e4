"""Reads profiles: named parts of the catalogue, each with its own pins, budgets and instructions.

A profile narrows what its user sees. The policy still applies, so a profile never shows more than the caller may see.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from toolscout.errors import ConfigError, NotFound, StoreError, explain_unknown_field
from toolscout.home.database import open_home
from toolscout.location import Home, describe_home
from toolscout.settings import MIN_BUDGET, MIN_RESULT_BUDGET
from toolscout.trust.policy import Caller, Rules, check_patterns
from toolscout.types import Tool

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["PROFILE_FILE", "Profile", "ProfileRules", "Profiles", "profile_of", "put_profiles"]

PROFILE_FILE: Final = "profiles.toml"  # in the home, which may be a database
MAX_INSTRUCTIONS_CHARS: Final = 4_000
_PROFILE_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")  # it is a part of an address
_ALL_PATTERNS: Final = frozenset({"**"})


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One `[[profile]]` table of the file. It selects a tool if a pattern of `allow` or one of `tags` does.

    Attributes:
        name: a part of the address, `/mcp/p/<name>`.
        allow: patterns of tool ids, as in a policy.
        tags: tags of tools.
        deny: patterns of tools that are not in it, whatever selects them.
        read_only: only tools that say they are read-only, and do not say they are destructive.
        pins: ids of tools that are listed beside the meta-tools, instead of the gateway's own pins.
        budget: most tokens of an answer of search_tools or describe_tools. None: as many as the gateway allows.
        result_budget: most tokens of a call's result. None: as many as the gateway allows.
        instructions: what the client tells the model, before the gateway's own instructions.
    """

    name: str
    allow: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()
    deny: frozenset[str] = frozenset()
    read_only: bool = False
    pins: tuple[str, ...] = ()
    budget: int | None = None
    result_budget: int | None = None
    instructions: str = ""

    def narrow(self, caller: Caller) -> Caller:
        """Return the caller, restricted to the tools of this profile among those that they may see."""
        rules = ProfileRules(self.allow, self.deny, self.read_only, profile=self, policy=caller.rules)
        return dataclasses.replace(caller, rules=rules)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProfileRules(Rules):
    """The rules of a caller who uses a profile: what the policy allows, and the profile selects.

    Attributes:
        profile: the profile.
        policy: the rules of the caller. None means that they may see everything.
    """

    profile: Profile
    policy: Rules | None

    def __call__(self, tool: Tool) -> bool:
        """Return whether the tool may be seen."""
        if self.policy is not None and not self.policy(tool):
            return False
        if self.profile.tags.isdisjoint(tool.tags):
            return super().__call__(tool)  # by the patterns of `allow`, if not denied
        return Rules(_ALL_PATTERNS, self.deny, self.read_only)(tool)  # a tag selects it, if not denied


def profile_of(caller: Caller) -> Profile | None:
    """Return the profile that a caller uses now."""
    return caller.rules.profile if isinstance(caller.rules, ProfileRules) else None


class _ProfilesFile(msgspec.Struct, forbid_unknown_fields=True):
    """The content of the file: a table `[[profile]]` for each profile."""

    profile: list[Profile] = []


class Profiles:
    """The profiles of a home, read again when they change.

    An invalid file changes nothing, and so does a file that disappears. A sentence says so.
    """

    def __init__(self, home: Home) -> None:
        """Read the profiles of a home. Without a file there are none.

        Raises:
            ConfigError: if the file is invalid.
            StoreError: if the database does not answer.
        """
        self._home = home
        self._label = f"{describe_home(home)}/{PROFILE_FILE}"
        self._stamp = open_home(home).stamp_document(PROFILE_FILE)  # changes with the file; None: there is no file
        self._profiles = self._read() if self._stamp is not None else {}

    @property
    def has_file(self) -> bool:
        """Whether the home had profiles when it was looked at last."""
        return self._stamp is not None

    def _read(self) -> dict[str, Profile]:
        """Read the file: name → profile. Raises ConfigError if it is invalid."""
        try:
            content = open_home(self._home).read_document(PROFILE_FILE)
        except OSError as error:
            raise ConfigError(f"{self._label} cannot be read: {error.strerror}") from None
        return parse_profiles(self._label, content)

    def refresh(self, say: Callable[[str], None]) -> None:
        """Read the file again if it changed. `say` receives a sentence about what happened."""
        try:
            stamp = open_home(self._home).stamp_document(PROFILE_FILE)
            if stamp == self._stamp:
                return
            profiles = {} if stamp is None else self._read()
        except StoreError:
            return  # the database is away: the profiles stay, and the next look finds what changed
        except ConfigError as error:
            self._stamp = stamp  # so that it is said once
            say(f"the old profiles stay in force, because the new ones are not valid: {error}")
            return
        self._stamp = stamp
        if stamp is None:
            say(f"{self._label} is gone; its profiles stay until the gateway is restarted")
            return
        self._profiles = profiles
        say(f"the profiles in {self._label} changed; they are in force now")

    @property
    def all(self) -> tuple[Profile, ...]:
        """All profiles, in the order of the file."""
        return tuple(self._profiles.values())

    def find(self, name: str) -> Profile | None:
        """Return a profile. None if there is none of this name."""
        return self._profiles.get(name)

    def require(self, name: str) -> Profile:
        """Return a profile.

        Raises:
            NotFound: if there is none. The message names the nearest one.
        """
        if name in self._profiles:
            return self._profiles[name]
        if not self._profiles:
            raise NotFound(f"There is no profile {name!r}, because {self._label} holds none. See docs/use/profiles.md.")
        near = difflib.get_close_matches(name, self._profiles, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(self._profiles)}."
        raise NotFound(f"There is no profile {name!r} in {self._label}. {hint}")


def put_profiles(home: Home, file: Path) -> int:
    """Check a file of profiles, and copy it into a home. Returns the number of profiles.

    Raises:
        ConfigError: if it contains something else.
    """
    content = file.read_bytes()
    profiles = parse_profiles(str(file), content)
    open_home(home).write_document(PROFILE_FILE, content)
    return len(profiles)


def parse_profiles(label: str, content: bytes) -> dict[str, Profile]:
    """Parse the content of a file of profiles. Returns name → profile, in the order of the file.

    Raises:
        ConfigError: if it contains something else. The message begins with `label`.
    """
    try:
        file = msgspec.convert(tomllib.loads(content.decode("utf-8")), _ProfilesFile)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError, msgspec.ValidationError) as error:
        reason = explain_unknown_field(error, _ProfilesFile, Profile)
        raise ConfigError(f"{label} holds no profiles: {reason} (docs/use/profiles.md)") from None
    profiles: dict[str, Profile] = {}
    for profile in file.profile:
        where = f"{label}: profile {profile.name!r}"
        if not _PROFILE_NAME.fullmatch(profile.name):
            raise ConfigError(
                f"{where}: expected a name of small letters, digits, - and _, because it is a part of an address"
            )
        if profile.name in profiles:
            raise ConfigError(f"{where}: expected a name of its own, found one that occurs twice")
        _check_profile(where, profile)
        profiles[profile.name] = profile
    return profiles


def _check_profile(where: str, profile: Profile) -> None:
    """Check the values of a profile. Raises ConfigError if one is invalid."""
    check_patterns(where, profile.allow)
    check_patterns(where, profile.deny)
    if not profile.allow and not profile.tags:
        raise ConfigError(f"{where}: expected allow or tags, found neither: write allow = ['**'] for all tools")
    for name, value, least in (
        ("budget", profile.budget, MIN_BUDGET),
        ("result_budget", profile.result_budget, MIN_RESULT_BUDGET),
    ):
        if value is not None and value < least:
            raise ConfigError(f"{where}: expected a {name} of at least {least} tokens, found {value}")
    if len(profile.instructions) > MAX_INSTRUCTIONS_CHARS:
        n_chars = len(profile.instructions)
        raise ConfigError(
            f"{where}: expected instructions of at most {MAX_INSTRUCTIONS_CHARS:,} characters, found {n_chars:,}"
        )
