"""Privacy: covers credentials and personal data, keeps files private, and remembers which folders are trusted."""
