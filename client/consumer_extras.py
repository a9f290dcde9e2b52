"""What a consumer may have besides its subscription."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from velaray.client.dead_letters import DeadLetterProducers
from velaray.client.interceptors import ConsumerInterceptors
from velaray.client.schema.base import Schema


@dataclass(frozen=True)
class Extras:
    """Topics that messages are moved to, interceptors, and a schema other than that of bytes."""

    dead_letters: DeadLetterProducers | None = None
    interceptors: ConsumerInterceptors | None = None
    schema: Schema[Any] | None = None
