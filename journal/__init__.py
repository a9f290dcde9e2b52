"""How events are kept: ledgers, frames, group commit, fencing, checkpoints, recovery."""
