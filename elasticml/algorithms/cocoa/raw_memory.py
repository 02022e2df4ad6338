"""Pointers to arrays by address, for kernels that visit the rows of many chunks in one call.

An address in a table is an integer; the owner of the table keeps the arrays alive.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


@intrinsic
def pointer(typing_context: Any, address: Any, like: Any) -> Any:
    """Return a pointer to elements of the array ``like``'s type."""
    target = types.CPointer(like.dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(target))

    return target(address, like), generate


@intrinsic
def prefetch(typing_context: Any, address: Any) -> Any:
    """Prefetch the line of memory at an address into the second-level cache.

    Never fails, whatever the address. Not into the first level: it has few slots for pending lines,
    and the model's look-ups need them (a pass in random order took 1.3 times as long).
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = builder.module.declare_intrinsic(
            "llvm.prefetch", [byte], ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        )
        where = builder.inttoptr(arguments[0], byte)
        # Read access, second level and above, data cache.
        builder.call(function, [where, flag(0), flag(2), flag(1)])
        return context.get_dummy_value()

    return types.void(address), generate
