import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifier.text import is_present, normalize, share_present


@pytest.mark.parametrize(
    ("keyword", "text"),
    [
        ("rye", "Fresh RYE today"),
        ("Smith's", "Smith’s bakery"),
        ("Mon-Fri", "Mon–Fri"),
        ("Rye Bread", "Rye \n\t Bread"),
        ("$6", "$ 6.00"),
        ("$6.00", "Rye $6"),
        ("$1,200", "now $1200.00 only"),
        ("$1200.50", "$1,200.50"),
        ("6 €", "6,00€"),
        ("$6", "$6-$8"),
        ("Acme", "Acme™ tools"),
        ("café", "cafe\u0301"),
        ("ﬁne", "fine"),
        ("拉面", "特色拉面套餐"),
        ("C++", "We teach C++."),
        ("v2.0", "v2.0"),
        ("5", "1, 5, 9"),
        ("Strasse", "STRAẞE"),
    ],
)
def test_found(keyword: str, text: str) -> None:
    assert is_present(keyword, text)


@pytest.mark.parametrize(
    ("keyword", "text"),
    [
        ("$6", "$60"),
        ("$6", "$6.50"),
        ("$6", "$6,000"),
        ("600", "1,600"),
        ("6", "2.6"),
        ("Rye", "Ryebread"),
        ("Rye", "Rye\u00adbread"),
        ("Rye", "Rye\u200bbread"),
        ("rye", "Orye"),
        ("art", "cart_art_x"),
        ("Rye", ""),
        ("correct", "INCORRECT"),
        ("2.0", "2"),
        ("cafe", "café"),
        ("$1,20", "$1,200"),
    ],
)
def test_not_found(keyword: str, text: str) -> None:
    assert not is_present(keyword, text)


@pytest.mark.parametrize("empty", ["", "  \n", "\u200b", "\u00ad"])
def test_an_empty_expectation_is_refused_rather_than_found_everywhere(empty: str) -> None:
    with pytest.raises(ValueError, match="visible character"):
        is_present(empty, "anything")
    with pytest.raises(ValueError, match="visible character"):
        share_present(["Rye", empty], "Rye")


def test_share_counts_each_keyword_and_needs_one() -> None:
    assert share_present(["Rye", "Spelt", "Oat", "$6"], "Rye $6.00") == 0.5
    with pytest.raises(ValueError, match="at least one"):
        share_present([], "Rye")


@given(st.text())
def test_normalizing_twice_changes_nothing(text: str) -> None:
    assert normalize(normalize(text)) == normalize(text)


@given(st.text(min_size=1), st.sampled_from([" ", "\n", "\u00a0", ". ", " | "]))
def test_what_stands_on_the_page_is_found_and_case_and_spacing_do_not_matter(keyword: str, around: str) -> None:
    if normalize(keyword).strip():
        assert is_present(keyword, keyword)
        if normalize(keyword)[0].isalpha() and normalize(keyword)[-1].isalpha():
            assert is_present(keyword, f"first{around}{keyword}{around}last")
