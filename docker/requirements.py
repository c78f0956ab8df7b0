"""Writes what Paceline needs with one of its extras, one requirement a line.

pip installs it with Paceline only, and an image wants it before and apart. Run beside
pyproject.toml: `python requirements.py coordinator`.
"""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
requirements = project["dependencies"] + project["optional-dependencies"][sys.argv[1]]
sys.stdout.writelines(f"{requirement}\n" for requirement in requirements)
