"""Random calls of the public functions, held to NumPy in float64: ``python -m tests.fuzz``."""
