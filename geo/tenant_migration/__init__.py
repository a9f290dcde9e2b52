"""Migration and failover of tenants."""
