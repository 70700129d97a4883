"""The loop's contracts: ids are appended, budgets hold, errors go back to the policy."""

import itertools
from dataclasses import dataclass, field, replace

import pytest

from rollout.agent import NO_CALL, Agent, AgentConfig, Episode
from rollout.calls import ToolCall
from rollout.context import ContextConfig
from rollout.engine import EngineError, Request
from rollout.render import ChatFormat
from rollout.samples import build_samples
from rollout.types import Completion, Message, Stop
from rollout.world.protocol import ToolResult
from tests.rollout.chat import tiny_chat
from verifier.types import Requirement, Task

CHAT = tiny_chat()
TASK = Task(task_id="t", brief="b", requirements=(Requirement(requirement_id="r", keywords=("tea", "rye")),))


@dataclass
class ReplayEngine:
    """Answers given token ids in order and keeps every request."""

    answers: list[tuple[int, ...]]
    requests: list[Request] = field(default_factory=list)

    def generate(self, request: Request) -> Completion:
        self.requests.append(request)
        ids = self.answers[len(self.requests) - 1][: request.max_tokens]
        ended = ids[-1:] == (CHAT.end_id,)
        return Completion(
            token_ids=ids,
            logp=tuple(-0.5 for _ in ids),
            policy_versions=tuple(0 for _ in ids),
            finish_reason="stop" if ended else "length",
        )


class PageWorld:
    """`webshot` shows the given pages one after another."""

    def __init__(self, *pages: str) -> None:
        self.pages = list(pages)

    def execute(self, call: ToolCall) -> ToolResult:
        if call.name == "finish":
            return ToolResult(text="done", finished=True)
        if call.name == "webshot":
            page = self.pages.pop(0)
            return ToolResult(text=f"build ok\n{page}", observed=page)
        return ToolResult(text=f"error: no tool {call.name}", is_error=True)

    def snapshot(self) -> dict[str, bytes]:
        return {}

    def close(self) -> None:
        pass


def said(text: str, chat: ChatFormat = CHAT) -> tuple[int, ...]:
    return (*chat.text_ids(text), chat.end_id)


def run(
    engine: ReplayEngine, world: PageWorld | None = None, context: ContextConfig | None = None, **limits: float
) -> Episode:
    agent = Agent(
        engine=engine,
        world=world or PageWorld(),
        chat=CHAT,
        config=replace(AgentConfig(), **limits),  # type: ignore[arg-type]
        context=context or ContextConfig(),
        system_prompt="s",
    )
    return agent.run(TASK, rollout_id="train/0/t/0", seed=1)


OPENING = sum(len(CHAT.message_ids(Message(role=r, content=c))) for r, c in (("system", "s"), ("user", "b")))  # type: ignore[arg-type]
PROMPT = OPENING + len(CHAT.answer_header)


def test_the_next_prompt_extends_the_sampled_ids_even_when_the_text_encodes_otherwise() -> None:
    he, llo = CHAT.text_ids("he"), CHAT.text_ids("llo")
    assert len(CHAT.text_ids("hello")) == 1, "the text of the two tokens would encode as one"
    engine = ReplayEngine([(*he, *llo, CHAT.end_id), said("@finish")])
    episode = run(engine)
    first, second = (request.token_ids for request in engine.requests)
    assert second[: len(first) + 3] == (*first, *he, *llo, CHAT.end_id)
    sample = build_samples(episode.tree)[0]
    assert tuple(sample.tokens[sample.loss_mask][:2]) == (*he, *llo)


def test_a_path_is_what_the_engine_was_sent_and_answered() -> None:
    engine = ReplayEngine([said("@webshot"), said("@webshot"), said("@finish")])
    episode = run(
        engine, PageWorld("tea\nand much else to see", "tea rye\nand much else"), ContextConfig(fold_tokens=PROMPT + 10)
    )
    paths = [tuple(t for n in episode.tree.path(k) for t in n.token_ids) for k in range(len(episode.tree.leaves))]
    for request, answer in zip(engine.requests, engine.answers, strict=True):
        assert any(path[: len(request.token_ids) + len(answer)] == request.token_ids + answer for path in paths)


def test_potentials_stand_at_the_boundaries_and_follow_what_the_agent_saw() -> None:
    engine = ReplayEngine([said("@webshot"), said("@webshot"), said("@finish")])
    episode = run(
        engine, PageWorld("tea\nand much else to see", "tea rye\nand much else"), ContextConfig(fold_tokens=PROMPT + 10)
    )
    assert len(episode.tree.leaves) == 2
    assert episode.potentials == pytest.approx((0.0, 1.0, 1.0))


def test_without_a_call_the_policy_is_told_so_and_its_tokens_stay_trainable() -> None:
    engine = ReplayEngine([said("hm"), said("@finish")])
    episode = run(engine)
    assert NO_CALL in CHAT.decode(engine.requests[1].token_ids)
    assert episode.num_tool_errors == 1
    assert build_samples(episode.tree)[0].num_trained == sum(len(a) for a in engine.answers)


def test_a_broken_and_an_unknown_call_are_answered_not_raised() -> None:
    engine = ReplayEngine([said("@write a\nx"), said("@deploy"), said("@finish")])
    episode = run(engine)
    assert episode.stop is Stop.FINISHED
    assert episode.num_tool_errors == 2


def test_nothing_after_finish_runs() -> None:
    world = PageWorld()
    assert run(ReplayEngine([said("@finish\n@webshot")]), world).stop is Stop.FINISHED


@pytest.mark.parametrize(("room", "asked"), [(4, [4]), (8, [8]), (20, [8])])
def test_a_turn_asks_for_no_more_than_the_window_leaves(room: int, asked: list[int]) -> None:
    engine = ReplayEngine([said("@finish")] * 9)
    run(engine, window_tokens=PROMPT + room, max_answer_tokens=8, max_turns=1)
    assert [request.max_tokens for request in engine.requests] == asked


@pytest.mark.parametrize("room", [0, -1])
def test_a_full_window_ends_the_rollout_without_a_request(room: int) -> None:
    engine = ReplayEngine([])
    assert run(engine, window_tokens=PROMPT + room).stop is Stop.CONTEXT_FULL
    assert engine.requests == []


def test_an_answer_cut_by_its_cap_is_closed_and_the_next_prompt_keeps_its_first_id() -> None:
    engine = ReplayEngine([said("@webshot"), said("@finish")])
    episode = run(engine, max_answer_tokens=4, max_turns=2)
    assert engine.requests[0].token_ids[0] == engine.requests[1].token_ids[0]
    assert episode.tree.nodes[2].finish_reason == "length"
    cut = engine.answers[0][:4]
    at = len(engine.requests[0].token_ids)
    assert engine.requests[1].token_ids[at : at + 5] == (*cut, CHAT.end_id)


def test_turn_and_time_limits_are_outcomes() -> None:
    assert run(ReplayEngine([said("x")] * 3), max_turns=3).stop is Stop.TURN_LIMIT
    ticks = itertools.count()
    agent = Agent(
        engine=ReplayEngine([said("x")] * 9),
        world=PageWorld(),
        chat=CHAT,
        config=AgentConfig(time_limit_s=5.0),
        context=ContextConfig(),
        system_prompt="s",
        clock=lambda: float(next(ticks)),
    )
    assert agent.run(TASK, rollout_id="r/0/t/0", seed=0).stop is Stop.TIME_LIMIT


def test_every_turn_has_its_own_seed_and_the_same_one_again() -> None:
    def seeds() -> list[int]:
        engine = ReplayEngine([said("a"), said("b"), said("@finish")])
        run(engine)
        return [request.seed for request in engine.requests]

    assert len(set(seeds())) == 3
    assert seeds() == seeds()


def test_an_engine_failure_is_not_an_outcome() -> None:
    class Broken(ReplayEngine):
        def generate(self, request: Request) -> Completion:
            raise EngineError("gone")

    with pytest.raises(EngineError):
        run(Broken([]))
