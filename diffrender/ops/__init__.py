"""The differentiable operations, one file each."""
