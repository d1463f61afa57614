from typing import Any

import numpy as np
import pytest
import torch

from gradwire.trainer.data import DataError, SampleStream, training_set, validation_set
from tests.trainer.data.datasets_for_tests import Augmented, Numbers


class Ragged(Augmented):
    def __getitem__(self, index: int) -> Any:
        return torch.zeros(index)


class WithFlag(Numbers):
    train = True  # torchvision's datasets have such an attribute


def test_take_reads_the_dataset_in_its_own_order() -> None:
    assert SampleStream(Numbers(10), 3).take(np.array([2, 0, 9]))["index"].tolist() == [2, 0, 9]


def test_evaluation_sees_the_same_augmentation_every_time() -> None:
    stream = SampleStream(Augmented(10), 3)
    together = stream.take(np.array([4, 7]))["noise"]
    assert torch.equal(together[1], SampleStream(Augmented(10), 3).take(np.array([7]))["noise"][0])


def test_length_is_an_epoch_and_there_is_no_state() -> None:
    stream = SampleStream(Numbers(10), 3)
    assert (stream.epoch_samples, stream.size, stream.walks, stream.state_dict()) == (10, 10, False, {})
    stream.load_state_dict({})


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Numbers(0), "Numbers holds no sample"),
        (iter([1, 2]), "needs __len__ and __getitem__ .map-style., found list_iterator"),
        (True, "found bool"),
    ],
)
def test_what_is_no_dataset_is_refused(dataset: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        SampleStream(dataset)


def test_samples_of_different_shapes_are_refused_with_advice() -> None:
    with pytest.raises(DataError, match=r"3 samples do not fit into one batch .*same shape.*gather"):
        SampleStream(Ragged(3)).take(np.arange(3))


def test_position_of_a_stream_does_not_fit_data_read_by_index() -> None:
    with pytest.raises(DataError, match="saved position is that of streaming data"):
        SampleStream(Numbers(3)).load_state_dict({"ordinal": 1})


def test_a_dataset_is_its_own_training_set_whatever_attributes_it_has() -> None:
    dataset = WithFlag(3)
    assert training_set(dataset) is dataset
    assert validation_set(dataset) is None
