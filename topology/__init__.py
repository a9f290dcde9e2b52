"""Placement: the actor system, RPC between actors, ownership of the data directory."""
