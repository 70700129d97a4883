"""What the policy is shown of a tool's images: each as a picture, or in words that it is missing."""

from dataclasses import replace

import pytest

from rollout.agent import IMAGE_IDS_SAMPLED, UNSEEN, Agent, AgentConfig, Episode
from rollout.calls import ToolCall
from rollout.context import FOLDED, ContextConfig
from rollout.pictures import PictureRule, fit
from rollout.render import VISION, ChatFormat
from rollout.samples import build_samples
from rollout.types import Stop
from rollout.world.protocol import ToolResult
from tests.rollout.chat import seeing_chat, tiny_chat
from tests.rollout.test_agent import TASK, PageWorld, ReplayEngine, said
from tests.wc_jax.pictures import RULE, png

CHAT = seeing_chat()
IMAGE = CHAT.image_id
SHOT, OTHER = png(8, 12), png(16, 16, seed=1)


class PictureWorld(PageWorld):
    """Every webshot also shows the next of `images`."""

    def __init__(self, *images: bytes) -> None:
        super().__init__(*(f"page {i}" for i in range(len(images))))
        self.images = list(images)

    def execute(self, call: ToolCall) -> ToolResult:
        result = super().execute(call)
        return replace(result, images=(self.images.pop(0),)) if call.name == "webshot" else result


def run(
    engine: ReplayEngine,
    world: PageWorld,
    *,
    rule: PictureRule | None = RULE,
    chat: ChatFormat = CHAT,
    context: ContextConfig | None = None,
    **limits: int,
) -> Episode:
    agent = Agent(
        engine=engine,
        world=world,
        chat=chat,
        config=replace(AgentConfig(), **limits),  # type: ignore[arg-type]
        context=context or ContextConfig(),
        system_prompt="s",
        pictures=rule,
    )
    return agent.run(TASK, rollout_id="train/0/t/0", seed=1)


def test_each_request_says_where_in_its_ids_the_pictures_stand() -> None:
    engine = ReplayEngine([said("@webshot", CHAT), said("@webshot\n@webshot", CHAT), said("@finish", CHAT)])
    episode = run(engine, PictureWorld(SHOT, OTHER, SHOT))
    shot, other = fit(SHOT, RULE), fit(OTHER, RULE)
    assert [[s.picture for s in request.pictures] for request in engine.requests] == [[], [shot], [shot, other, shot]]
    for request in engine.requests:
        places = [i for shown in request.pictures for i in range(shown.start, shown.stop)]
        assert places == [i for i, token in enumerate(request.token_ids) if token == IMAGE]
    (sample,) = build_samples(episode.tree)
    assert sample.pictures == engine.requests[-1].pictures
    assert not sample.loss_mask[sample.tokens == IMAGE].any()
    assert sample.num_trained == sum(len(answer) for answer in engine.answers)


def test_a_policy_without_eyes_is_told_of_each_image() -> None:
    for chat in (tiny_chat(), CHAT):
        engine = ReplayEngine([said("@webshot", chat), said("@finish", chat)])
        run(engine, PictureWorld(SHOT), rule=None, chat=chat)
        assert f"page 0\n{UNSEEN}" in chat.decode(engine.requests[1].token_ids)
        assert engine.requests[1].pictures == ()


@pytest.mark.parametrize("image", [png(4, 400)[:99], png(4, 4000)], ids=["broken", "too long"])
def test_an_image_that_cannot_be_shown_is_no_silence_and_no_failure(image: bytes) -> None:
    engine = ReplayEngine([said("@webshot", CHAT), said("@finish", CHAT)])
    assert run(engine, PictureWorld(image)).stop is Stop.FINISHED
    assert "page 0\n[a picture is missing: " in CHAT.decode(engine.requests[1].token_ids)


def test_a_picture_fills_the_window_as_text_does() -> None:
    engine = ReplayEngine([said("@webshot", CHAT), said("@finish", CHAT)])
    run(engine, PictureWorld(OTHER))
    room = len(engine.requests[1].token_ids)
    for window, num_requests in ((room + 1, 2), (room, 1)):
        again = ReplayEngine([said("@webshot", CHAT), said("x", CHAT)])
        episode = run(again, PictureWorld(OTHER), window_tokens=window)
        assert (len(again.requests), episode.stop) == (num_requests, Stop.CONTEXT_FULL)
    blind = ReplayEngine([said("@webshot", CHAT), said("@finish", CHAT)])
    run(blind, PageWorld("page 0"))
    assert room - len(blind.requests[1].token_ids) == fit(OTHER, RULE).num_tokens + 2


def test_folding_an_old_result_drops_its_picture_on_a_new_path() -> None:
    engine = ReplayEngine([said("@webshot", CHAT), said("@webshot", CHAT), said("@finish", CHAT)])
    episode = run(engine, PictureWorld(SHOT, OTHER), context=ContextConfig(fold_tokens=60))
    shot, other = fit(SHOT, RULE), fit(OTHER, RULE)
    assert [[s.picture for s in request.pictures] for request in engine.requests] == [[], [shot], [other]]
    last = engine.requests[-1]
    assert last.token_ids.count(IMAGE) == other.num_tokens and FOLDED in CHAT.decode(last.token_ids)
    first, second = build_samples(episode.tree)
    assert [[s.picture for s in sample.pictures] for sample in (first, second)] == [[shot], [other]]


def test_a_short_result_is_folded_for_its_picture() -> None:
    class Wordless(PictureWorld):
        def execute(self, call: ToolCall) -> ToolResult:
            return replace(super().execute(call), text="ok")

    engine = ReplayEngine([said("@webshot", CHAT), said("@webshot", CHAT), said("x", CHAT)])
    run(engine, Wordless(SHOT, OTHER), context=ContextConfig(fold_tokens=60), max_turns=3)
    assert [len(request.pictures) for request in engine.requests] == [0, 1, 1]


def test_an_answer_with_ids_of_images_is_trained_told_so_and_not_run() -> None:
    start = CHAT.picture_ids - {IMAGE}
    assert len(start) == len(VISION), "start, end and video, besides the image's own"
    for token in sorted(CHAT.picture_ids):
        answer = (*CHAT.text_ids("@finish\n"), token, CHAT.end_id)
        engine = ReplayEngine([answer, said("@finish", CHAT)])
        episode = run(engine, PictureWorld())
        assert IMAGE_IDS_SAMPLED in CHAT.decode(engine.requests[1].token_ids)
        assert engine.requests[1].pictures == () and episode.num_tool_errors == 1
        (sample,) = build_samples(episode.tree)
        assert sample.num_trained == sum(len(a) for a in engine.answers) and sample.pictures == ()
