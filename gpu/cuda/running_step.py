"""RunningStep: a step that was queued, until its result is read."""

from collections.abc import Callable, Mapping

import numpy as np
from torch import Tensor

from ...messages import Ints, RowFailed, StepDone, StepPlan, frozen_ints
from ...messages.arrays import NO_INTS
from ..row_failures import NOT_NUMBERS, row_failures
from ..verify import accept
from .frames import forget_frames
from .logprobs import StepTelling
from .processors import ProcessorCalls
from .samples import Samples
from .streams import Mark, Work


class RunningStep:
    """What queued work leaves for its later parts, and what comes of it."""

    def __init__(
        self,
        plan: StepPlan,
        samples: Samples,
        refused: Mapping[int, str],
        telling: StepTelling | None = None,
    ) -> None:
        """`refused` tells of rows, by their place in the plan, why their requests cannot be had,
        `telling` what the others asked to be told."""
        self.plan = plan
        self.telling = telling
        self.processors: ProcessorCalls | None = None  # that run before it samples
        self.logits: Tensor | None = None  # [samples, vocab], between computing and sampling
        self.told: list[Tensor] = []  # words of what is told, on the device
        self.words: Tensor | None = None  # [samples and what is told] of int32, on the device
        self._samples = samples
        self._refused = refused
        self.error: Exception | None = None  # what queued work raised, once that is known
        self._mark: Mark | None = None
        self._fetched: Tensor | None = None  # like `words`, on the host
        self._give_back: Callable[[], None] = lambda: None

    def caught(self, work: Work) -> Work:
        """The same work as a stream wants it: what it raises is this step's result, and nothing is
        done after that."""

        def run() -> None:
            if self.error is not None:
                return
            try:
                work()
            except Exception as error:  # whatever a model raises fails this step, and no stream
                forget_frames(error)
                self.error = error

        return run

    def ends_with(
        self,
        mark: Mark,
        fetched: Tensor | None = None,
        give_back: Callable[[], None] = lambda: None,
    ) -> None:
        """The step is done at this mark; then `fetched` holds its words, until it is given back."""
        self._mark, self._fetched, self._give_back = mark, fetched, give_back

    @property
    def has_refused(self) -> bool:
        """Whether requests of the step cannot be had."""
        return len(self._refused) > 0

    @property
    def num_words(self) -> int:
        """Of the result: what is sampled, and what is told."""
        return len(self._samples) + (0 if self.telling is None else self.telling.num_words)

    def words_or(self, other: Tensor) -> Tensor:
        """The words of the result; something else where the step failed before."""
        return other if self.words is None else self.words

    def wait(self) -> StepDone:
        """Wait until the device is done with the step. Raises what the step raised."""
        assert self._mark is not None, "nothing of the step is queued"
        self._mark.wait()
        self.logits = self.words = None
        self.told.clear()
        words: Ints = NO_INTS if self._fetched is None else self._fetched.numpy().copy()
        self._give_back()
        if self.error is not None:
            raise self.error
        return self._result(words)

    def _result(self, words: Ints) -> StepDone:
        plan = self.plan
        if not len(words):
            return StepDone(plan.step, NO_INTS, self._failed_beside(()))
        sampled = words[: len(self._samples)]
        if self._refused:
            sampled[np.isin(self._samples.rows, list(self._refused))] = NOT_NUMBERS
        token_ids, counts = accept(plan, sampled)
        faults = {int(plan.slots[row]): error for row, error in self._refused.items()}
        if self.processors is not None:
            faults |= self.processors.faults(sampled, self._samples.slots)
        failed = row_failures(plan, token_ids, counts, faults)
        told = None
        if self.telling is not None:
            told, untold = self.telling.read(words[len(self._samples) :], token_ids, counts)
            failed += untold
        token_ids = frozen_ints(np.maximum(token_ids, -1))
        return StepDone(plan.step, token_ids, self._failed_beside(failed), counts, told)

    def _failed_beside(self, failed: tuple[RowFailed, ...]) -> tuple[RowFailed, ...]:
        """With the refused rows that sample nothing."""
        told = {one.row for one in failed}
        more = (RowFailed(row, why) for row, why in self._refused.items() if row not in told)
        return tuple(sorted((*failed, *more), key=lambda one: one.row))
