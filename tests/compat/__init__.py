"""Tests of the interfaces of other libraries."""
