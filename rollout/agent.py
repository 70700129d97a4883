"""The agent loop: ask the policy, run its tool calls, append the results, until there is a reason to stop."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from rollout.calls import CallError, ToolCall, parse_calls
from rollout.context import ContextConfig, fold_if_needed, truncate
from rollout.engine import Engine, Request
from rollout.pictures import PictureRule, fit
from rollout.render import ChatFormat
from rollout.tree import TreeBuilder
from rollout.types import Message, Picture, Stop, Tree, Turn
from rollout.world.protocol import ToolResult, World
from verifier.ledger import Ledger
from verifier.types import Task

NO_CALL = "error: no tool call; write a line such as @webshot or @finish"
IMAGE_IDS_SAMPLED = "error: your answer has marks of images in it and was not run; write text only"
UNSEEN = "[a picture that you cannot see]"
"""Stands in a result for each image that a policy without eyes is not shown."""


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """The budgets of one rollout and how the policy is sampled."""

    max_turns: int = 120
    window_tokens: int = 116_736
    """Longest prompt plus answer that is ever requested."""
    max_answer_tokens: int = 4096
    time_limit_s: float = 1800.0
    temperature: float = 1.0

    def __post_init__(self) -> None:
        for name in ("max_turns", "window_tokens", "max_answer_tokens", "time_limit_s", "temperature"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class Episode:
    """What the loop leaves: the conversation, why it stopped, and the credit signal along the way."""

    tree: Tree
    stop: Stop
    turns: tuple[Turn, ...]
    potentials: tuple[float, ...]
    num_tool_errors: int


@dataclass(kw_only=True)
class Agent:
    """One attempt at one task in one world. `run` once, then throw it away.

    Only a tool's result shows an image. An answer may hold ids that stand for one all the same, because what the
    engine may sample is not narrowed: that would change the log-probabilities that it reports. Such an answer is
    trained as it is, its ids are text to engine and trainer alike, and instead of its calls being run it is told so.
    """

    engine: Engine
    world: World
    chat: ChatFormat
    config: AgentConfig
    context: ContextConfig
    system_prompt: str
    pictures: PictureRule | None = None
    """How the policy sees images; None: it reads text only."""
    clock: Callable[[], float] = time.monotonic

    def run(self, task: Task, *, rollout_id: str, seed: int) -> Episode:
        """Raises `EngineError`, `SandboxError` or `InfrastructureError`; everything else is an outcome."""
        started = self.clock()
        tree = TreeBuilder()
        ledger = Ledger(task.requirements)
        potentials = [ledger.potential]
        turns: list[Turn] = []
        num_errors = 0
        self._open(tree, task)
        while (stop := self._stop_before_turn(tree, len(turns), started)) is None:
            asked = self.clock()
            answer, turn = self._ask(tree, rollout_id, seed, len(turns))
            answered = self.clock()
            results = self._execute(answer, tree.branch()[-1].token_ids)
            turns.append(_with_seconds(turn, answered - asked, self.clock() - answered))
            for result in results:
                num_errors += result.is_error
                if result.observed is not None:
                    ledger.observe(result.observed)
            if any(result.finished for result in results):
                stop = Stop.FINISHED
                break
            self._append_results(tree, results)
            if fold_if_needed(tree, self.chat, self.context):
                potentials.append(ledger.potential)
        return Episode(
            tree=tree.build(),
            stop=stop,
            turns=tuple(turns),
            potentials=(*potentials, ledger.potential),
            num_tool_errors=num_errors,
        )

    def _open(self, tree: TreeBuilder, task: Task) -> None:
        for message in (
            Message(role="system", content=self.system_prompt),
            Message(role="user", content=task.brief),
        ):
            tree.add_message(message.role, message.content, self.chat.message_ids(message))

    def _room(self, tree: TreeBuilder) -> int:
        return self.config.window_tokens - len(tree.prompt()) - len(self.chat.answer_header)

    def _stop_before_turn(self, tree: TreeBuilder, num_turns: int, started: float) -> Stop | None:
        if num_turns >= self.config.max_turns:
            return Stop.TURN_LIMIT
        if self.clock() - started >= self.config.time_limit_s:
            return Stop.TIME_LIMIT
        return Stop.CONTEXT_FULL if self._room(tree) <= 0 else None

    def _ask(self, tree: TreeBuilder, rollout_id: str, seed: int, turn: int) -> tuple[str, Turn]:
        prompt = tree.prompt() + self.chat.answer_header
        completion = self.engine.generate(
            Request(
                token_ids=prompt,
                max_tokens=min(self.config.max_answer_tokens, self._room(tree)),
                temperature=self.config.temperature,
                seed=turn_seed(seed, turn),
                stop_token_ids=(self.chat.end_id,),
                rollout_id=rollout_id,
                turn=turn,
                pictures=tree.pictures(),
            )
        )
        text = self.chat.decode(completion.token_ids)
        tree.add_answer(text, self.chat.answer_header, completion)
        accounts = Turn(
            num_prompt_tokens=len(prompt),
            num_output_tokens=len(completion.token_ids),
            num_cached_tokens=completion.num_cached_tokens,
            generate_s=0.0,
            tools_s=0.0,
        )
        return text, accounts

    def _execute(self, answer: str, token_ids: tuple[int, ...]) -> list[ToolResult]:
        """Runs the calls in order; nothing after a `finish` runs."""
        if not self.chat.picture_ids.isdisjoint(token_ids):
            return [ToolResult(text=IMAGE_IDS_SAMPLED, is_error=True)]
        results: list[ToolResult] = []
        for call in parse_calls(answer):
            results.append(self._execute_one(call))
            if results[-1].finished:
                break
        return results or [ToolResult(text=NO_CALL, is_error=True)]

    def _execute_one(self, call: ToolCall | CallError) -> ToolResult:
        if isinstance(call, CallError):
            return ToolResult(text=call.text, is_error=True)
        return self.world.execute(call)

    def _append_results(self, tree: TreeBuilder, results: list[ToolResult]) -> None:
        last = tree.branch()[-1]
        leading = self.chat.closing_ids(ended=last.token_ids[-1] == self.chat.end_id)
        for result in results:
            message = self._message(result)
            ids = leading + self.chat.message_ids(message)
            tree.add_message("tool", message.content, ids, self.chat.shown(message, after=len(leading)))
            leading = ()

    def _message(self, result: ToolResult) -> Message:
        """What the policy is shown of a result: never an image less without a word."""
        text = truncate(result.text, self.context.max_result_chars)
        pictures: list[Picture] = []
        for image in result.images:
            if self.pictures is None:
                text += f"\n{UNSEEN}"
                continue
            try:
                pictures.append(fit(image, self.pictures))
            except ValueError as error:
                text += f"\n[a picture is missing: {error}]"
        return Message(role="tool", content=text, pictures=tuple(pictures))


def turn_seed(seed: int, turn: int) -> int:
    """A 31-bit seed for one request: the same after a resume, different for every turn.

    >>> turn_seed(7, 0) == turn_seed(7, 0) != turn_seed(7, 1)
    True
    """
    return int.from_bytes(hashlib.blake2b(f"{seed}/{turn}".encode(), digest_size=4).digest()) >> 1


def _with_seconds(turn: Turn, generate_s: float, tools_s: float) -> Turn:
    return Turn(
        num_prompt_tokens=turn.num_prompt_tokens,
        num_output_tokens=turn.num_output_tokens,
        num_cached_tokens=turn.num_cached_tokens,
        generate_s=generate_s,
        tools_s=tools_s,
    )
