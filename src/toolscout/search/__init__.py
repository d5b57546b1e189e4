"""One search request: the pipeline and its stages, exact names, fusion, demotion, and why a tool is missing."""
