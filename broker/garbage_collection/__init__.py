"""Deletion of ledgers in two phases, and the audit of stored ledgers."""
