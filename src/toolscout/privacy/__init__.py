"""Covers credentials and personal data, keeps files private, and remembers which folders the user trusts."""
