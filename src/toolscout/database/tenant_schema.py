"""Moved to `toolscout_postgres.tenant_schema`."""

from toolscout_postgres.tenant_schema import hide_rows, separate_tables  # moved

__all__ = ["hide_rows", "separate_tables"]
