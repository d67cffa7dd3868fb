"""The version of torch_hetero, read by setup.py and CMakeLists.txt as well."""

__version__ = "0.1.0"
