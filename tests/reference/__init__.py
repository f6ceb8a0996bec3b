"""Plain-torch float64 references of the ops: slow, obvious, independent of the kernels; not shipped."""
