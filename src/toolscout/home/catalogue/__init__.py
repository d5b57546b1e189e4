"""The catalogue: which tools there are. It stores them, keeps them in step with their sources, and screens them."""
