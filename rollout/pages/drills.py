"""Copying exercises: a brief of a few lines, and the sections that show them, word for word.

In a whole demonstration a name is a hundred tokens away from where it is copied to, and a small model that
starts from nothing does not find the connection. In a drill it is ten tokens away and every word counts:
the words of a line are drawn at random, so nothing but the brief foretells them.
"""

from random import Random

from rollout.pages import words
from rollout.pages.draft import section_lines
from rollout.pages.spec import Section, brief_line
from rollout.render import ChatFormat
from rollout.samples import build_samples
from rollout.tree import TreeBuilder
from rollout.types import Completion, Message, Sample

_HEADINGS = ("Menu", "Products", "Team", "Hours", "Address", "Motto")
_WORDS = (
    *words.COLORS, *words.PLACES, *words.TRADES, *words.QUALITIES, *words.GOODS, *words.FIRST_NAMES,
    *words.LAST_NAMES, *words.VERBS, *words.OBJECTS, *words.DAYS, *words.ROADS,
)  # fmt: skip


def drill_sample(chat: ChatFormat, rng: Random) -> Sample:
    """One exercise as a training sample: the answer's tokens are trained."""
    headings = rng.sample(_HEADINGS, rng.randint(1, 3))
    sections = [Section(heading=heading, lines=_lines(rng)) for heading in headings]
    asked = "\n".join(brief_line(section) for section in sections)
    answer = "\n".join(line for section in sections for line in section_lines(section))
    tree = TreeBuilder()
    tree.add_message("user", asked, chat.message_ids(Message(role="user", content=asked)))
    ids = (*chat.text_ids(answer), chat.end_id)
    tree.add_answer(
        answer,
        chat.answer_header,
        Completion(token_ids=ids, logp=(0.0,) * len(ids), policy_versions=(0,) * len(ids), finish_reason="stop"),
    )
    return build_samples(tree.build())[0]


def _lines(rng: Random) -> tuple[str, ...]:
    return tuple(_line(rng) for _ in range(rng.randint(1, 5)))


def _line(rng: Random) -> str:
    line = " ".join(rng.choice(_WORDS) for _ in range(rng.randint(1, 3)))
    return f"{line} ${rng.randint(2, 99)}" if rng.random() < 0.3 else line
