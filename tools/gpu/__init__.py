"""Sections of tools/gpu_check.py: each module here but `driver`, `report` and `recorder` is one, run as a process."""
