"""The partition: a log of entries, its producers, and the names of its subscriptions."""
