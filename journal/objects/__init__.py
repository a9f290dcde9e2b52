"""Journals in an object store: many journals share one log of objects per process."""
