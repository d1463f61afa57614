"""What is installed: the wheel, in an environment of its own, outside the repository."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("dist")
    source = tmp_path_factory.mktemp("source") / "gradwire"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(source)], check=True)
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(target.glob("gradwire-*.whl"))


def test_the_wheel_holds_the_yaml_the_types_and_the_license_and_nothing_beside_the_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    yaml = {path.relative_to(ROOT / "conf").as_posix() for path in (ROOT / "conf").rglob("*.yaml")}
    assert {name.removeprefix("gradwire/conf/") for name in names if name.endswith(".yaml")} == yaml
    for package in ("comm", "schedulers", "checkpoint", "inference", "trainer"):
        assert f"gradwire/{package}/py.typed" in names
    assets = {name.removeprefix("gradwire/trainer/report/assets/") for name in names}
    assert {"page.html", "page.css", "page.js", "echarts/echarts.min.js", "echarts/NOTICE"} <= assets
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"gradwire"}


def test_the_installed_command_trains_outside_the_repository(wheel: Path, tmp_path: Path) -> None:
    environment_folder = tmp_path / "env"
    venv.create(environment_folder, with_pip=False, symlinks=True)
    python = environment_folder / "bin" / "python"
    site = Path(
        subprocess.run(
            [str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    )
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")  # all but gradwire itself
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [str(environment_folder / "bin" / "gradwire"), "train", "run.length=3 updates", "evaluation.every=null"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert (run / "metrics.jsonl").read_text().count("\n") == 1
    where = "import gradwire.conf; print(gradwire.conf.__file__)"
    found = subprocess.run([str(python), "-c", where], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert str(site) in found
