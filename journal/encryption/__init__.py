"""Encryption at rest: the keys of ledgers, and the encrypted parts of frames.

See docs/decisions/0054-encryption-at-rest.md.
"""
