"""The web console: pages that show and change a cluster by the operations of the REST interface.

Pages are rendered on the server. Every number and every change comes from an operation that the
HTTP interface also serves (`velaray.console.in_process`).
"""
