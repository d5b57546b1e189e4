"""The command line. Each module holds a group of commands, `main` dispatches, `output` prints results."""
