"""The simulated world says what the real one says, so that demonstrations look like rollouts."""

from random import Random

import pytest

from rollout.calls import ToolCall, parse_calls
from rollout.pages.developer import Habits, script_of
from rollout.pages.simulated import SimulatedWorld
from rollout.pages.tasks import page_specs
from rollout.sandbox.template import Template
from rollout.world.sandbox_world import SandboxWorld

CLUMSY = Habits(forget_section=0.4, forget_button=0.4, typo=0.4, break_build=0.7, look_around=0.5, look=1, repair=1)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_call_of_a_demonstration_has_the_same_result(world: SandboxWorld, template: Template, seed: int) -> None:
    spec = page_specs("train", 3, 7)[seed]
    simulated = SimulatedWorld(template.files)
    for answer in script_of(spec, CLUMSY, Random(seed)):
        for call in parse_calls(answer):
            assert isinstance(call, ToolCall)
            assert simulated.execute(call) == world.execute(call)


def test_both_kinds_of_broken_tag_are_predicted(world: SandboxWorld, template: Template) -> None:
    seen = set()
    for seed in range(40):
        spec = page_specs("train", 40, 9)[seed]
        simulated = SimulatedWorld(template.files)
        write = parse_calls(script_of(spec, Habits(break_build=1, look_around=0), Random(seed))[0])[0]
        assert isinstance(write, ToolCall)
        simulated.execute(write)
        predicted = simulated.execute(ToolCall(name="webshot"))
        kind = predicted.text.split(": ")[-1]
        if predicted.text.startswith("build failed") and kind not in seen:
            seen.add(kind)
            world.execute(write)
            assert world.execute(ToolCall(name="webshot")) == predicted
        if len(seen) == 2:
            break
    assert len(seen) == 2
