"""Demonstrations: the fallible developer at work in the simulated world, through the real agent loop.

Because the loop, the chat format and the context rules are those of a real rollout, a demonstration's
token ids are exactly what a rollout of the same text would have.
"""

from collections.abc import Callable, Iterator
from itertools import count
from random import Random

from rollout.agent import Agent, AgentConfig
from rollout.context import ContextConfig
from rollout.pages.developer import MOODS, script_of
from rollout.pages.drills import drill_sample
from rollout.pages.simulated import SimulatedWorld
from rollout.pages.spec import PageSpec, make_spec, task_of
from rollout.render import ChatFormat
from rollout.samples import build_samples
from rollout.sandbox.template import load_template
from rollout.scripted import ScriptedEngine
from rollout.types import Sample, Tree
from rollout.world.prompts import load_prompt

DRILLED = 40_000
"""Samples over which drills give way to whole demonstrations."""

Script = Callable[[str, int], str]
"""(rollout id, turn) -> the text of that answer."""


def make_script(specs: dict[str, PageSpec], seed: int) -> Script:
    """A script for `ScriptedEngine`: each rollout of a task in `specs` gets a developer of its own.

    The rollout id is `<phase>/<step>/<task id>/<index>`; the same id always gets the same answers.
    """

    def answer(rollout_id: str, turn: int) -> str:
        rng = Random(f"{seed}/{rollout_id}")
        answers = script_of(specs[rollout_id.split("/")[-2]], rng.choice(MOODS), rng)
        return answers[min(turn, len(answers) - 1)]

    return answer


def demonstrate(spec: PageSpec, chat: ChatFormat, context: ContextConfig, rng: Random, prompt: str = "plain") -> Tree:
    """One demonstration as a message tree."""
    answers = script_of(spec, rng.choice(MOODS), rng)
    engine = ScriptedEngine(lambda _, turn: answers[turn], encode=chat.text_ids, end_id=chat.end_id)
    agent = Agent(
        engine=engine,
        world=SimulatedWorld(load_template("vite-react-bare").files),
        chat=chat,
        config=AgentConfig(max_turns=len(answers)),
        context=context,
        system_prompt=load_prompt(prompt),
    )
    return agent.run(task_of(spec, "demo"), rollout_id="demo/0/demo/0", seed=0).tree


def demo_samples(
    chat: ChatFormat, context: ContextConfig, seed: int, prompt: str = "plain", num_drilled: int = DRILLED
) -> Iterator[Sample]:
    """Training samples of endless demonstrations on pages of the train split, copying drills among them.

    Drills come first and grow rare: 9 of 10 samples in the beginning, 1 of 20 after `num_drilled`
    samples, or from the start when that is 0.
    Some pages are shorter and some have longer lists than the tasks'.
    """
    rng = Random(seed)
    for index in count():
        if rng.random() < max(0.05, 0.9 * (1 - index / num_drilled) if num_drilled else 0.0):
            yield drill_sample(chat, rng)
            continue
        spec = make_spec(rng, split="train", min_sections=rng.choice((1, 2, 2)), max_lines=rng.choice((3, 3, 6)))
        yield from build_samples(demonstrate(spec, chat, context, rng, prompt))
