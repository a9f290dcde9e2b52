"""Replication to other clusters."""
