"""Engines that keep the vectors of tools outside of the process; see `contract`."""
