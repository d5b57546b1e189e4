"""What several rankers of this package share."""
