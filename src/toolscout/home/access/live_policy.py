"""The policy of a home: the file `policy.toml`, which all machines share if the home is a database.

A running service or gateway keeps in step with the file, so that a new key or rule is in force without a restart.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from toolscout.errors import ConfigError, StoreError
from toolscout.home.database import open_home
from toolscout.location import Home, find_shared, local_folder
from toolscout.trust.policy import Caller, Policies
from toolscout.trust.private_files import make_private_folder, replace_file

__all__ = ["POLICY_FILE", "LivePolicies", "find_policy", "open_policies", "put_policy", "stamp_file"]

POLICY_FILE: Final = "policy.toml"


def find_policy(home: Home) -> Path | None:
    """Return the policy file of a home, or None if it has none. From a database the file is written first.

    Raises:
        StoreError: if the database does not answer, so that nothing is served without the policy.
    """
    file = local_folder(home) / POLICY_FILE
    if find_shared(home) is None:
        return file if file.exists() else None
    try:
        content = open_home(home).read_document(POLICY_FILE)
    except FileNotFoundError:
        return None
    make_private_folder(file.parent)
    replace_file(file, content)
    return file


def put_policy(home: Home, file: Path) -> None:
    """Check a policy file, and make it the policy of a home.

    Raises:
        ConfigError: if it is no policy, or refers to a file that other machines do not have.
    """
    Policies.load(file)
    content = file.read_bytes()
    # Machines that share a database write the policy into a folder of their own. It must be valid there too: a key set
    # that it names by a path is not beside it any more.
    if find_shared(home) and file.parent.resolve() != local_folder(home).resolve():
        make_private_folder(local_folder(home))
        trial = local_folder(home) / f".{POLICY_FILE}.new"
        replace_file(trial, content)
        try:
            Policies.load(trial)
        except ConfigError as error:
            raise ConfigError(
                f"{file} works only beside its key set: {error}. In a database, write jwks as an https address."
            ) from None
        finally:
            trial.unlink()
    open_home(home).write_document(POLICY_FILE, content)


class LivePolicies:
    """The policies of a file, with the methods of `Policies`. It is read again when the file changes.

    An invalid file changes nothing, so that a typing error locks nobody out; a sentence says so. A file that appears
    is obeyed from then on. If it disappears, its rules stay, so that no access opens by mistake.

    Attributes:
        path: the file.
        version: rises with each change.
        has_rules: whether rules of the file are in force. They stay so if the file disappears.
    """

    def __init__(self, path: Path, *, is_required: bool = True, home: Home | None = None) -> None:
        """Read the file.

        Args:
            path: the file, or the copy of it on this machine if the home is a database.
            is_required: whether it must be there now; otherwise it may be made later.
            home: the home to which the policy belongs; None: the file belongs to no home.

        Raises:
            ConfigError: if the file is missing or invalid.
            StoreError: if the database does not answer, so that nothing is served without the policy.
        """
        self.path, self.version = path, 0
        self._database = find_shared(home) if home else None
        self._stamp = self._read_stamp()  # of the last reading, before it: a change meanwhile is noticed next time
        self._fetch()
        self.has_rules = is_required or self._stamp is not None
        self._current = Policies.load(path if self.has_rules else None)

    def refresh(self, say: Callable[[str], None]) -> None:
        """Read the file again if it changed. `say` receives a sentence about what happened."""
        try:
            stamp = self._read_stamp()
            if stamp == self._stamp:
                return
            if stamp is not None:
                self._fetch()
        except StoreError:
            return  # the database is away: its rules stay, and the next look finds what changed
        self._stamp = stamp
        if stamp is None:
            say(f"{self.path} is gone; its rules stay in force until a restart")
            return
        try:
            self._current = Policies.load(self.path)
        except ConfigError as error:
            say(f"the old rules stay in force, because the new ones are not valid: {error}")
            return
        self.version, self.has_rules = self.version + 1, True
        say(f"the policy file {self.path} changed; its rules are in force now")

    def _read_stamp(self) -> tuple[int, int, int] | None:
        """Return what changes when the policy changes; None: there is none."""
        return open_home(self._database).stamp_document(POLICY_FILE) if self._database else stamp_file(self.path)

    def _fetch(self) -> None:
        """Write the policy of a database to the file."""
        if self._database:
            find_policy(self._database)

    @property
    def callers(self) -> tuple[Caller, ...]:
        """The callers of the file."""
        return self._current.callers

    @property
    def default(self) -> Caller | None:
        """The caller without a credential."""
        return self._current.default

    def explain_idle_callers(self) -> list[str]:
        """Write a sentence for each caller of no use; see `Policies.explain_idle_callers`."""
        return self._current.explain_idle_callers()

    @property
    def token_issuer(self) -> str:
        """Who issues the tokens of callers; see `Policies.token_issuer`."""
        return self._current.token_issuer

    def describe_resource(self) -> dict[str, object] | None:
        """Return the metadata of the service as a resource; see `Policies.describe_resource`."""
        return self._current.describe_resource()

    def join_scopes(self, scope: str) -> str:
        """Return the scopes that a token needs; see `Policies.join_scopes`."""
        return self._current.join_scopes(scope)

    @property
    def waits(self) -> bool:
        """Whether `caller` may have to wait for the issuer of tokens."""
        return self._current.waits

    def caller(self, credential: str | None) -> Caller:
        """Return the caller who has this credential; see `Policies.caller`."""
        return self._current.caller(credential)


def open_policies(path: Path | None, home: Home) -> LivePolicies:
    """Open the policies in a file, or without a path the policy of the home, which need not exist yet.

    Raises:
        ConfigError: if a file that is named is missing, or a file is invalid.
        StoreError: if the database does not answer.
    """
    if path is not None:
        return LivePolicies(path)
    return LivePolicies(local_folder(home) / POLICY_FILE, is_required=False, home=home)


def stamp_file(path: Path) -> tuple[int, int, int] | None:
    """Return what changes when a file is written or replaced. None if there is no such file."""
    try:
        state = path.stat()
    except (OSError, ValueError):
        return None
    return state.st_mtime_ns, state.st_size, state.st_ino
