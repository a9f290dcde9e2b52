"""The actor around a schema registry, and how the others call it."""
