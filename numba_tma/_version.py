"""The version of the library, which `pyproject.toml` repeats (a test compares them)."""

#: Version of the library: major, minor, patch.
__version__ = "0.1.0"
