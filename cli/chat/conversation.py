"""A chat: a session, an engine that answers in it, and what is said of that on a terminal."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from itertools import count

from ...actors.chat_options import ChatWords
from ...actors.config import EngineConfig
from ...actors.engine import Engine
from ...messages import Delta, FinishReason, RequestError, Result, SamplingParams
from ..fitting import shown
from ..output import without_controls, write
from .answer import Answer
from .look import Look
from .session import Message, Session
from .settings import Settings
from .stats import ChatStats
from .status import BETWEEN, status_line
from .window import make_room

Keep = Callable[[str, FinishReason | None], None]
STOPPED = "(stopped)"


@dataclass(frozen=True, slots=True)
class Asked:
    """What the last answer came from."""

    request_id: str
    final: Delta


class Chat:
    """What questions and commands work on."""

    def __init__(
        self,
        engine: Engine,
        config: EngineConfig,
        session: Session,
        settings: Settings,
        look: Look,
        words: ChatWords | None = None,
    ) -> None:
        self.engine = engine
        self.config = config
        self.session = session
        self.settings = settings
        self.look = look
        self._words = words or ChatWords()
        self.stats = ChatStats()
        self.asked: Asked | None = None
        self._numbers = count(1)
        self._answering: Answer | None = None

    @property
    def params(self) -> SamplingParams:
        return self.settings.params(self.engine.default_params)

    def say(self, text: str) -> None:
        """A line that is not the model's; what it quotes has no power over the terminal."""
        write(shown(without_controls(text)) + "\n")

    def remark(self, text: str, between: str = " ") -> None:
        """A line that matters less; too long a one is broken where `between` stands."""
        write(self.look.dim(shown(without_controls(text), between)) + "\n")

    def stop(self) -> bool:
        """End the answer that is being streamed; False where there is none."""
        if self._answering is None:
            return False
        self._answering.stop()
        return True

    def displace(self) -> None:
        """Somebody else has written on the terminal: a shell, while this process was stopped."""
        if self._answering is not None:
            self._answering.displace()

    def give_way(self) -> None:
        """Something is about to be written that is no part of an answer."""
        if self._answering is not None:
            self._answering.give_way()

    async def ask(self, question: str) -> None:
        """Answer a question; what came of it before a stop or a fault is kept."""
        session = self.session
        await self._answer(
            lambda: session.asking(question),
            lambda text, ending: session.add(question, text, ending),
        )

    async def ask_again(self) -> None:
        """Answer the last question once more; nothing said keeps the old answer."""
        session = self.session
        await self._answer(session.asking_again, session.replace_answer, num_kept=1)

    async def go_on(self) -> None:
        """Continue the last answer where it ended."""
        session = self.session
        await self._answer(session.going_on, session.extend_answer, num_kept=1, is_continued=True)

    async def ask_aside(self, params: SamplingParams) -> Result:
        """Answer the last question once more, sampled so; nothing of it is shown or kept."""
        session = self.session
        await self._make_room(session.asking_again, params, self._words, 1)
        name = f"chat-{next(self._numbers)}"
        messages = session.asking_again()
        return await self.engine.chat(messages, params, request_id=name, **self._words)

    async def use(self, engine: Engine, config: EngineConfig) -> None:
        """Go on with another engine, and close the one there was."""
        before, self.engine, self.config = self.engine, engine, replace(config)
        self.asked = None
        await before.close()

    async def _answer(
        self,
        messages: Callable[[], list[Message]],
        keep: Keep,
        *,
        num_kept: int = 0,
        is_continued: bool = False,
    ) -> None:
        """`num_kept`: how many of the last turns the messages cannot do without."""
        params = self.params
        words = ChatWords(**{**self._words, "continue_final_message": is_continued})
        await self._make_room(messages, params, words, num_kept)
        answer = Answer(self.engine, f"chat-{next(self._numbers)}", self.look)
        deltas: AsyncIterator[Delta] = self.engine.stream_chat(
            messages(), params, request_id=answer.request_id, **words
        )
        self._answering = answer
        try:
            await answer.stream(deltas)
        except RequestError as error:
            self.say(str(error))
        finally:
            self._answering = None
            self._note(answer, params, keep)

    def _note(self, answer: Answer, params: SamplingParams, keep: Keep) -> None:
        """Keep what was said, and tell what it cost."""
        final = answer.final
        if answer.text:
            keep(answer.text, FinishReason.ABORT if final is None else final.finish_reason)
        if final is None:
            if answer.is_stopped:
                self.say(STOPPED)
            return
        self.asked = Asked(answer.request_id, final)
        self.stats.record(final)
        write(answer.told.tables())
        context = self.engine.facts.max_model_len
        self.remark(status_line(final, params, context), BETWEEN)

    async def _make_room(
        self,
        messages: Callable[[], list[Message]],
        params: SamplingParams,
        words: ChatWords,
        num_kept: int,
    ) -> None:
        async def count(messages: list[Message]) -> int:
            return len(await self.engine.tokenize(messages, **words))

        context = self.engine.facts.max_model_len
        dropped = await make_room(
            self.session,
            messages,
            count,
            context=context,
            max_tokens=params.max_tokens,
            num_kept=num_kept,
        )
        if dropped:
            turns = "turn does" if dropped == 1 else f"{dropped} turns do"
            self.remark(
                f"(the oldest {turns} not fit into the context of {context:,} tokens any more "
                "and will not be sent again)"
            )
