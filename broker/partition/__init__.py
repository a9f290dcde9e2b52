"""The actor around a topic partition, and its sessions with clients."""
