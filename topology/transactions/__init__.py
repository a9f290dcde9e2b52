"""Transactions: coordinators, and what partitions have of them."""
