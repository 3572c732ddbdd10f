"""`dlctl serve`: the same service for programs, by REST."""

from __future__ import annotations

from pathlib import Path

import typer

from dlctl.cli import output
from dlctl.cli.common import client, default_site


def serve(
    socket: Path | None = typer.Option(
        None, "--socket", metavar="FILE", help="The Unix socket, which only you can open; by "
        "default serve.sock in your runtime folder.",
    ),
    port: int | None = typer.Option(
        None, "--port", min=0, max=65535, help="Listen on a port of 127.0.0.1 in its place; each "
        "request needs the token. 0: any free one.",
    ),
    address: str = typer.Option("127.0.0.1", "--address", help="With --port: another address."),
    certificate: Path | None = typer.Option(None, "--tls-certificate", metavar="FILE",
                                            help="With --port: serve HTTPS."),
    key: Path | None = typer.Option(None, "--tls-key", metavar="FILE",
                                    help="The certificate's key."),
    proxy: bool = typer.Option(
        False, "--trust-proxy", help="With --port: a proxy stands before it, which does TLS."
    ),
) -> None:  # fmt: skip
    """Serve the REST interface to programs of yours, until Ctrl-C.

    It does what the commands do, with your sites and your trainings; both may be used at once.

    Example: dlctl serve --port 8470
    """
    from dlctl.serve import run
    from dlctl.serve.desk import Desk
    from dlctl.service.client import Client, open_site
    from dlctl.service.pool import Pool

    if port is None and (certificate or key or proxy or address != "127.0.0.1"):
        raise typer.BadParameter("--address, --tls-… and --trust-proxy need --port")
    if port is not None and socket is not None:
        raise typer.BadParameter("either --socket or --port says where to listen")
    place = run.Place(socket or run.default_socket() if port is None else None, port or 0, address,
                      certificate, key, proxy)  # fmt: skip

    desk = Desk(Client(client().store, pool=Pool(open_site)), default_site())
    if port is not None:
        output.note(f"the token is in {run.token_file()}")
    run.serve(desk, place, lambda address: output.raw(f"{address}\n"))
    output.note("the server has ended; the trainings continue")
