"""Builds torch_hetero: setuptools asks CMake for the libraries and puts them into the package.

    pip install --no-build-isolation .      # into an environment that has torch 2.11
    pip wheel --no-build-isolation --no-deps .

Environment variables: HETERO_CUDA=AUTO|ON|OFF, MAX_JOBS=n, HETERO_NO_BUILD=1 (register the package in the environment
and leave the building to `make build`).
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

# An installed torch_hetero must not be loaded by the build of the next one.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


def torch_version() -> str:
    """The minor version of torch that the libraries are built against; they fit no other."""
    try:
        import torch
    except ImportError:
        sys.exit("torch_hetero is built against an installed torch: install torch 2.11 first and "
                 "use `pip install --no-build-isolation .`")
    return ".".join(torch.__version__.split(".")[:2])


def version() -> str:
    """This package's version and torch's, which a wheel's name thus tells: 0.1.0+torch2.11."""
    own = re.search(r'__version__ = "(.*)"', (ROOT / "torch_hetero" / "version.py").read_text())[1]
    return f"{own}+torch{torch_version()}"


class CMakeBuild(build_ext):
    """Builds all native code with CMake in place of setuptools' own compiler calls."""

    def run(self) -> None:
        """Configures, builds and installs into the package."""
        package = ROOT / "torch_hetero" if self.inplace else Path(self.build_lib).resolve() / "torch_hetero"
        build = Path(self.build_temp).resolve()
        jobs = os.environ.get("MAX_JOBS", str(os.cpu_count() or 1))
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        configure = ["cmake", "-S", ROOT, "-B", build, *generator, "-DHETERO_TESTS=OFF",
                     f"-DHETERO_CUDA={os.environ.get('HETERO_CUDA', 'AUTO')}",
                     f"-DPython3_EXECUTABLE={sys.executable}"]
        subprocess.run(configure, check=True)
        subprocess.run(["cmake", "--build", build, "-j", jobs], check=True)
        subprocess.run(["cmake", "--install", build, "--prefix", package], check=True)

    def get_outputs(self) -> list[str]:
        """Nothing: CMake's install step places the files."""
        return []


class WithActivation(build_py):
    """Puts a file into site-packages by which child processes activate the plan of torch_hetero.migration."""

    def run(self) -> None:
        """Builds as usual and adds the file."""
        super().run()
        if not self.editable_mode:  # scripts/setup.sh puts it into .venv
            self.copy_file(str(ROOT / "torch_hetero/migration/hetero_migration.pth"), self.build_lib, preserve_mode=False)


native = os.environ.get("HETERO_NO_BUILD") != "1"
(ROOT / "build").mkdir(exist_ok=True)
setup(
    packages=find_packages(include=["torch_hetero", "torch_hetero.*"]),
    package_data={"torch_hetero.profiles": ["*.json"], "torch_hetero.report": ["*.html", "*.css", "*.js"]},
    include_package_data=False,
    package_dir={"": "."},
    version=version(),
    install_requires=[f"torch=={torch_version()}.*"],
    ext_modules=[Extension("torch_hetero._C", sources=[])] if native else [],
    cmdclass={"build_ext": CMakeBuild, "build_py": WithActivation},
    # Not in the root: there, Python environments without this package would find its entry point and load it.
    options={"egg_info": {"egg_base": "build"}},
    zip_safe=False,
)
