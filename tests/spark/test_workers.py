"""Registering the sources checks Spark's Python workers."""

import sys

import pytest

from velaray.pipelines import SparkSetupError, register

# A Python with Spark and the standard library alone.
_BARE = f"""#!/bin/sh
PYTHONPATH=$(printf %s "$PYTHONPATH" | tr : '\\n' | grep -E 'pyspark|py4j' | paste -sd :)
export PYTHONPATH
cd /
exec '{sys.executable}' -S "$@"
"""


@pytest.mark.slow
def test_workers_without_velaray_are_refused_with_a_remedy(spark, monkeypatch, tmp_path):
    bare = tmp_path / "python"
    bare.write_text(_BARE)
    bare.chmod(0o755)
    for python, why in ((bare, "No module named 'velaray'"), (tmp_path / "none", "No such file")):
        monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
        with pytest.raises(SparkSetupError, match=f"{why}.* PYSPARK_PYTHON .*{sys.executable}"):
            register(spark)
    monkeypatch.undo()
    register(spark)
