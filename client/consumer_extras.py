"""The optional parts of a consumer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from velaray.client.dead_letters import DeadLetterProducers
from velaray.client.interceptors import ConsumerInterceptors
from velaray.client.schema.base import Schema


@dataclass(frozen=True)
class Extras:
    """Retry and dead-letter topics, interceptors, and a schema other than bytes."""

    dead_letters: DeadLetterProducers | None = None
    interceptors: ConsumerInterceptors | None = None
    schema: Schema[Any] | None = None
