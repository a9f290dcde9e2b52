"""The proxy: the address that clients connect to first."""
