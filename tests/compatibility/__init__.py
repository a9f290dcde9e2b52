"""Data that earlier versions wrote."""
