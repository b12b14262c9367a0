"""torch tensors: the memory of a tensor on the CPU is used as it is, by NumPy or scipy."""

from __future__ import annotations

import warnings
from typing import Any

from grassia.errors import InvalidComponent

__all__ = ["open_object"]


def open_object(obj: Any) -> Any:
    """The rows of a tensor as an array, or as CSR where it is sparse.

    A dense tensor on the CPU is not copied, unless it is of a type that NumPy does not have (bfloat16,
    float8), which becomes float32. A tensor elsewhere is copied to the CPU, with a warning. Gradients are not
    followed.

    Raises
    ------
    InvalidComponent
        For what is no tensor of real numbers with data of its own.
    """
    import torch

    if not isinstance(obj, torch.Tensor):
        raise InvalidComponent(
            f"rows from the library torch must be a tensor; got {type(obj).__qualname__}; of a module take "
            "its .weight, of a data set the tensor of all rows"
        )
    if obj.is_complex() or obj.is_quantized:
        raise InvalidComponent(
            f"rows must be real numbers; got a tensor of {obj.dtype}; use .real, .imag or .dequantize()"
        )
    if obj.is_meta:
        raise InvalidComponent("rows must be a tensor with data; got one on the device 'meta'")
    tensor = obj.detach()
    if tensor.is_nested:
        raise InvalidComponent("rows must be of equal length; got a nested tensor; pad or concatenate it")
    if tensor.device.type != "cpu":
        size = tensor.element_size() * tensor.numel() if tensor.layout == torch.strided else None
        much = "" if size is None else f" ({size / 1e6:.1f} MB)"
        warnings.warn(
            f"a tensor on the device {tensor.device} is copied to the CPU{much}; all is computed there",
            UserWarning,
            stacklevel=2,
        )
        tensor = tensor.cpu()
    if tensor.layout == torch.strided:
        return _numbers(tensor, torch)
    return _csr(tensor, torch)


def _numbers(tensor: Any, torch: Any) -> Any:
    try:
        return tensor.numpy()
    except TypeError:  # a type that NumPy does not have
        return tensor.to(torch.float32).numpy()
    except RuntimeError:  # negative or conjugate bits that are yet to be resolved
        return tensor.resolve_neg().numpy()


def _csr(tensor: Any, torch: Any) -> Any:
    import scipy.sparse as sp

    if tensor.ndim != 2:
        raise InvalidComponent(
            f"rows must be a 2-D tensor (rows x features); got shape {tuple(tensor.shape)}"
        )
    if tensor.layout == torch.sparse_coo:
        tensor = tensor.coalesce()
        rows, columns = (part.numpy() for part in tensor.indices())
        entries = (_numbers(tensor.values(), torch), (rows, columns))
        return sp.coo_array(entries, shape=tuple(tensor.shape)).tocsr()
    if tensor.layout == torch.sparse_csr:
        parts = (tensor.values(), tensor.col_indices(), tensor.crow_indices())
        return sp.csr_array(tuple(_numbers(part, torch) for part in parts), shape=tuple(tensor.shape))
    if tensor.layout == torch.sparse_csc:
        parts = (tensor.values(), tensor.row_indices(), tensor.ccol_indices())
        columns = sp.csc_array(tuple(_numbers(part, torch) for part in parts), shape=tuple(tensor.shape))
        return columns.tocsr()
    raise InvalidComponent(
        f"a sparse tensor must be of layout coo, csr or csc; got {tensor.layout}; "
        "convert with .to_sparse_csr()"
    )
