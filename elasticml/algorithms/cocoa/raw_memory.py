"""Arrays behind addresses, for kernels that visit the rows of many chunks in one call.

An address in a table is a whole number; whoever fills the table keeps the arrays alive.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


@intrinsic
def pointer(typing_context: Any, address: Any, like: Any) -> Any:
    """Return a pointer to elements of the type that the array ``like`` has."""
    target = types.CPointer(like.dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(target))

    return target(address, like), generate


@intrinsic
def prefetch(typing_context: Any, address: Any) -> Any:
    """Have the line of memory at an address brought into the second-level cache.

    Never fails, wherever it points. Not into the first level: it has few places for lines under
    way, and the model's own look-ups want them (a pass in random order took 1.3 times as long).
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        wanted = builder.module.declare_intrinsic(
            "llvm.prefetch", [byte], ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        )
        where = builder.inttoptr(arguments[0], byte)
        # Read, from the second level on, data.
        builder.call(wanted, [where, flag(0), flag(2), flag(1)])
        return context.get_dummy_value()

    return types.void(address), generate
