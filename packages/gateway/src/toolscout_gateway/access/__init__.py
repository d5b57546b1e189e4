"""Who comes in, over HTTP or standard input, and under whose identity servers are called."""
