"""Training runs of seconds: a tiny policy, a scripted engine, pages judged from what the source would show."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import jax
import yaml

from rollout.attempt import Attempts
from rollout.pages.demos import make_script
from rollout.pages.simulated import SimulatedWorld, read_component
from rollout.pages.tasks import page_specs
from rollout.pages.vocabulary import save_tokenizer, train_tokenizer
from rollout.scripted import ScriptedEngine
from verifier.reward import score_evidence
from verifier.types import Built, Census, Page, Report, Task
from wc_jax.assemble import Inputs, Machinery
from wc_jax.config import Config
from wc_jax.policy import PolicyConfig, init_params
from wc_jax.publish import Publisher
from wc_jax.weights import save_policy


def write_tiny_policy(folder: Path) -> Path:
    """A model folder of some hundred kilobytes with random weights."""
    tokenizer = train_tokenizer(512, num_pages=60)
    vocab_size = -(-tokenizer.get_vocab_size() // 64) * 64
    shape = PolicyConfig(
        vocab_size=vocab_size, width=32, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=32, ff_dim=32
    )
    save_policy(folder, shape, init_params(shape, jax.random.key(0)))
    save_tokenizer(tokenizer, folder)
    return folder


def write_config(path: Path, model: Path, run_dir: Path, **changes: object) -> Path:
    """A config file for `wc_jax.train` with everything small."""
    plain: dict[str, object] = {
        "run_dir": str(run_dir),
        "seed": 0,
        "num_steps": 3,
        "model": {"folder": str(model)},
        "tasks": {"num_train": 3, "num_heldout": 2, "per_step": 2},
        "rollout": {"group_size": 3, "concurrency": 2},
        "agent": {"max_turns": 6, "window_tokens": 1024, "max_answer_tokens": 512},
        "context": {"fold_tokens": 400},
        "engine": {"kind": "scripted"},
        "credit": {"max_sample_tokens": 1024},
        "optim": {"lr": 1e-3},
        "batch": {"row_tokens": 1024, "micro_rows": 2},
        "evaluation": {"every": 2},
        "checkpoint": {"every": 1, "keep": 2},
        "track": {"tensorboard": False},
        **changes,
    }
    path.write_text(yaml.safe_dump(plain))
    return path


@contextlib.contextmanager
def start_simulated(config: Config, inputs: Inputs, _log: Path, _say: Callable[[str], None]) -> Iterator[Machinery]:
    """Machinery without browser and sandboxes, for tests of what is around them."""
    tasks = (*inputs.train_tasks, *inputs.heldout_tasks)
    specs = [
        *page_specs("train", len(inputs.train_tasks), config.tasks.seed),
        *page_specs("heldout", len(inputs.heldout_tasks), config.tasks.seed),
    ]
    script = make_script({task.task_id: spec for task, spec in zip(tasks, specs, strict=True)}, config.seed)
    engine = ScriptedEngine(script, encode=inputs.chat.text_ids, end_id=inputs.chat.end_id)
    attempts = Attempts(
        engine=engine,
        make_world=lambda task: SimulatedWorld(inputs.templates[task.template].files),
        score=judge_source,
        chat=inputs.chat,
        agent=config.agent,
        context=config.context,
        system_prompt=inputs.prompt,
    )
    with tempfile.TemporaryDirectory() as folder:
        publish = Publisher(engine, inputs.policy, Path(folder), canary=None)
        yield Machinery(attempts=attempts, heldout_attempts=attempts, publish=publish)


def judge_source(task: Task, files: Mapping[str, bytes], _time_exhausted: bool) -> Report:
    """The verifier's pure half, on evidence read from the source."""
    source = files["src/App.tsx"].decode()
    error, lines = read_component(source)
    built = Built(ok=not error, log=error, dist={"index.html": b"<script src=a.js></script>", "a.js": b"1"}, seconds=0)
    census = Census(text="\n".join(lines), counts={"buttons": source.count("<button")})
    page = Page(
        ok=bool(lines),
        reason="" if lines else "blank",
        census=census,
        screenshot=b"",
        console_errors=(),
        failed_requests=(),
        seconds=0,
    )
    return score_evidence(task, built, page if built.ok else None)
