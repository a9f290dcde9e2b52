"""The workloads, run against any system through its senders and takers."""
