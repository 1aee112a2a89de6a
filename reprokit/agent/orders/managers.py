"""Orders in multiprocessing's managers: which client's request for an object comes first, in the manager's own process.

There each client is served by a thread, which is given the client's name. Queues, locks and objects made of them are
ordered like those of threads; dictionaries, lists and values admit one request at a time.
"""

from __future__ import annotations

from functools import partial

from ..core.patching import Function, replace
from ..core.thread_names import without_ids
from .workers import Gate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .tracks import Orders

PLAIN = frozenset(["dict", "list", "Namespace", "Value", "Array"])  # types whose requests do not wait for each other
MAX_NAME = 100  # characters of a client's name


class ManagerOrders:
    """Records or replays the orders of requests to this process' manager."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders

    def watch(self, managers: Any) -> None:
        """Patch the module multiprocessing.managers."""
        replace(managers.Server, "accept_connection", self._make_accept)
        replace(managers.Server, "create", self._make_create)

    def _make_accept(self, original: Function) -> Function:
        def accept_connection(server: Any, connection: Any, name: str) -> Any:
            self._orders.actors.rename(f"client {without_ids(str(name))[0][:MAX_NAME]}")
            return original(server, connection, name)

        return accept_connection

    def _make_create(self, original: Function) -> Function:
        def create(server: Any, connection: Any, typeid: str, *arguments: Any, **keywords: Any) -> Any:
            previous_name = self._orders.actors.current.name
            self._orders.actors.rename("manager")  # whichever thread it is
            try:
                created = original(server, connection, typeid, *arguments, **keywords)
                if typeid in PLAIN:
                    self._orders.attempt(self._order, server.id_to_obj, created[0], typeid)
            finally:
                self._orders.actors.rename(previous_name)
            return created

        return create

    def _order(self, objects: dict[str, Any], identifier: str, typeid: str) -> None:
        referent, *rest = objects[identifier]
        name = self._orders.name(f"manager {typeid}")
        if name and type(referent) is not OrderedReferent:
            objects[identifier] = (OrderedReferent(referent, Gate(self._orders, name)), *rest)


class OrderedReferent:
    """Wraps a manager's object: its methods, special ones included, are called by one client after another.

    If a client asks for the value itself, the referent is pickled, not this wrapper.
    """

    __slots__ = ("gate", "referent")

    def __init__(self, referent: Any, gate: Gate) -> None:
        _SET_REFERENT(self, referent)
        _SET_GATE(self, gate)

    def __getattribute__(self, name: str) -> Any:
        attribute = getattr(_REFERENT(self), name)
        if name == "__class__" or not callable(attribute):
            return attribute
        return partial(_call, _GATE(self), attribute)

    def __str__(self) -> str:
        return str(_REFERENT(self))

    def __repr__(self) -> str:
        return repr(_REFERENT(self))


# Access to the slots that bypasses __getattribute__ and the referent's __setattr__.
_SLOTS = vars(OrderedReferent)
_REFERENT, _SET_REFERENT = _SLOTS["referent"].__get__, _SLOTS["referent"].__set__
_GATE, _SET_GATE = _SLOTS["gate"].__get__, _SLOTS["gate"].__set__


def _call(gate: Gate, method: Function, *arguments: Any, **keywords: Any) -> Any:
    return gate.enter(partial(method, *arguments, **keywords), is_turn=_is_turn)


def _is_turn(_: Any) -> bool:
    return True
