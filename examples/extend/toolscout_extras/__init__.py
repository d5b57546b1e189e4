"""One source, one encoder, one index and one method for toolscout; docs/extend/ explains each."""
