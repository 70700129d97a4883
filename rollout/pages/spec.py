"""What a generated page must show, the brief that asks for it, and the checklist that judges it."""

import hashlib
from dataclasses import dataclass
from random import Random
from typing import Literal

from rollout.pages import words
from verifier.types import Requirement, Task

Split = Literal["train", "heldout"]


@dataclass(frozen=True, kw_only=True)
class Section:
    """A headed part of the page: several lines make a list, one line a paragraph."""

    heading: str
    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PageSpec:
    """One page in full: its title, its sections in order, and the label of its button."""

    title: str
    sections: tuple[Section, ...]
    button: str

    @property
    def split(self) -> Split:
        """By content: a title belongs to one split whatever the seed, so that held-out pages are never seen."""
        return "heldout" if hashlib.blake2b(self.title.encode(), digest_size=1).digest()[0] < 32 else "train"


def make_spec(
    rng: Random, *, split: Split, min_sections: int = 2, max_sections: int = 4, max_lines: int = 3
) -> PageSpec:
    """Draws a page of the split; lists have 2 to `max_lines` lines.

    >>> make_spec(Random(1), split="heldout").split
    'heldout'
    """
    while True:
        title = f"{rng.choice(words.COLORS)} {rng.choice(words.PLACES)} {rng.choice(words.TRADES)}"
        headings = rng.sample(sorted(_MAKERS), rng.randint(min_sections, max_sections))
        spec = PageSpec(
            title=title,
            sections=tuple(Section(heading=heading, lines=_MAKERS[heading](rng, max_lines)) for heading in headings),
            button=f"{rng.choice(words.VERBS)} {rng.choice(words.OBJECTS)}",
        )
        if spec.split == split:
            return spec


def brief(spec: PageSpec) -> str:
    """What the agent is told: everything that the page must show, and nothing of how it is judged."""
    sections = [brief_line(section) for section in spec.sections]
    return "\n".join([f'Build a page titled "{spec.title}".', *sections, f'Button: "{spec.button}"'])


def brief_line(section: Section) -> str:
    """How a brief asks for one section."""
    return f"{section.heading}: " + " ".join(f'"{line}"' for line in section.lines)


def task_of(spec: PageSpec, task_id: str) -> Task:
    """The task with its hidden checklist: a section weighs 2, the title and the button 1."""
    requirements = [Requirement(requirement_id="title", keywords=(spec.title,))]
    requirements += [
        Requirement(requirement_id=s.heading.lower(), keywords=(s.heading, *s.lines), weight=2.0) for s in spec.sections
    ]
    requirements.append(Requirement(requirement_id="button", keywords=(spec.button,), counts={"buttons": 1}))
    return Task(task_id=task_id, brief=brief(spec), requirements=tuple(requirements))


def _menu(rng: Random, max_lines: int) -> tuple[str, ...]:
    return tuple(_item(rng, priced=True) for _ in range(rng.randint(2, max_lines)))


def _products(rng: Random, max_lines: int) -> tuple[str, ...]:
    return tuple(_item(rng, priced=False) for _ in range(rng.randint(2, max_lines)))


def _item(rng: Random, *, priced: bool) -> str:
    name = f"{rng.choice(words.QUALITIES)} {rng.choice(words.GOODS)}"
    return f"{name} ${rng.randint(2, 99)}" if priced else name


def _team(rng: Random, max_lines: int) -> tuple[str, ...]:
    return tuple(
        f"{rng.choice(words.FIRST_NAMES)} {rng.choice(words.LAST_NAMES)}" for _ in range(rng.randint(2, max_lines))
    )


def _hours(rng: Random, _: int) -> tuple[str, ...]:
    return (f"{rng.choice(words.DAYS)} {rng.randint(6, 11)} to {rng.randint(2, 9)}",)


def _address(rng: Random, _: int) -> tuple[str, ...]:
    return (f"{rng.randint(10, 99)} {rng.choice(words.PLACES)} {rng.choice(words.ROADS)}",)


def _motto(rng: Random, _: int) -> tuple[str, ...]:
    first, second = rng.sample(words.QUALITIES, 2)
    return (f"{first} {rng.choice(words.GOODS)} and {second} {rng.choice(words.GOODS)}",)


_MAKERS = {"Menu": _menu, "Products": _products, "Team": _team, "Hours": _hours, "Address": _address, "Motto": _motto}
