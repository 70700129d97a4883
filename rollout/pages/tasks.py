"""Tasks in number: the same split, count and seed always give the same list."""

from random import Random

from rollout.pages.spec import PageSpec, Split, make_spec, task_of
from verifier.types import Task


def page_specs(split: Split, count: int, seed: int) -> list[PageSpec]:
    """`count` pages with distinct titles."""
    rng = Random(f"{seed}/{split}")
    found: dict[str, PageSpec] = {}
    while len(found) < count:
        spec = make_spec(rng, split=split)
        found.setdefault(spec.title, spec)
    return list(found.values())


def page_tasks(split: Split, count: int, seed: int) -> list[Task]:
    """`count` tasks; ids are `<split>-<index>`.

    >>> print(page_tasks("train", 1, seed=0)[0].task_id)
    train-0000
    """
    return [task_of(spec, f"{split}-{index:04d}") for index, spec in enumerate(page_specs(split, count, seed))]
