"""Schemas under the names of ``pulsar.schema``: see `velaray.client.schema`."""

from velaray.client.schema import *  # noqa: F403
from velaray.client.schema import __all__ as __all__
