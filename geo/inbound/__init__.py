"""Replication from clusters that do not push, such as Apache Pulsar."""
