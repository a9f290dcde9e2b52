"""Durable storage of events: ledgers, frames, group commit, fencing, checkpoints, recovery."""
