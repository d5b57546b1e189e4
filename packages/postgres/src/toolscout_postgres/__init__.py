"""Homes of toolscout in PostgreSQL, which several machines share."""
