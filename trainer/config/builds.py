"""What a component must be, written in the annotation of its place: `Annotated[Node, Builds("torch.nn.Module")]`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Builds:
    """Marks a field whose value is a component: a `_target_` and its keyword arguments.

    Args:
        base: Dotted name of the class or protocol that the target must be; empty takes any class.
        supplied: Arguments of the target that the program gives.
        inline: Whether the component's keys stand beside the section's own instead of in a section below.
        group: The config group whose options can stand here, where it is chosen for each place (`group@place=option`).
    """

    base: str = ""
    supplied: tuple[str, ...] = ()
    inline: bool = False
    group: str = ""
