"""What planning reads and writes: a Batcher has one of each."""

from dataclasses import dataclass

from .block_client import BlockClient
from .ledger import Ledger
from .limits import BatchLimits
from .publishing import Publisher
from .report import Report
from .roster import Roster
from .steps import StepsInFlight
from .structured import StructuredRows
from .victims import Victims


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a Batcher that its planning works on."""

    limits: BatchLimits
    ledger: Ledger
    roster: Roster
    blocks: BlockClient
    publisher: Publisher | None  # None without prefix caching
    victims: Victims
    structured: StructuredRows
    steps: StepsInFlight
    report: Report
