"""Builds the compiled kernel; where there is no C compiler the build goes on without it."""

from Cython.Build import cythonize
from setuptools import Extension, setup

KERNEL = ["penstock.wire.kafka._batch"]

setup(
    ext_modules=cythonize(
        [
            Extension(name, [f"src/{name.replace('.', '/')}.pyx"], optional=True, extra_compile_args=["-O3"])
            for name in KERNEL
        ],
        build_dir="build/cython",
        language_level=3,
    )
)
