"""Ledgers that go: their deletion in two phases, and the census of what is stored."""
