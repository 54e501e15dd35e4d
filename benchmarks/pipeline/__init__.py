"""Benchmarks of the data pipeline."""
