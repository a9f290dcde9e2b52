"""The actor around a subscription."""
