"""The handlers of a session with partitions: producers, consumers, acknowledgements, queries."""
