"""The learning loop: fits a model on the journal, and promotes it if it is better than the champion."""
