"""Moved to `toolscout_postgres.engines`."""

from toolscout_postgres.engines import milvus, pgvector  # moved

__all__ = ["milvus", "pgvector"]
