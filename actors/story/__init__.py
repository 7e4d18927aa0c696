"""The story of a run, told from its messages: of one request, and of everything over time. Pure."""

from .chronicle import Chronicle
from .explain import explain
from .story import Story
from .telling import tell
from .timeline import Timeline, timeline

__all__ = ["Chronicle", "Story", "Timeline", "explain", "tell", "timeline"]
