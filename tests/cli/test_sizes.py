import pytest

from ringline.cli._sizes import read_bytes


@pytest.mark.parametrize(
    ("text", "expected"), [("8", 8), ("64MiB", 2**26), ("1k", 1024), ("2G", 2**31), ("1.5KB", 1536)]
)
def test_sizes_are_binary(text, expected):
    assert read_bytes("--begin", text) == expected


@pytest.mark.parametrize("text", ["", "-5", "1T", "many", "1e6", "0x10"])
def test_what_is_no_size_names_the_flag(text):
    with pytest.raises(ValueError, match=r"^--begin must be a size"):
        read_bytes("--begin", text)
