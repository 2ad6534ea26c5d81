# `make check` is what continuous integration runs. Tools are taken from the active environment.
.DEFAULT_GOAL := check
.PHONY: check format lint types test slow fix native clean

check: format lint types test

format:
	ruff format --check .

lint:
	ruff check .

types:
	mypy

test:
	pytest -m "not slow"

slow:
	pytest -m slow

fix:
	ruff check --fix .
	ruff format .

# Build the kernels in place, for work on csrc/ without a reinstall: src/tinyserve/kernels/_kernels.so
native:
	cmake -S . -B build/native -DCMAKE_BUILD_TYPE=Release -DTINYSERVE_WERROR=ON
	cmake --build build/native --parallel
	cmake --install build/native --prefix src

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/tinyserve/kernels/_kernels.so
