"""Shapes in annotations: jaxtyping's types where it is installed, harmless stand-ins where only jax is.

The annotations are documentation at run time; the test suite, which has jaxtyping, checks them on each call.
"""

try:
    from jaxtyping import Array, Bool, Float, Int, Shaped
except ModuleNotFoundError:
    from jax import Array

    class _Shape:
        """`Float[Array, "T D"]` evaluates to the array's type."""

        def __class_getitem__(cls, item: tuple[type, str]) -> type:
            return item[0]

    Bool = Float = Int = Shaped = _Shape  # type: ignore[assignment]

__all__ = ["Array", "Bool", "Float", "Int", "Shaped"]
