"""Fitted models: the folders that hold them, and the champion that serves."""
