"""Modules that need pyspark are imported on demand, with a clear error without pyspark."""

import subprocess
import sys


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return done.stdout + done.stderr


def test_importing_the_pipelines_imports_no_pyspark():
    code = "import sys, velaray.pipelines; print({'pyspark', 'pyarrow'} & set(sys.modules))"
    assert run(code).strip() == "set()"


def test_without_pyspark_the_error_names_what_to_install():
    said = run("import sys; sys.modules['pyspark'] = None; from velaray.pipelines import register")
    assert "SparkMissing: velaray's Spark source and sink need" in said
    assert "pip install 'velaray[spark]'" in said


def test_without_pyarrow_the_error_of_ray_data_names_what_to_install():
    for name in ("read_topic", "TopicSink"):
        said = run(
            f"import sys; sys.modules['pyarrow'] = None; from velaray.pipelines import {name}"
        )
        assert "pip install 'velaray[data]'" in said
