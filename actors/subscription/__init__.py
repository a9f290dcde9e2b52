"""The subscription: its cursor, its pending acknowledgements, and its progress for other
clusters."""
