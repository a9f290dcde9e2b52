"""The schema registry of a topic."""
