"""Pulsar's binary protocol: frames, commands, batches, compression, routing hashes, connections."""
