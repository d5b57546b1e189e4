"""The laboratory: measures recipes on dataset folders, compares them, and reports what was found."""
