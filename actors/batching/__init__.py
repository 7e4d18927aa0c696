"""The pure core of the Scheduler: sequences, their positions, and the plan of the next step."""

from .batcher import Batcher
from .grammar import Grammar, Grammars
from .limits import BatchLimits
from .speculation import Drafter

__all__ = ["BatchLimits", "Batcher", "Drafter", "Grammar", "Grammars"]
