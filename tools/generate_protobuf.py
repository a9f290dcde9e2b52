"""Regenerate the committed protobuf modules from our .proto files.

Run as ``python tools/generate_protobuf.py [--check]``. Without an argument it writes the modules
in place. With ``--check`` it writes nothing and prints the names of modules that are out of date
(exit status 1). It uses the protoc of grpcio-tools 1.71: code from this version runs with every
newer protobuf runtime, and code from a newer version doesn't run with an older runtime.
"""

import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ("events", "wire")


def generate(root: Path, output: Path) -> None:
    """Write ``*_pb2.py`` and ``*_pb2.pyi`` below ``output`` (its ``velaray/<layer>`` folders)."""
    protos = sorted(proto for layer in LAYERS for proto in (root / layer).glob("*.proto"))
    names = [f"velaray/{proto.relative_to(root).as_posix()}" for proto in protos]
    status = protoc.main(
        ["protoc", f"-I{root}", f"--python_out={output}", f"--pyi_out={output}", *names]
    )
    if status != 0:
        raise SystemExit(status)


def out_of_date(root: Path) -> list[str]:
    """Generated modules below ``root`` that are missing, left over or out of date."""
    with tempfile.TemporaryDirectory() as folder:
        generate(root, Path(folder))
        fresh = {
            path.relative_to(Path(folder) / "velaray").as_posix(): path.read_bytes()
            for path in Path(folder).rglob("*_pb2.py*")
        }
    committed = {
        path.relative_to(root).as_posix(): path.read_bytes()
        for layer in LAYERS
        for path in (root / layer).glob("*_pb2.py*")
    }
    return sorted(
        name for name in fresh.keys() | committed.keys() if fresh.get(name) != committed.get(name)
    )


def main() -> None:
    """The command line."""
    if sys.argv[1:] == ["--check"]:
        stale = out_of_date(ROOT)
        if stale:
            raise SystemExit(f"out of date, run `make proto`: {', '.join(stale)}")
    else:
        generate(ROOT, ROOT)


if __name__ == "__main__":
    main()
