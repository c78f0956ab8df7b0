"""The rules of the tree: who imports what, how long a file is, what is generated."""

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SERVICES = ("coordinator", "draft_service", "target_service")
GENERATED = ROOT / "paceline" / "v1"
MAX_LINES = 300


def sources(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in found if GENERATED not in path.parents]


def reads_environment(tree: ast.AST) -> bool:
    return any(
        (isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv"))
        or (
            isinstance(node, ast.ImportFrom)
            and node.module == "os"
            and any(name.name in ("environ", "environb", "getenv") for name in node.names)
        )
        for node in ast.walk(tree)
    )


def test_import_contracts_hold() -> None:
    tool = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run(
        [tool, "--no-logo", "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout


def test_only_the_config_module_reads_the_environment() -> None:
    readers = [
        str(path.relative_to(ROOT))
        for path in sources("paceline", *SERVICES)
        if reads_environment(ast.parse(path.read_text()))
    ]
    assert readers == ["paceline/config.py"]


def test_no_file_is_longer_than_one_can_read_at_once() -> None:
    long = {
        str(path.relative_to(ROOT)): length
        for path in sources("paceline", *SERVICES, "tests", "benchmarks", "examples")
        if (length := len(path.read_text().splitlines())) > MAX_LINES
    }
    assert long == {}


@pytest.mark.parametrize("package", ["paceline", *SERVICES])
def test_every_module_says_what_it_is_for(package: str) -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in sources(package)
        if (text := path.read_text()) and ast.get_docstring(ast.parse(text)) is None
    ]
    assert silent == []


def test_generated_protocol_code_is_current(tmp_path: Path) -> None:
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    subprocess.run(
        ["sh", "protos/generate.sh", str(tmp_path)], cwd=ROOT, env=environment, check=True
    )
    fresh = {path.name: path.read_text() for path in (tmp_path / "paceline" / "v1").iterdir()}
    committed = {
        path.name: path.read_text()
        for path in GENERATED.iterdir()
        if path.suffix in (".py", ".pyi") and path.name != "__init__.py"
    }
    assert committed == fresh


def test_no_two_test_files_have_one_name() -> None:
    """pytest would refuse to run them together."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
