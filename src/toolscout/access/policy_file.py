"""The policy of a home: the file `policy.toml`, which all machines share if the home is a database."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from toolscout.access.policy import Policies
from toolscout.database.documents import read_document, write_document
from toolscout.errors import ConfigError
from toolscout.home import Home, find_shared, local_folder
from toolscout.privacy.private_files import make_private_folder, replace_file

__all__ = ["POLICY_FILE", "find_policy", "put_policy"]

POLICY_FILE: Final = "policy.toml"


def find_policy(home: Home) -> Path | None:
    """Return the policy file of a home, or None if it has none. From a database the present one is fetched first.

    Raises:
        StoreError: if the database does not answer. Nothing is served then without the policy.
    """
    file = local_folder(home) / POLICY_FILE
    if find_shared(home) is None:
        return file if file.exists() else None
    try:
        content = read_document(home, POLICY_FILE)
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
    write_document(home, POLICY_FILE, content)
