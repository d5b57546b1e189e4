"""Encoders for torch, their export to ONNX, and the cache of pairs."""
