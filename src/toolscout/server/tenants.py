"""Moved: see the import."""

from toolscout.server.app import serve_tenants  # moved

__all__ = ["serve_tenants"]
