"""Runs the notebooks of this folder in place, so that their outputs are those of the code beside it:

python docs/notebooks/execute.py
"""

from __future__ import annotations

import base64
import io
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

FOLDER = Path(__file__).parent


def execute(path: Path, folder: str | Path, parameters: str | None = None) -> nbformat.NotebookNode:
    """Runs a notebook and returns it with its outputs, without what went to stderr.

    Args:
      path: of the notebook, which is left as it is.
      folder: the working directory.
      parameters: Python in place of the cell with the tag "parameters".

    Raises:
      nbclient.exceptions.CellExecutionError: a cell raised an error.
    """
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if parameters is not None and "parameters" in cell.metadata.get("tags", ()):
            cell.source = parameters
    NotebookClient(notebook, timeout=3600, resources={"metadata": {"path": str(folder)}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # the time of day
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        for output in cell.get("outputs", ()):
            if png := output.get("data", {}).get("image/png"):
                output.data["image/png"] = smaller(png)
    return notebook


def smaller(png: str) -> str:
    """Returns a picture in base64 with 64 colours, which is a third of its size."""
    file = io.BytesIO()
    Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB").quantize(64).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


if __name__ == "__main__":
    for found in [Path(name) for name in sys.argv[1:]] or sorted(FOLDER.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as scratch:
            nbformat.write(execute(found, scratch), found)
