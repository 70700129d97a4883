"""A page as its developer writes it: perhaps incomplete, perhaps wrong, and how to mend it."""

from dataclasses import dataclass, replace
from typing import Literal

from rollout.pages.spec import PageSpec, Section

Break = Literal["", "list", "heading"]


@dataclass(frozen=True, kw_only=True)
class Draft:
    """What stands in `src/App.tsx`: sections may be missing, lines wrong, a tag left open."""

    title: str
    sections: tuple[Section, ...]
    button: str
    """Empty when it was forgotten."""
    broken: Break = ""
    """Which tag of the first section is wrong: its list is not closed, or its heading opens twice."""

    def source(self) -> str:
        """The component's text.

        >>> print(Draft(title="Tea", sections=(), button="Buy").source())
        export default function App() {
          return (
            <main>
              <h1>Tea</h1>
              <button>Buy</button>
            </main>
          )
        }
        """
        lines = ["export default function App() {", "  return (", "    <main>", f"      <h1>{self.title}</h1>"]
        for i, section in enumerate(self.sections):
            lines += section_lines(section, self.broken if i == 0 else "")
        if self.button:
            lines.append(f"      <button>{self.button}</button>")
        return "\n".join([*lines, "    </main>", "  )", "}"])


def perfect(spec: PageSpec) -> Draft:
    """The page as asked."""
    return Draft(title=spec.title, sections=spec.sections, button=spec.button)


def next_repair(draft: Draft, spec: PageSpec) -> Draft | None:
    """The draft with its first flaw mended, in the order a build and a look reveal them; None when flawless."""
    if draft.broken:
        return replace(draft, broken="")
    if draft.title != spec.title:
        return replace(draft, title=spec.title)
    present = {section.heading: section for section in draft.sections}
    for wanted in spec.sections:
        if wanted.heading not in present:
            return replace(draft, sections=(*draft.sections, wanted))
        if present[wanted.heading] != wanted:
            mended = tuple(wanted if s.heading == wanted.heading else s for s in draft.sections)
            return replace(draft, sections=mended)
    return replace(draft, button=spec.button) if draft.button != spec.button else None


def edit_between(before: str, after: str) -> tuple[str, str]:
    r"""The smallest whole-line replacement that turns `before` into `after`, its old text unique.

    >>> edit_between("a\nb\nc", "a\nx\nb\nc")
    ('b', 'x\nb')
    """
    old, new = before.split("\n"), after.split("\n")
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    # An insertion is told by the line that follows it, if that line is unique.
    if start == len(old) - end and end > 0 and before.count(old[start]) == 1:
        end -= 1
    # Neither text may be empty, and the old one must stand in one place: take in lines from above until so.
    while start > 0:
        text = "\n".join(old[start : len(old) - end])
        if start not in (len(old) - end, len(new) - end) and before.find(text) == before.rfind(text):
            break
        start -= 1
    return "\n".join(old[start : len(old) - end]), "\n".join(new[start : len(new) - end])


def section_lines(section: Section, broken: Break = "") -> list[str]:
    """The component's lines for one section."""
    closing = "<h2>" if broken == "heading" else "</h2>"
    lines = ["      <section>", f"        <h2>{section.heading}{closing}"]
    if len(section.lines) == 1:
        lines.append(f"        <p>{section.lines[0]}</p>")
    else:
        lines += ["        <ul>", *(f"          <li>{line}</li>" for line in section.lines)]
        if broken != "list":
            lines.append("        </ul>")
    return [*lines, "      </section>"]
