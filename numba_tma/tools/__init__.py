"""What stands beside the library: doctor, demo, benchmarks, plots, and helpers for tests."""
