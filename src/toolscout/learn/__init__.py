"""The learning loop: fits a model on the journal, compares it with the champion, and promotes it if it is better."""
