"""Readers of a data directory that need no running cluster."""
