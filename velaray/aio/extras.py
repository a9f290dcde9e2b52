"""What a consumer may have besides its subscription."""

from __future__ import annotations

from dataclasses import dataclass

from velaray.aio.letters import Letters
from velaray.interceptors import ConsumerInterceptors


@dataclass(frozen=True)
class Extras:
    """Topics that messages are moved to, and interceptors."""

    letters: Letters | None = None
    interceptors: ConsumerInterceptors | None = None
