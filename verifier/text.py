"""Is this expected text visible on the page? One matching function for reward and ledger alike.

Both sides are brought to one form (Unicode compatibility form, folded case, plain quotes and
dashes, single spaces, one spelling per amount of money); the expectation must then occur as whole
words and whole numbers.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence

_QUOTES = {"‘": "'", "’": "'", "‚": "'", "‛": "'", "ʼ": "'", "′": "'", "`": "'", "´": "'"}
_QUOTES |= {"“": '"', "”": '"', "„": '"', "‟": '"', "″": '"', "«": '"', "»": '"'}
# The trademark signs would decompose into letters and glue themselves to the word before them.
_BEFORE_NFKC = str.maketrans(_QUOTES | {"™": " ", "℠": " "})

_CURRENCY = "".join(chr(c) for c in range(0x20A0, 0x20C1)) + "$£¥€¢"
_GROUPED = r"\d{1,3}(?:[,.' ]\d{3})+(?!\d)|\d+"
_AMOUNT = rf"(?P<whole>{_GROUPED})(?P<cents>[.,]\d\d(?![\d]))?"
_SIGN_FIRST = re.compile(rf"(?P<sign>[{_CURRENCY}]) ?{_AMOUNT}")
_SIGN_LAST = re.compile(rf"(?<![\d.,]){_AMOUNT} ?(?P<sign>[{_CURRENCY}])(?! ?\d)")

# Writing systems that put no space between words: a neighbor there says nothing about words.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff]"
)


def _one_amount(match: re.Match[str]) -> str:
    """`$ 1,200.00` and `$1200` become one spelling; `$1,200.50` keeps its cents."""
    whole = re.sub(r"\D", "", match["whole"])
    cents = re.sub(r"\D", "", match["cents"] or "")
    number = whole if cents in ("", "00") else f"{whole}.{cents}"
    sign_is_first = match.start("sign") < match.start("whole")
    return match["sign"] + number if sign_is_first else number + match["sign"]


def normalize(text: str) -> str:
    """The form in which texts are compared.

    >>> normalize("  Smith’s —  OPEN\\n9–5, from $ 6.00 ")
    "smith's - open 9-5, from $6"
    """
    text = unicodedata.normalize("NFKC", text.translate(_BEFORE_NFKC)).casefold()
    text = unicodedata.normalize("NFKC", text).translate(_BEFORE_NFKC)
    kept: list[str] = []
    for char in text:
        category = unicodedata.category(char)
        if category == "Pd" or char == "\u2212":
            kept.append("-")
        elif category not in ("Cf", "Cc") or char.isspace():  # soft hyphens, zero-width marks
            kept.append(char)
    text = " ".join("".join(kept).split())
    return _SIGN_LAST.sub(_one_amount, _SIGN_FIRST.sub(_one_amount, text))


def _is_word(char: str) -> bool:
    if _UNSPACED.match(char):
        return False
    return char == "_" or char.isalnum() or unicodedata.category(char)[0] == "M"


def _is_cut(text: str, edge: int, outward: int) -> bool:
    """Whether a match whose outermost character is at `edge` ends inside a word or a number."""
    inside, near = text[edge], edge + outward
    if not _is_word(inside) or not 0 <= near < len(text):
        return False
    if _is_word(text[near]):
        return True
    far = near + outward  # "6" is cut in "6.50", not in "6." or "6, 7"
    return inside.isdigit() and text[near] in ".," and 0 <= far < len(text) and text[far].isdigit()


def _occurs(needle: str, haystack: str) -> bool:
    start = haystack.find(needle)
    while start >= 0:
        if not _is_cut(haystack, start, -1) and not _is_cut(haystack, start + len(needle) - 1, 1):
            return True
        start = haystack.find(needle, start + 1)
    return False


def _needle(keyword: str) -> str:
    needle = normalize(keyword)
    if not needle:
        raise ValueError(f"an expected text must have a visible character, got {keyword!r}")
    return needle


def is_present(keyword: str, text: str) -> bool:
    """Whether `keyword` occurs in `text` as whole words. ValueError for an empty keyword.

    >>> is_present("$6", "Rye bread\\n$6.00"), is_present("$6", "$60"), is_present("Rye", "Ryebread")
    (True, False, False)
    """
    return _occurs(_needle(keyword), normalize(text))


def share_present(keywords: Sequence[str] | Iterable[str], text: str) -> float:
    """The share in [0, 1] of `keywords` that occur in `text`. ValueError when there are none."""
    needles = [_needle(keyword) for keyword in keywords]
    if not needles:
        raise ValueError("share_present needs at least one keyword, got none")
    haystack = normalize(text)
    return sum(_occurs(needle, haystack) for needle in needles) / len(needles)
