"""Builds the compiled kernel; where there is no C compiler the build goes on without it."""

from Cython.Build import cythonize
from setuptools import Extension, setup

KERNEL = [
    "penstock._message",
    "penstock.wire._buffer",
    "penstock.wire.kafka._batch",
    "penstock.produce._lane",
]

extensions = cythonize(
    [Extension(name, [f"src/{name.replace('.', '/')}.pyx"], extra_compile_args=["-O3"]) for name in KERNEL],
    build_dir="build/cython",
    include_path=["src"],
    language_level=3,
)
for extension in extensions:
    extension.optional = True  # cythonize forgets it when it is given above

setup(ext_modules=extensions)
