"""``velaray erase``: the erasure of messages by their key or subject."""

from __future__ import annotations

import click

from velaray.cli.common import Output, with_admin
from velaray.cli.confirmation import destroys
from velaray.client.admin import Admin


@click.command()
@click.option("--namespace", required=True, metavar="TENANT/NAMESPACE", help="Where to erase.")
@click.option("--key", help="Erase the messages with this key.")
@click.option("--subject", help="Erase the messages with this value of the property subject.")
@destroys("erase messages of {namespace} for ever, also in archives and backups")
@with_admin
def erase(show: Output, admin: Admin, namespace: str, key: str | None, subject: str | None) -> None:
    """Erase all messages of a key, or of a subject, in an erasable namespace.

    It destroys their data key. So they can't be read in ledgers, archives and backups either. It
    takes some seconds, until no process can use the key any more. It can't be undone.

    \b
    Example:
      velaray erase --namespace public/people --key ann@example.org
    """
    if (key is None) == (subject is None):
        raise click.UsageError("give --key or --subject")
    found = admin.namespaces.erase(namespace, key=key, subject=subject)
    text = "erased" if found["existed"] else "there were no messages to erase"
    show.done(f"{text} (HMAC {found['digest']})", **found)
