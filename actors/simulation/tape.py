"""A recording of a simulated trace, like that of an engine: for that, what the parts of a run say
to each other is numbered, which otherwise nobody asks for."""

from pathlib import Path

from ...gpu.device import DeviceFacts
from ...kvpool import BlockPool
from ...messages import Generate, StepPlan, TokensReady
from ..actor import Mailbox
from ..cores import CoreSetup
from ..journal import Journal
from ..kvpool import KVPool
from ..recording.file import RecordingFile
from ..recording.format import End
from ..recording.recorder import header_of


class Tape:
    """Hears what is said in a run, and writes it."""

    def __init__(self, path: Path, setup: CoreSetup, facts: DeviceFacts, journal: Journal) -> None:
        self._journal = journal
        self._file = RecordingFile(path, header_of(setup, facts))
        journal.attach(self._file.hear)

    def pool(self, pool: BlockPool) -> KVPool:
        """The actor in front of the pool, so that questions and answers are numbered."""
        return KVPool(Mailbox("kvpool", self._journal), self._journal, pool)

    def plan(self, plan: StepPlan) -> None:
        self._journal.note("executor", plan)

    def hear(self, message: Generate | TokensReady) -> None:
        """What a Detokenizer would hear."""
        self._journal.note("detokenizer", message)

    def save(self) -> None:
        self._file.close(End(self._journal.failure))
