"""Several clusters: replication, inbound replication, migration of tenants."""
