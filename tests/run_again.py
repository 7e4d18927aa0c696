"""A stand-in for graphs, where there is no CUDA."""

from collections.abc import Callable


class RunAgain:
    """Stands in for graphs: replays by running once more, and counts how often."""

    def __init__(self) -> None:
        self.warmed = 0
        self.captured = 0
        self.replayed = 0

    def warm_up(self, run: Callable[[], None]) -> None:
        self.warmed += 1
        run()

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        self.captured += 1

        def replay() -> None:
            self.replayed += 1
            run()

        return replay

    def bytes_free(self) -> int:
        return 0
