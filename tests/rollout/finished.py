"""Finished rollouts for tests: one system, one user and one assistant message, and a report."""

from rollout.types import Rollout, Stop, Turn
from tests.rollout.trees import Sketch
from verifier.types import Gate, Report, Requirement, Task

# The smallest valid PNG: one transparent pixel.
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d4944415478da63640060000000"
    "0600023081d02f0000000049454e44ae426082"
)


def a_task(task_id: str = "shop") -> Task:
    return Task(
        task_id=task_id,
        brief="Build a page for <b>Nils & Daughters</b>",
        requirements=(Requirement(requirement_id="name", keywords=("Nils & Daughters",), counts={"buttons": 2}),),
    )


def a_report(task_id: str = "shop", reward: float = 0.75) -> Report:
    return Report(
        task_id=task_id,
        reward=reward,
        gates=(Gate(name="build", ok=True), Gate(name="render", ok=False, reason="blank")),
        f_det=reward,
        f_vlm=None,
        requirement_values={"name": reward},
        penalty=0.0,
        screenshot=PIXEL,
        seconds={"build": 0.5},
    )


def a_rollout(
    rollout_id: str = "train/00003/shop/0",
    *,
    task: Task | None = None,
    reward: float = 0.75,
    stop: Stop = Stop.FINISHED,
) -> Rollout:
    task = task or a_task()
    sketch = Sketch()
    brief = sketch.add(sketch.add(None, "system", template=3), "user", template=4, text=task.brief)
    answer = sketch.add(
        brief, "assistant", template=2, generated=5, text="@write src/App.tsx\n<script>alert(1)</script>"
    )
    folded = sketch.add(brief, "tool", template=2, text="ok (folded)")
    last = sketch.add(sketch.copy(folded, answer), "assistant", template=2, generated=2, text="@finish")
    return Rollout(
        rollout_id=rollout_id,
        task=task,
        tree=sketch.tree(answer, last),
        stop=stop,
        potentials=(0.0, float("nan"), 0.5),
        turns=(
            Turn(num_prompt_tokens=9, num_output_tokens=5, num_cached_tokens=0, generate_s=0.5, tools_s=0.25),
            Turn(num_prompt_tokens=16, num_output_tokens=2, num_cached_tokens=7, generate_s=0.25, tools_s=0.0),
        ),
        report=a_report(task.task_id, reward) if stop.is_valid else None,
        error="" if stop.is_valid else "SandboxError: died",
        files={"src/App.tsx": b"export default 1\n", "public/a b.bin": bytes(range(256))},
        num_tool_errors=1,
    )
