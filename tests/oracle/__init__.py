"""The oracle of a restructuring: simulated histories and machine traces, recorded and compared."""
