"""What every test starts from: a quiet Ray, and hypothesis without wall-clock limits."""

import os
import secrets

from hypothesis import HealthCheck, settings

# Before anything imports ray: send nothing home, and ask for a token, but not for the user's.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ["RAY_AUTH_MODE"] = "token"
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))

# Two cores that other work shares say nothing about how long an example should take.
settings.register_profile("velaray", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("velaray")
