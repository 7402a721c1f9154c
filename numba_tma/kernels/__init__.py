"""Kernels: each a readable TMA pipeline and a host wrapper that takes any device array."""
