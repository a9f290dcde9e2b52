"""``velaray hosts``: the processes that actors share, and moves between them."""

from __future__ import annotations

import click

from velaray.cli.common import Group, Output, with_admin
from velaray.client.admin import Admin


@click.group(cls=Group)
def hosts() -> None:
    """Inspect the processes that run the actors, and move actors between them."""


_COLUMNS = {
    "name": "HOST",
    "pid": "PID",
    "actors": "ACTORS",
    "memory_mib": "MEMORY MIB",
    "cpu_s": "CPU S",
    "lag_ms": "LOOP LAG MS",
    "version": "VERSION",
    "state": "STATE",
}


@hosts.command("list")
@with_admin
def list_hosts(show: Output, admin: Admin) -> None:
    """List the hosts: those that run, and those that don't answer now.

    \b
    Example:
      velaray hosts list
    """
    rows = [
        {
            **host,
            "actors": len(host["actors"]),
            "memory_mib": host["memory"] >> 20,
            "cpu_s": round(host["cpu_s"], 1),
            "lag_ms": round(host["lag_s"] * 1000),
            "state": "drained" if host["drained"] else "takes actors",
        }
        for host in admin.hosts()
    ]
    unknown = dict.fromkeys(_COLUMNS)
    rows += [{**unknown, "name": name, "state": "doesn't answer"} for name in admin.hosts.silent()]
    show.rows(_COLUMNS, rows)


@hosts.command()
@click.argument("host")
@with_admin
def describe(show: Output, admin: Admin, host: str) -> None:
    """Show everything about a host, as JSON.

    \b
    Example:
      velaray hosts describe host/0
    """
    show.value(admin.hosts.get(host))


@hosts.command()
@click.argument("name")
@click.option("--to", metavar="HOST", help="The new host. Default: the one with fewest actors.")
@with_admin
def move(show: Output, admin: Admin, name: str, to: str | None) -> None:
    """Move the actors of topic NAME, or the actor with the key NAME, such as coordinator/0.

    \b
    Example:
      velaray hosts move orders --to host/1
    """
    host = admin.hosts.move(name, to)
    show.done(f"{name} is in {host}", name=name, host=host)


@hosts.command()
@click.argument("host")
@with_admin
def drain(show: Output, admin: Admin, host: str) -> None:
    """Move all actors out of HOST, and place no more in it.

    \b
    Example:
      velaray hosts drain host/0
    """
    moved = admin.hosts.drain(host)
    show.done(f"{host} is drained: {moved} topics and other actors moved", host=host, moved=moved)


@hosts.command()
@click.argument("host")
@with_admin
def resume(show: Output, admin: Admin, host: str) -> None:
    """Place actors in a drained HOST again.

    \b
    Example:
      velaray hosts resume host/0
    """
    admin.hosts.resume(host)
    show.done(f"{host} takes actors again", host=host)


@hosts.command()
@click.argument("names", metavar="[HOST]...", nargs=-1)
@with_admin
def restart(show: Output, admin: Admin, names: tuple[str, ...]) -> None:
    """Restart the processes of HOSTs, one after the other, with the installed version of velaray.

    Without HOST: all of them. Each host is drained first, and takes actors again afterwards.
    Clients reconnect, and nothing acknowledged is lost.

    \b
    Example:
      velaray hosts restart
    """
    for name in names or [host["name"] for host in admin.hosts()]:
        moved = 0
        while left := admin.hosts.drain(name):
            moved += left
        host = admin.hosts.restart(name)
        pid, version = host["pid"], host["version"]
        text = f"{name} runs velaray {version} in process {pid}"
        show.done(text, host=name, moved=moved, pid=pid, version=version)
