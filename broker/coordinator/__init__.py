"""The actor around a transaction coordinator."""
