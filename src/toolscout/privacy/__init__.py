"""Covers credentials and personal data, keeps files private, and remembers trusted folders."""
