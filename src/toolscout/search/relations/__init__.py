"""What the tools of a catalogue have to do with each other: copies, rivals, prerequisites, the services behind them."""
