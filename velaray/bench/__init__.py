"""The load generator behind ``velaray bench``."""
