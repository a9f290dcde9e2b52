"""The dispatcher: which consumer of a subscription gets which entries. Volatile."""
