"""Benchmarks: scripts to be run from the root of the project, `python -m benchmarks.run`; see README.md here."""
