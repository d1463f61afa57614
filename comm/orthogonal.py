"""Orthonormal columns, by operations that give the same bits wherever the same bits go in."""

import torch
from torch import Tensor

_DEPENDENT = 1e-5  # of a column's length left after the projection: what is less is rounding, not a direction


@torch.no_grad()
def orthonormalize_(columns_KNR: Tensor) -> None:
    """Make the R columns of each of K matrices [N, R] orthonormal, in place (Gram-Schmidt, every projection twice).

    A column that depends on those before it becomes zero instead of noise, so that the columns always are a basis of
    what they spanned. A matrix with a NaN becomes NaN wherever the NaN reaches; give it NaN everywhere first.
    """
    largest = columns_KNR.abs().amax(1, keepdim=True)
    columns_KNR.div_(torch.where(largest == 0, 1.0, largest))  # the squares of tiny gradients would underflow
    for index in range(columns_KNR.shape[2]):
        column_KN1 = columns_KNR[:, :, index : index + 1]
        before_KNI = columns_KNR[:, :, :index]
        length = _length(column_KN1)
        for _ in range(2 if index else 0):
            column_KN1.sub_(before_KNI @ (before_KNI.mT @ column_KN1))
        left = _length(column_KN1)
        dependent = left <= _DEPENDENT * length  # false for NaN, which must stay
        column_KN1.div_(torch.where(dependent, 1.0, left))
        column_KN1.masked_fill_(dependent, 0.0)


def _length(column_KN1: Tensor) -> Tensor:
    """Norms [K, 1, 1]; summed in float64, where a long column's norm is still exact to float32."""
    length: Tensor = torch.linalg.vector_norm(column_KN1, dim=1, keepdim=True, dtype=torch.float64)
    return length.to(column_KN1.dtype)
