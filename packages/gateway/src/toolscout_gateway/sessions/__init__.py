"""Sessions with the servers behind the gateway, and what passes between callers and servers beside calls."""
