"""The subscription: its cursor, its pending acknowledgements, and what it tells other clusters."""
