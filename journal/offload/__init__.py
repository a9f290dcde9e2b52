"""Tiered ledgers: copies of sealed ledgers in an archive, which replace the local ones."""
