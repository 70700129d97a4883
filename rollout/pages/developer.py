"""A fallible developer: forgets sections, mistypes, breaks the build, and does not always look or mend.

Demonstrations by such a developer warm-start the policy: it can do the job afterwards, unreliably, and
reinforcement learning has something to improve.
"""

from dataclasses import dataclass, replace
from random import Random

from rollout.calls import ToolCall, format_call
from rollout.pages.draft import Break, Draft, edit_between, next_repair
from rollout.pages.spec import PageSpec, Section

PATH = "src/App.tsx"


@dataclass(frozen=True, kw_only=True)
class Habits:
    """How often things go wrong, as probabilities; each demonstration may have its own."""

    forget_section: float = 0.3
    forget_button: float = 0.25
    forget_line: float = 0.08
    typo: float = 0.06
    """Per line: a word is left out, or another word of the page stands in its place."""
    break_build: float = 0.12
    look_around: float = 0.08
    """Starts by listing or reading files."""
    look: float = 0.65
    """Takes a webshot after writing, and after each edit."""
    repair: float = 0.6
    """Mends the next flaw that a webshot showed, rather than finishing."""


CAREFUL = Habits(
    forget_section=0.06, forget_button=0.05, forget_line=0.02, typo=0.02, break_build=0.05, look=0.95, repair=0.95
)
CARELESS = Habits(
    forget_section=0.45, forget_button=0.4, forget_line=0.12, typo=0.08, break_build=0.15, look=0.45, repair=0.4
)
MOODS = (CAREFUL, Habits(), CARELESS)


class Developer:
    """Answers turn by turn until it finishes. It sees its own draft, so it needs no reading of results."""

    def __init__(self, spec: PageSpec, habits: Habits, rng: Random) -> None:
        self._spec, self._habits, self._rng = spec, habits, rng
        self._draft: Draft | None = None

    def answer(self) -> str:
        """The next message of the demonstration, calls included."""
        if self._draft is None:
            if self._rng.random() < self._habits.look_around:
                return format_call(self._rng.choice(_LOOKS))
            self._draft = self._write()
            call = ToolCall(name="write", arguments={"path": PATH, "content": self._draft.source()})
            return self._then_look(call)
        mended = next_repair(self._draft, self._spec)
        if mended is None or self._rng.random() >= self._habits.repair:
            return "@finish"
        old, new = edit_between(self._draft.source(), mended.source())
        self._draft = mended
        return self._then_look(ToolCall(name="edit", arguments={"path": PATH, "old": old, "new": new}))

    def _then_look(self, call: ToolCall) -> str:
        looks = self._rng.random() < self._habits.look
        return f"{format_call(call)}\n{'@webshot' if looks else '@finish'}"

    def _write(self) -> Draft:
        rng, habits, spec = self._rng, self._habits, self._spec
        kept = [s for s in spec.sections if rng.random() >= habits.forget_section]
        return Draft(
            title=self._mistype(spec.title),
            sections=tuple(self._write_section(section) for section in kept),
            button="" if rng.random() < habits.forget_button else self._mistype(spec.button),
            broken=self._break(kept) if rng.random() < habits.break_build else "",
        )

    def _write_section(self, section: Section) -> Section:
        lines = [
            line for line in section.lines if len(section.lines) == 1 or self._rng.random() >= self._habits.forget_line
        ]
        return replace(section, lines=tuple(self._mistype(line) for line in lines or section.lines[:1]))

    def _mistype(self, line: str) -> str:
        parts = line.split(" ")
        if self._rng.random() >= self._habits.typo or len(parts) < 2:
            return line
        at = self._rng.randrange(len(parts))
        if self._rng.random() < 0.5:
            return " ".join(parts[:at] + parts[at + 1 :])
        parts[at] = self._rng.choice(self._spec.title.split(" "))
        return " ".join(parts)

    def _break(self, kept: list[Section]) -> Break:
        if not kept:
            return ""
        return "list" if len(kept[0].lines) > 1 and self._rng.random() < 0.5 else "heading"


_LOOKS = (
    ToolCall(name="list", arguments={"path": "src"}),
    ToolCall(name="read", arguments={"path": PATH}),
    ToolCall(name="bash", arguments={"command": "ls src"}),
)


def script_of(spec: PageSpec, habits: Habits, rng: Random) -> list[str]:
    """All answers of one demonstration, the finishing one last."""
    developer = Developer(spec, habits, rng)
    answers = [developer.answer()]
    while not answers[-1].endswith("@finish"):
        answers.append(developer.answer())
    return answers
