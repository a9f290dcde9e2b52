"""Measurements of velaray and of what its users would take instead; see README.md."""
