"""The command line. Each file is one group of commands; `main` only dispatches; `output` is how results are shown."""
