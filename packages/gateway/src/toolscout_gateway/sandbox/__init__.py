"""Runs short programs of agents without files and network: `runner` starts a process, `child` is what runs in it."""
