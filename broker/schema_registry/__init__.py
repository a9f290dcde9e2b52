"""The schema registry's actor, and the calls to it."""
