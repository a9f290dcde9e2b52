"""Tenants that move to another cluster, in peace or after a disaster."""
