"""TODO catalogue."""
