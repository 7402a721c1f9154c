"""The version of the library, which `pyproject.toml` repeats (a test compares them)."""

__version__ = "0.1.0"
