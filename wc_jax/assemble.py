"""Builds what a run needs from its config: cheap checks first, then browser, sandboxes and engine.

Leaving the context closes what runs, in the opposite order.
"""

import contextlib
import dataclasses
import itertools
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import jax

from configs import ConfigError
from rollout.attempt import Attempts
from rollout.engine import Engine, Request
from rollout.pages.demos import make_script
from rollout.pages.spec import PageSpec, Split
from rollout.pages.tasks import page_specs, page_tasks
from rollout.pictures import PictureRule
from rollout.render import ChatFormat
from rollout.sandbox.local import LocalSandboxes
from rollout.sandbox.protocol import Limits
from rollout.sandbox.template import Template
from rollout.scripted import ScriptedEngine
from rollout.tasks import load_tasks
from rollout.types import Completion
from rollout.vllm import VllmEngine
from rollout.vllm_server import VllmServer
from rollout.workshop import Workshop, installed_template
from rollout.world.prompts import load_prompt
from verifier.browser import Browser
from verifier.types import Task, TaskError
from wc_jax.canary import make_canary
from wc_jax.config import Config, ScriptedConfig
from wc_jax.placing import Source, whole
from wc_jax.policy import Compute, PolicyConfig, init_adapters
from wc_jax.publish import Publisher
from wc_jax.seeing import picture_rule
from wc_jax.weights import StoredPolicy, open_policy

PAGES = "pages"
"""The page generator, as a source of tasks."""

Publish = Callable[[Mapping[str, jax.Array], int], dict[str, float]]
"""(parameters, version) -> proof in numbers. Raises when the engine can't be proved to use them."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What is read before anything is started."""

    policy: PolicyConfig
    params: Source
    """The model folder's weights, still on the disk, and fresh adapters where the config wants them."""
    chat: ChatFormat
    train_tasks: list[Task]
    heldout_tasks: list[Task]
    templates: dict[str, Template]
    prompt: str
    pictures: PictureRule | None = None
    """How the policy sees images; None: it reads text only."""


@dataclass(frozen=True, kw_only=True)
class Machinery:
    """What is running, and must be closed."""

    attempts: Attempts
    """One rollout, as training samples it."""
    heldout_attempts: Attempts
    """The same at the evaluation's temperature."""
    publish: Publish


StartMachinery = Callable[[Config, Inputs, Path, Callable[[str], None]], AbstractContextManager[Machinery]]
"""`start_machinery`, or something with the same promise."""


def read_inputs(config: Config) -> Inputs:
    """Model, tokenizer, tasks and templates; starts nothing. Raises `ConfigError` saying what to do."""
    folder = config.model.folder
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"model.folder={folder} is no model folder (it has no config.json); make one with"
            " `python -m wc_jax.sft CONFIG`, or write model.folder=PATH of a Hugging Face folder"
        )
    try:
        stored = open_policy(folder)
        chat = ChatFormat.load(folder)
        prompt = load_prompt(config.rollout.prompt)
    except (ValueError, OSError) as error:
        raise ConfigError(f"model.folder={folder}: {error}") from error
    policy, params = _prepared(config, stored)
    if config.agent.window_tokens > policy.max_positions:
        raise ConfigError(
            f"agent.window_tokens={config.agent.window_tokens} is more than the model's"
            f" {policy.max_positions} positions; write agent.window_tokens={policy.max_positions} or less"
        )
    pictures = picture_rule(config, policy, chat)
    try:
        train_tasks = load_tasks(
            config.tasks.train, split="train", count=config.tasks.num_train, seed=config.tasks.seed
        )
        heldout_tasks = load_tasks(
            config.tasks.heldout, split="heldout", count=config.tasks.num_heldout, seed=config.tasks.seed
        )
        names = sorted({task.template for task in (*train_tasks, *heldout_tasks)})
        templates = {name: installed_template(name) for name in names}
    except TaskError as error:
        raise ConfigError(str(error)) from error
    if isinstance(config.engine, ScriptedConfig) and config.rollout.accept_truncation_bias:
        raise ConfigError("rollout.top_p and rollout.top_k have no effect with engine.kind=scripted; leave them out")
    if isinstance(config.engine, ScriptedConfig) and (config.tasks.train, config.tasks.heldout) != (PAGES, PAGES):
        raise ConfigError(f"engine.kind=scripted answers the page generator's tasks only; write tasks.train={PAGES}")
    return Inputs(
        policy=policy,
        params=params,
        chat=chat,
        train_tasks=train_tasks,
        heldout_tasks=heldout_tasks,
        templates=templates,
        prompt=prompt,
        pictures=pictures,
    )


def _prepared(config: Config, stored: StoredPolicy) -> tuple[PolicyConfig, Source]:
    """With adapters, where the config wants them. Raises `ConfigError` for settings that this policy can't honor."""
    model, policy = config.model, stored.config
    if model.train_vision and policy.vision is None:
        raise ConfigError(f"model.train_vision=true, but {model.folder} has no vision tower; leave it out")
    if config.objective.mtp_coef and not policy.num_mtp_layers:
        raise ConfigError(f"objective.mtp_coef has no effect: {model.folder} has no drafting head; leave it out")
    if model.lora is None:
        return policy, stored.pieces
    policy = dataclasses.replace(policy, lora=model.lora)
    try:
        adapters = init_adapters(policy, jax.random.key(config.seed))
    except ValueError as error:
        raise ConfigError(f"model.{error}") from error
    return policy, lambda: itertools.chain(stored.pieces(), whole(adapters))


@contextlib.contextmanager
def start_machinery(
    config: Config, inputs: Inputs, engine_log: Path, say: Callable[[str], None]
) -> Iterator[Machinery]:
    """Browser, sandboxes and engine, running. Raises `InfrastructureError`, `SandboxError`, `EngineError`."""
    with contextlib.ExitStack() as stack:
        browser = stack.enter_context(Browser(max_pages=config.verifier.max_pages))
        sandboxes = _open_sandboxes(config, say)
        stack.callback(sandboxes.close)
        engine, publish = stack.enter_context(_start_engine(config, inputs, engine_log))
        if config.rollout.accept_truncation_bias:
            engine = _Truncating(engine=engine, top_p=config.rollout.top_p, top_k=config.rollout.top_k)
        attempts = _attempts(config, inputs, engine, sandboxes, browser)
        cooler = dataclasses.replace(config.agent, temperature=config.evaluation.temperature)
        yield Machinery(
            attempts=attempts,
            heldout_attempts=dataclasses.replace(attempts, agent=cooler),
            publish=publish,
        )


def _open_sandboxes(config: Config, say: Callable[[str], None]) -> LocalSandboxes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # A rollout's own, and one more for the verdict's build.
        sandboxes = LocalSandboxes(Limits(), max_boots=config.rollout.concurrency)
    for weakness in sandboxes.weaknesses:
        say(f"note: {weakness}")
    return sandboxes


def _attempts(config: Config, inputs: Inputs, engine: Engine, sandboxes: LocalSandboxes, browser: Browser) -> Attempts:
    workshop = Workshop(
        make_sandbox=sandboxes,
        browser=browser,
        templates=inputs.templates,
        build_timeout_s=config.verifier.build_timeout_s,
        screenshots=inputs.pictures is not None,
    )
    return Attempts(
        engine=engine,
        make_world=workshop.make_world,
        score=workshop.score,
        chat=inputs.chat,
        agent=config.agent,
        context=config.context,
        system_prompt=inputs.prompt,
        pictures=inputs.pictures,
    )


@dataclass(frozen=True, kw_only=True)
class _Truncating:
    """An engine asked to sample from a truncated distribution; only training and evaluation, never the canary."""

    engine: Engine
    top_p: float
    top_k: int

    def generate(self, request: Request) -> Completion:
        return self.engine.generate(dataclasses.replace(request, top_p=self.top_p, top_k=self.top_k))


@contextlib.contextmanager
def _start_engine(config: Config, inputs: Inputs, log_path: Path) -> Iterator[tuple[Engine, Publish]]:
    if isinstance(config.engine, ScriptedConfig):
        specs = _specs(config, "train", config.tasks.num_train)
        specs |= _specs(config, "heldout", config.tasks.num_heldout)
        script = make_script(specs, config.seed)
        scripted = ScriptedEngine(script, encode=inputs.chat.text_ids, end_id=inputs.chat.end_id)
        with tempfile.TemporaryDirectory(prefix="webcoder-weights-") as folder:
            yield scripted, Publisher(scripted, inputs.policy, Path(folder), canary=None)
        return
    settings = config.engine
    with VllmServer(
        config.model.folder,
        port=settings.port or None,
        dtype=settings.dtype,
        max_model_len=config.agent.window_tokens,
        max_num_seqs=config.rollout.concurrency,
        kv_cache_gib=settings.kv_cache_gib,
        num_threads=settings.num_threads,
        images=inputs.pictures is not None,
        start_timeout_s=settings.start_timeout_s,
        log_path=log_path,
    ) as server:
        engine = VllmEngine(server.base_url, weights_dir=server.weights_dir)
        try:
            canary = make_canary(
                inputs.policy,
                compute=Compute(dtype=config.model.dtype),
                rule=inputs.pictures,
                tolerance=settings.canary_tolerance,
            )
            yield engine, Publisher(engine, inputs.policy, server.weights_dir, canary=canary, dtype=settings.dtype)
        finally:
            engine.close()


def _specs(config: Config, split: Split, count: int) -> dict[str, PageSpec]:
    tasks, specs = page_tasks(split, count, config.tasks.seed), page_specs(split, count, config.tasks.seed)
    return {task.task_id: spec for task, spec in zip(tasks, specs, strict=True)}
