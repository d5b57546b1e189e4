"""The command line. Each module contains a group of commands, `main` dispatches, `output` prints results."""
