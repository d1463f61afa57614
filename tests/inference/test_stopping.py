import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.inference import InferenceError, Stop, TextStream


def decode(ids: list[int]) -> str:
    return bytes(ids).decode(errors="replace")


@given(st.text(max_size=60), st.lists(st.text(min_size=1, max_size=4), max_size=2))
def test_streamed_pieces_make_the_text_up_to_the_first_stop_string(text: str, strings: list[str]) -> None:
    stop = Stop(strings=tuple(strings), decode=decode)
    stream = TextStream(decode, stop)
    pieces = []
    for byte in text.encode():
        pieces.append(stream.push(byte))
        assert "\N{REPLACEMENT CHARACTER}" not in pieces[-1] or "\N{REPLACEMENT CHARACTER}" in text
    assert "".join(pieces) + stream.close() == stop.cut(text)


def test_a_long_stream_says_all_of_its_text() -> None:
    text = "Grüße, 世界! " * 80
    stream = TextStream(decode)
    said = "".join([stream.push(byte) for byte in text.encode()]) + stream.close()
    assert said == text
    assert len(stream._ids) < 300


def test_what_may_begin_a_stop_string_waits() -> None:
    stream = TextStream(decode, Stop(strings=("END",), decode=decode))
    assert [stream.push(byte) for byte in b"aEN"] == ["a", "", ""]
    assert stream.push(ord("x")) == "ENx"
    assert [stream.push(byte) for byte in b"END"] == ["", "", ""]
    assert stream.close() == ""


def test_a_character_of_several_tokens_comes_whole() -> None:
    stream = TextStream(decode)
    assert [stream.push(byte) for byte in "ü!".encode()] == ["", "ü", "!"]
    assert TextStream(decode).push(0xFF) == ""
    broken = TextStream(decode)
    broken.push(0xFF)
    assert broken.close() == "\N{REPLACEMENT CHARACTER}"


def test_stop_strings_need_a_decoder_and_a_character() -> None:
    with pytest.raises(InferenceError, match="stop strings need `decode`"):
        Stop(strings=("x",))
    with pytest.raises(InferenceError, match="an empty stop string"):
        Stop(strings=("",), decode=decode)
