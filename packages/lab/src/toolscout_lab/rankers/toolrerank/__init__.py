"""ToolRerank (arXiv:2403.06551): adaptive truncation and hierarchy-aware reranking over a cross-encoder."""
