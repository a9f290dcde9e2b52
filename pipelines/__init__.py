"""Data pipelines over topics: Spark and Ray Data (installed with ``velaray[spark]``)."""
