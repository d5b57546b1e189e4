"""Indexes for catalogues of more than 20,000 tools, and a second process that screens them. For toolscout.

toolscout finds them by the entry points of this package; `toolscout.indexes.large` is the contract.
"""
