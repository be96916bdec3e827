"""Speedproof: which of the well-known tricks for faster training work, by how much, at what cost."""
