"""Durable, transactional publish-subscribe for Ray and Spark."""
