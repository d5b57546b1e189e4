"""What a home contains: the catalogue, the journal, the models, who may use them, and the databases of all four."""
