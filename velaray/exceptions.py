"""The errors that clients raise: see `velaray.client.exceptions`."""

from velaray.client.exceptions import *  # noqa: F403
