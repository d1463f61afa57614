"""The order of samples as a pure function of (seed, samples seen), evaluated where it is needed."""

from typing import Any

import numpy as np
import numpy.typing as npt

from gradwire.trainer.data.errors import DataError
from gradwire.trainer.randomness import derive_seed

Ordinals = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]

_ROUNDS = 8
_BLOCK = 1024  # ordinals, at most
_LARGEST = 2**62
_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


class Permutation:
    """A keyed permutation of 0 … n−1 that takes no memory.

    A balanced Feistel network over pairs (L, R) of numbers below a = ⌈√n⌉, with addition modulo a and a 64-bit mixing
    function, permutes 0 … a²−1; what lands at n or beyond is sent through again until it lands below ("cycle
    walking", Black & Rogaway 2002). Fewer than 2√n + 1 of the a² values lie beyond, so that is rare.

    Args:
        n: Size of the domain.
        key: Names the permutation; different keys give unrelated ones.

    Raises:
        DataError: n is less than 1 or more than 2⁶².
    """

    def __init__(self, n: int, key: int) -> None:
        if not 1 <= n <= _LARGEST:
            raise DataError(f"an order needs between 1 and 2**62 samples, found {n}")
        self.n = n
        root = int(np.sqrt(float(n)))
        while root * root < n:
            root += 1
        while (root - 1) ** 2 >= n:
            root -= 1
        self._side = np.uint64(root)
        self._keys = [np.uint64(_mixed((key + (turn + 1) * _GOLDEN) & _MASK)) for turn in range(_ROUNDS)]

    def __call__(self, positions: npt.ArrayLike) -> Ordinals:
        """Where each of `positions` (integers in 0 … n−1, any shape) is sent; int64 of the same shape.

        Raises:
            DataError: a position is outside the domain.
        """
        given = np.asarray(positions, dtype=np.int64)
        if given.size and (given.min() < 0 or given.max() >= self.n):
            raise DataError(f"positions must lie in 0 … {self.n - 1}, found {given.min()} to {given.max()}")
        flat = self._network(given.ravel().astype(np.uint64))
        outside = np.flatnonzero(flat >= self.n)
        while outside.size:
            flat[outside] = self._network(flat[outside])
            outside = outside[flat[outside] >= self.n]
        return flat.astype(np.int64).reshape(given.shape)

    def _network(self, values: _Words) -> _Words:
        left, right = values // self._side, values % self._side
        for key in self._keys:
            left, right = right, (left + _mix(right ^ key) % self._side) % self._side
        return left * self._side + right


def _mix(words: _Words) -> _Words:
    """The finalizer of splitmix64 on an array (wraps modulo 2⁶⁴)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _mixed(word: int) -> int:
    return int(_mix(np.array([word], dtype=np.uint64))[0])


class Shuffled:
    """Endless order over n samples: every epoch visits each once, in an order of its own.

    Args:
        n: Samples of an epoch.
        seed: Names the order.
    """

    def __init__(self, n: int, seed: int) -> None:
        first = Permutation(n, 0)  # refuses what n may not be
        self.n = n
        self._seed = seed
        self._epoch = (-1, first)  # the permutation used last, with its epoch
        # The indices of the block of ordinals used last, with its number.
        self._block = (-1, np.empty(0, dtype=np.int64))

    def locate(self, ordinals: npt.ArrayLike) -> Ordinals:
        """The indices of the samples with these ordinals (0 is the first of the run); int64 of the same shape."""
        given = np.asarray(ordinals, dtype=np.int64)
        if not given.size:
            return given
        size = min(_BLOCK, self.n)  # a block spans two epochs at most
        block = int(given.flat[0]) // size
        within = given - block * size
        if within.min() < 0 or within.max() >= size:
            return self._located(given)
        if self._block[0] != block:  # few at a time cost as much as a block
            self._block = (block, self._located(np.arange(block * size, (block + 1) * size)))
        indices: Ordinals = self._block[1][within]
        return indices

    def _located(self, given: Ordinals) -> Ordinals:
        epochs, positions = np.divmod(given, self.n)
        indices: Ordinals = np.empty_like(given)
        for epoch in np.unique(epochs):
            here: npt.NDArray[Any] = epochs == epoch
            indices[here] = self._permutation(int(epoch))(positions[here])
        return indices

    def _permutation(self, epoch: int) -> Permutation:
        if self._epoch[0] != epoch:
            self._epoch = (epoch, Permutation(self.n, derive_seed(self._seed, "order", epoch)))
        return self._epoch[1]
