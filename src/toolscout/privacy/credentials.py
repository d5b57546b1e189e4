"""Moved: see the import."""

from toolscout.privacy.redaction import CREDENTIAL_PREFIX, Cover, find_environment_credentials, looks_secret  # moved

__all__ = ["CREDENTIAL_PREFIX", "Cover", "find_environment_credentials", "looks_secret"]
