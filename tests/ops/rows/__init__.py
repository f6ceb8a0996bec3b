"""The rows of the contract table, one file per op; tests/ops/contract.py lists them."""
