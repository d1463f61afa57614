"""Which way the hosts of a run meet."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gradwire.trainer.launch.elastic import Patience
from gradwire.trainer.launch.errors import PlacementError
from gradwire.trainer.launch.follower import Follower
from gradwire.trainer.launch.leader import Leader
from gradwire.trainer.launch.rendezvous import Meeting, is_this_machine, parse_endpoint

if TYPE_CHECKING:
    from gradwire.trainer.launch.local import HostPlan


def meet(
    host: "HostPlan",
    keys: Sequence[str],
    say: Callable[[str], None],
    patience: Patience = Patience(),  # noqa: B008 - frozen
) -> Meeting | Leader | Follower:
    """This host among the others: a fixed number of them, or those that come and go.

    Args:
        host: What it contributes.
        keys: What the workers write into the store and the host may be asked for.
        say: Shows a line on the screen.
        patience: How long hosts that come and go wait for what; `back` is the host's own.

    Raises:
        PlacementError: it is to serve the store and cannot.
        HostLostError: nobody serves it.
    """
    if not host.hosts.elastic:
        return Meeting(host.endpoint, host.hosts.most, host.host)
    assert host.endpoint is not None
    address, port = parse_endpoint(host.endpoint)
    patience = replace(patience, back=host.wait)
    if host.host == 0 or (host.host is None and is_this_machine(address)):
        try:
            return Leader(address, port, host.hosts, host.processes, host.restarts, say, patience)
        except RuntimeError as error:
            if host.host == 0:
                raise PlacementError(f"Cannot serve launch.endpoint on port {port}: {error}") from error
    return Follower(address, port, host.processes, keys, say, patience)
