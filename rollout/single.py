"""The `run` command: one attempt at one task, scored and stored, without any training."""

import contextlib
import json
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import httpx

from rollout.agent import AgentConfig
from rollout.attempt import Attempts
from rollout.collect import collect_groups
from rollout.context import ContextConfig
from rollout.engine import Engine
from rollout.render import ChatFormat
from rollout.sandbox.local import LocalSandboxes
from rollout.scripted import ScriptedEngine
from rollout.store import rollout_folder, save_rollout
from rollout.types import Rollout
from rollout.vllm import VllmEngine
from rollout.workshop import Workshop, installed_template
from rollout.world.prompts import load_prompt
from verifier.browser import Browser
from verifier.tasks import load_task
from verifier.types import Task, TaskError

_SCRIPT = "script:"


class BadInput(ValueError):
    """An argument that cannot be used; the text says what to give instead."""


@dataclass(frozen=True, kw_only=True)
class SingleRun:
    """The arguments of `run`."""

    task: Path
    engine: str
    """URL of a vLLM server, or `script:FILE`: a JSON list of answers, replayed in order."""
    model: Path
    """Folder with the tokenizer of the served model."""
    out: Path
    prompt: str = "plain"
    seed: int = 0
    max_turns: int = 40
    time_limit_s: float = 1800.0
    temperature: float = 1.0


def run_single(run: SingleRun) -> Rollout:
    """Makes one rollout and stores it below `run.out`, as an attempt of its own.

    Raises:
        BadInput, TaskError: an argument is wrong; nothing was started.
        SandboxError, InfrastructureError: sandboxes or browser do not work on this machine.
    """
    task = load_task(run.task)
    template = installed_template(task.template)
    chat, window_tokens = _model(run.model)
    agent = _agent_config(run, window_tokens)
    prompt = _prompt(run.prompt)
    with contextlib.ExitStack() as stack:
        engine = _open_engine(run.engine, chat, stack)
        browser = stack.enter_context(Browser(max_pages=1))
        sandboxes = _open_sandboxes()
        stack.callback(sandboxes.close)
        workshop = Workshop(make_sandbox=sandboxes, browser=browser, templates={template.name: template})
        attempts = Attempts(
            engine=engine,
            make_world=workshop.make_world,
            score=workshop.score,
            chat=chat,
            agent=agent,
            context=ContextConfig(fold_tokens=max(1, agent.window_tokens // 2)),
            system_prompt=prompt,
        )
        prefix = f"run/{_first_free_number(run.out, task)}"
        ((rollout,),) = collect_groups(
            [task], group_size=1, run_one=attempts, concurrency=1, seed=run.seed, prefix=prefix
        )
    return rollout


def _first_free_number(out: Path, task: Task) -> int:
    """Attempts are numbered in the place of steps."""
    number = 0
    while rollout_folder(out, f"run/{number}/{task.task_id}/0").exists():
        number += 1
    return number


def _model(folder: Path) -> tuple[ChatFormat, int]:
    """The chat format, and how many positions the model has."""
    try:
        chat = ChatFormat.load(folder)
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise BadInput(f"--model {folder}: {error}; give the folder of the served model") from None
    return chat, int(config.get("max_position_embeddings", AgentConfig.window_tokens))


def _agent_config(run: SingleRun, positions: int) -> AgentConfig:
    window = min(positions, AgentConfig.window_tokens)
    try:
        return AgentConfig(
            max_turns=run.max_turns,
            window_tokens=window,
            max_answer_tokens=min(AgentConfig.max_answer_tokens, window),
            time_limit_s=run.time_limit_s,
            temperature=run.temperature,
        )
    except ValueError as error:
        raise BadInput(str(error)) from None


def _prompt(name: str) -> str:
    try:
        return load_prompt(name)
    except ValueError as error:
        raise BadInput(f"--prompt: {error}") from None


def _open_engine(address: str, chat: ChatFormat, stack: contextlib.ExitStack) -> Engine:
    if address.startswith(_SCRIPT):
        return _scripted(Path(address.removeprefix(_SCRIPT)), chat)
    if not address.startswith(("http://", "https://")):
        raise BadInput(f"--engine is the URL of a vLLM server or script:FILE, got {address!r}")
    try:
        engine = VllmEngine(address)
    except httpx.InvalidURL as error:
        raise BadInput(f"--engine {address!r} is no URL ({error}); write such as http://127.0.0.1:8000") from None
    stack.callback(engine.close)
    if not engine.is_ready():
        raise BadInput(
            f"no engine answers at {address}; start one with `python -m rollout.vllm_server serve MODEL_DIR`"
        )
    return engine


def _scripted(path: Path, chat: ChatFormat) -> Engine:
    try:
        answers = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BadInput(f"--engine script:{path}: {error}") from None
    if not (isinstance(answers, list) and answers and all(isinstance(answer, str) for answer in answers)):
        raise BadInput(f"--engine script:{path}: needs a JSON list of answers, each a string")

    def answer(rollout_id: str, turn: int) -> str:
        return str(answers[min(turn, len(answers) - 1)])

    return ScriptedEngine(answer, encode=chat.text_ids, end_id=chat.end_id)


def _open_sandboxes() -> LocalSandboxes:
    with warnings.catch_warnings():
        # One line on the terminal instead of a Python warning with a source line.
        warnings.simplefilter("ignore")
        sandboxes = LocalSandboxes()
    for weakness in sandboxes.weaknesses:
        print(f"note: {weakness}", file=sys.stderr)
    return sandboxes


def describe(rollout: Rollout, folder: Path) -> str:
    """A few lines for the terminal."""
    lines = [f"{rollout.rollout_id}: {rollout.stop.value} after {len(rollout.turns)} turns"]
    if rollout.report is None:
        lines.append(f"not scored: {rollout.error}")
    else:
        gates = ", ".join(f"{gate.name} {'ok' if gate.ok else 'failed'}" for gate in rollout.report.gates)
        lines.append(f"reward {rollout.reward:.4f} ({gates})")
    return "\n".join([*lines, f"stored in {folder}"])


def run_and_store(run: SingleRun) -> int:
    """The command itself. Exit code 0 when scored, 2 for bad input, 3 for an infrastructure failure."""
    try:
        rollout = run_single(run)
    except (BadInput, TaskError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    folder = save_rollout(run.out, rollout)
    print(describe(rollout, folder))
    return 0 if rollout.stop.is_valid else 3
