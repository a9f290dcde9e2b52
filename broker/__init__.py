"""The service: proxy, partitions, subscriptions, coordinators, catalog, schema registries."""
