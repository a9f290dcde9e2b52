"""Regenerate the committed protobuf modules from our .proto files.

Run as ``python tools/generate_protobuf.py [OUTPUT_ROOT]``; without an argument the
modules are written in place. The protoc of grpcio-tools 1.71 is used on purpose: code
it generates runs with every newer protobuf runtime, while the reverse fails.
"""

import sys
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTOS = sorted(
    p.relative_to(ROOT) for room in ("events", "wire") for p in ROOT.glob(f"{room}/*.proto")
)


def generate(output: Path) -> None:
    """Write ``*_pb2.py`` and ``*_pb2.pyi`` below ``output`` (its ``velaray/<room>`` folders)."""
    names = [f"velaray/{proto.as_posix()}" for proto in PROTOS]
    status = protoc.main(
        ["protoc", f"-I{ROOT}", f"--python_out={output}", f"--pyi_out={output}", *names]
    )
    if status != 0:
        raise SystemExit(status)


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
