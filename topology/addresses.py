"""The address that the processes of a node listen on.

A cluster on one machine has one address or name. A cluster on several has a network, such as
``10.1.0.0/16``, or the name of an interface, such as ``eth0``: each node listens on its own address
in that network, or of that interface.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from functools import cache
from ipaddress import IPv4Address, IPv4Network, ip_network

_SIOCGIFADDR = 0x8915
"""Linux: ask for the address of an interface."""
_NAME_BYTES = 16


class NoAddressError(OSError):
    """This node has no address of that kind, or more than one; the text has a remedy."""


def is_per_node(host: str) -> bool:
    """Whether each node has its own address for it: it is a network or an interface.

    Raises `NoAddressError` for a text with "/" that isn't a network.
    """
    return _network(host) is not None or host in _names()


@cache
def own_address(host: str) -> str:
    """The address of this node for a network or an interface; another ``host`` is returned as it
    is.

    Raises `NoAddressError` if this node has no such address, or several.
    """
    network = _network(host)
    if network is None:
        return _address_of(host) if host in _names() else host
    every = [address for address in map(_first_address, _names()) if address is not None]
    found = [each for each in every if each in network]
    if not network.is_loopback:
        found = [each for each in found if not each.is_loopback]
    if len(found) != 1:
        listed = ", ".join(map(str, found))
        raise NoAddressError(
            f"{socket.gethostname()} has several addresses in {host}: {listed}: give a smaller "
            "network, or an interface (--host)"
            if found
            else f"{socket.gethostname()} has no IPv4 address in {host}: give a network that "
            "every node has an address in (--host)"
        )
    return str(found[0])


def _network(host: str) -> IPv4Network | None:
    if "/" not in host:
        return None
    try:
        found = ip_network(host)
    except ValueError as error:
        raise NoAddressError(f"{host} is not a network ({error}): write 10.1.0.0/16") from error
    if not isinstance(found, IPv4Network):
        raise NoAddressError(f"{host} is not a network of IPv4 addresses: write 10.1.0.0/16")
    return found


def _names() -> list[str]:
    return [name for _, name in socket.if_nameindex()]


def _address_of(interface: str) -> str:
    found = _first_address(interface)
    if found is None:
        raise NoAddressError(f"{interface} of {socket.gethostname()} has no IPv4 address")
    return str(found)


def _first_address(interface: str) -> IPv4Address | None:
    """The first IPv4 address of an interface; None if it has none."""
    request = struct.pack("256s", interface.encode()[: _NAME_BYTES - 1])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, request)
        except OSError:
            return None
    return IPv4Address(answer[20:24])
