"""The catalog: clusters, tenants, namespaces, topics and policies."""
