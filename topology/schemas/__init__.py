"""Schemas of topics: their registries, and who asks them."""
