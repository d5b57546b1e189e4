"""Access control: who a caller is, and which tools they may discover and call; checks for every HTTP face."""
