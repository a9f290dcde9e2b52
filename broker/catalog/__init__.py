"""The actor around the catalog."""
