"""One attempt at a task, from an untouched project to a judged one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rollout.agent import Agent, AgentConfig
from rollout.context import ContextConfig
from rollout.engine import Engine
from rollout.pictures import PictureRule
from rollout.render import ChatFormat
from rollout.types import Rollout, Stop
from rollout.world.protocol import World
from verifier.types import Report, Task

Scorer = Callable[[Task, Mapping[str, bytes], bool], Report]
"""(task, final project, whether the time ran out) -> the verifier's judgement."""


@dataclass(frozen=True, kw_only=True)
class Attempts:
    """What all attempts of a run share; call it once per rollout, from any thread."""

    engine: Engine
    make_world: Callable[[Task], World]
    score: Scorer
    chat: ChatFormat
    agent: AgentConfig
    context: ContextConfig
    system_prompt: str
    pictures: PictureRule | None = None
    """How the policy sees images; None for one that reads text only."""

    def __call__(self, task: Task, rollout_id: str, seed: int) -> Rollout:
        """Raises `EngineError`, `SandboxError` or `InfrastructureError`: no rollout, and no reward of 0."""
        world = self.make_world(task)
        try:
            agent = Agent(
                engine=self.engine,
                world=world,
                chat=self.chat,
                config=self.agent,
                context=self.context,
                system_prompt=self.system_prompt,
                pictures=self.pictures,
            )
            episode = agent.run(task, rollout_id=rollout_id, seed=seed)
            files = world.snapshot()
        finally:
            world.close()
        return Rollout(
            rollout_id=rollout_id,
            task=task,
            tree=episode.tree,
            stop=episode.stop,
            potentials=episode.potentials,
            turns=episode.turns,
            report=self.score(task, files, episode.stop is Stop.TIME_LIMIT),
            files=files,
            num_tool_errors=episode.num_tool_errors,
        )
