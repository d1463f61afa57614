from benchmarks.inference_stream import stream
from gradwire.trainer.models import Decoder


def test_a_short_stream_is_marked_and_takes_no_more_memory() -> None:
    model = Decoder(61, context=16, width=16, layers=1, heads=2, kv_heads=1).eval()
    marks = list(stream(model, 600, 16, 2, 3))
    assert [mark.end for mark in marks] == [200, 400, 600]
    assert all(mark.milliseconds > 0 for mark in marks)
    assert marks[2].resident - marks[1].resident < 2**20
