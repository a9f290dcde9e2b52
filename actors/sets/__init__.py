"""Sets of offsets."""
