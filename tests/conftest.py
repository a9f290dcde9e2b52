"""What every test starts from: a quiet Ray, and hypothesis without wall-clock limits."""

import os

from hypothesis import HealthCheck, settings

# Before anything imports ray: send nothing home, and ask for no token on this machine.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")

# Two cores that other work shares say nothing about how long an example should take.
settings.register_profile("velaray", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("velaray")
