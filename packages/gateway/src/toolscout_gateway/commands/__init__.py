"""Commands that the package adds to the program `toolscout`."""
