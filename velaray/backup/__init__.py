"""Backups of all journals of a cluster, and the move of journals between stores."""
