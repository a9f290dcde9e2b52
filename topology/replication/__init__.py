"""Replication between clusters: replicators, what they bring, and what becomes of it there."""
