"""The machines that the Python tests run on, in one run of pytest, and the table of which tests run where.

Every test runs once as the environment says, which by default is on the CPU alone. With `--machines all`, as in `make test`,
rows of `RUNS` add runs on other machines: the test has the machine's name as its first parameter, its options hold while the
test runs, and its variables reach the processes that the test starts. With `--machines NAME` only that machine's rows run.
`--all-parameters` takes all sets of parameters of each test there, where `RUNS` takes a few, always the same.
`HETERO_ACCELERATOR=cuda` puts a GPU in the place of the simulated accelerator, and `HETERO_PLACEMENT` chooses another policy.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch


def from_environment(variable: str, otherwise: str) -> str:
    """Returns a variable, so that the environment may say which accelerator and which placement it is."""
    value = os.environ.get(variable) or "none"
    return value if value != "none" else otherwise


# The CPU and a simulated accelerator with little memory. Each operator runs on a pseudo-random one of them, and the verifier
# checks every program before it runs.
TWO_DEVICES = {
    "HETERO_ACCELERATOR": from_environment("HETERO_ACCELERATOR", "sim"),
    "HETERO_PLACEMENT": from_environment("HETERO_PLACEMENT", "mixed"),
    "HETERO_MEMORY_BUDGET": "16MiB",
    "HETERO_FUSION": "0",
    "HETERO_VERIFY_PLANS": "1",
}

MACHINES = {
    "two_devices": TWO_DEVICES,
    "two_devices_fused": TWO_DEVICES | {"HETERO_FUSION": "1"},
    # As on a GPU: operators have kernels of the device, or run on copies. The CPU's kernels do not run there.
    "own_kernels": TWO_DEVICES | {"HETERO_TEST_HOST_KERNELS": "0"},
}


@dataclass(frozen=True)
class Run:
    """Tests that run on a machine too: those whose path starts with `tests`, and how many sets of parameters of each."""

    machine: str
    tests: str
    parameters: int | None = None


RUNS = [
    Run("two_devices", "tests/python/", 3),
    Run("two_devices", "tests/upstream/test_opinfo.py", 350),
    # Files that do not ask for eager's bits where sums are concerned.
    *[
        Run("two_devices_fused", f"tests/python/{name}.py", 2)
        for name in (
            "lazy/test_models",
            "lazy/test_fuzz",
            "compile/test_compile",
            "compile/test_mutation",
            "compile/test_captures",
            "compile/test_sizes",
            "compile/test_options",
            "operators/test_errors",
        )
    ],
    *[
        Run("own_kernels", f"tests/python/{name}.py", 2)
        for name in (
            "lazy/test_models",
            "lazy/test_fuzz",
            "tensors/test_views",
            "tensors/test_out_resize",
            "operators/test_errors",
        )
    ],
    Run("own_kernels", "tests/upstream/test_opinfo.py", 100),
]

# What does not run a second time with `--machines all`, though `RUNS` takes it: tests that choose their machine themselves, or
# whose work is that of processes, files and tools. `--machines NAME` runs them there, too.
ONCE = (
    *[
        f"tests/python/accelerator/{name}.py"
        for name in ("test_costs", "test_faults", "test_four_devices", "test_simulation", "test_uploads")
    ],
    "tests/python/adapters/",
    *[f"tests/python/device/{name}.py" for name in ("test_config", "test_config_docs", "test_import")],
    "tests/python/kv/",
    *[f"tests/python/migration/{name}.py" for name in ("test_command", "test_optimize", "test_workers")],
    "tests/python/models/",
    "tests/python/program/test_cpp_examples.py",
    *[
        f"tests/python/tools/{name}.py"
        for name in ("test_demo", "test_dispatcher_page", "test_machines", "test_model_bench", "test_report")
    ],
)


# What machines with an accelerator leave out, and why: tests of how the CPU does something when it is alone. Every other test
# runs there as well.
CPU_ALONE = {
    "test_attention.py::test_the_kernels_are_ours": "counts the CPU's attention kernels",
    "test_compile.py::test_a_model_on_the_cpu_runs_on_the_device_and_its_results_come_back[lstm]": (
        "an LSTM layer's outputs have other shapes on the CPU than on an accelerator"
    ),
    "test_sizes.py::test_another": "plans are made anew while costs are learned",
    "test_options.py::test_max_autotune_plans_each_size": "plans are made anew while costs are learned",
    "test_captures.py::test_recording_goes_on_across_a_graph_break": "counts plans, and costs are learned",
    "test_compile.py::test_training_is_close": "counts plans, and costs are learned",
    "test_options.py::test_training_leaves_no_memory_behind": "counts the bytes of the host's allocator",
    "test_sizes.py::test_other_batches": "plans are made anew while costs are learned",
    "test_sizes.py::test_training_with_other": "plans are made anew while costs are learned",
    "test_config.py::test_an_empty_variable": "looks at the variables that choose the accelerator and the placement",
    "test_config.py::test_sizes_that_are_none": "expects no memory budget",
    "test_saved.py::test_a_call_after_the_budget": "compares bytes with a budget of its own and one placement",
    "test_options.py::test_an_exported_program_is_compiled[lstm]": (
        "an LSTM layer's outputs have other shapes on the CPU than on an accelerator"
    ),
    "test_cost_file.py": "starts processes that choose their machine",
    "test_options.py::test_no_process_is_started": "looks at the processes that the compiler starts, on any machine",
    "test_options.py::test_an_installed_package": "looks at what an installation has, on any machine",
    "test_options.py::test_a_source_tree": "looks at what a source tree has, on any machine",
    "test_config.py::test_jit_compiles": "counts kernels that are fused and compiled for the CPU",
    "test_growth.py": "tensors grow in place without an accelerator only",
    "test_pixels.py::test_norms_over_pixels": "counts nodes that are fused",
    "test_pixels.py::test_kernels_of_images_run": "counts kernels of the CPU",
    "test_batch_norm.py::test_kernels_of_norms": "counts kernels of the CPU",
    "test_group_norm.py::test_kernels_of_norms": "counts kernels of the CPU",
    "test_encoder_layers.py::test_encoders_run": "counts kernels of the CPU",
    "test_encoder_layers.py::test_encoders_in_bfloat16": "counts kernels of the CPU",
    "test_interpolation.py::test_the_operator": "counts kernels of the CPU",
    "test_followers.py::test_an_activation": "counts kernels of the CPU",
    "test_followers.py::test_limits_are": "counts kernels of the CPU",
    "test_packed_lstm.py": "counts layers of the CPU that keep packed weights",
    "test_recurrent_layers.py": "counts layers of the CPU that keep packed weights",
    "test_images.py::test_convolutions_have_packed": "counts convolutions of the CPU that keep packed weights",
    "test_images.py::test_depthwise_convolutions": "counts convolutions of the CPU that keep packed weights",
    "test_images.py::test_signals_of_which": "looks at a layout that only fused programs on the CPU have",
    "test_images.py::test_programs_in_bfloat16": "counts convolutions of the CPU that keep packed weights",
    "test_images.py::test_images_between_convolutions_are_resized": "counts kernels of the CPU",
    "test_folded_norms.py::test_norms_are_folded": "counts convolutions of the CPU that keep packed weights",
    "test_folded_norms.py::test_one_filter_may": "counts convolutions of the CPU that keep packed weights",
    "test_folded_norms.py::test_norms_that_change": "counts convolutions of the CPU that keep packed weights",
    "test_folded_norms.py::test_images_with_a_depth": "counts convolutions of the CPU that keep packed weights",
    "test_folded_norms.py::test_signals": "counts convolutions of the CPU that keep packed weights",
    "test_lazy.py::test_sizes_that_come_back": "plans are made anew while costs are learned",
    "test_losses.py": "counts groups that are fused for the CPU",
    "test_memory.py": "counts the bytes of the host's allocator, peaks and reuse included",
    "test_overlap.py": "programs are recorded while they run without an accelerator only",
    "test_patterns.py": "counts groups that are fused for the CPU",
    "test_profiler.py::test_a_fused_group": "looks at a group that is fused for the CPU",
    "test_qwen3.py": "text, files and sampling, which use no device",
    "test_qwen3_model.py": "a program of its own, which chooses its machine",
    "test_qwen3_quantized.py": "a program of its own, which takes the CPU",
    "test_qwen3_server.py": "a program of its own, which takes the CPU",
    "test_saved.py::test_planned_memory": "knows what the CPU's arena holds at least",
    "test_server.py::test_calls_run_at_once": "operators on the accelerator run on its threads, not on a lane's",
    "test_server.py::test_parallel_regions_of_a_lane": "operators on the accelerator run on its threads",
}

# What machines leave out too whose accelerator does not run the CPU's kernels: the bits of what a GPU computes otherwise.
BITS_OF_HOST_KERNELS = {
    f"{test}{which}": "attention is not the CPU's"
    for test, whichs in {
        "test_compile.py::test_training_without_fusion_has_the_bits_of_the_same_graphs_on_the_cpu": ["[transformer]"],
        "test_models.py::test_three_training_steps_leave_every_parameter_bitwise_cpu": [
            f"[{model}-" for model in ("transformer", "vit", "language_model")
        ],
        "test_fused.py::test_placement_does_not_change_a_bit_of_what_is_fused": ["[transformer]"],
        "test_sim.py::test_training_a_transformer_on_two_devices_is_bitwise_cpu": [""],
    }.items()
    for which in whichs
} | {
    "test_fused.py::test_placement_does_not_change_a_bit_of_what_is_fused[perceptron]": "the CPU draws numbers",
}

# What a GPU leaves out too.
GPU = {
    **{
        name: "an index out of range ends the process's use of the GPU, as in PyTorch"
        for name in (
            "test_device_kernels.py::test_errors_are_the_cpus_and_nothing_is_lost",
            "test_captures.py::test_an_index_out_of_range",
            "test_options.py::test_traceback_names_the_line",
            "test_errors.py::test_a_change_that_nobody_has_heard",
            "test_errors.py::test_no_error_text_mentions",
            "test_errors.py::test_what_was_to_change_after_a_failed_call",
            "test_errors.py::test_sync_mode_raises_errors_of_values",
            "test_dynamic.py::test_batch_and_length_of_attention",
            "test_saved.py::test_an_error_names_the_operator",
            "test_stage_pipeline.py::test_an_error_is_that_of_its_call",
        )
    },
    "test_errors.py::test_integers_are_divided": "dividing an integer by zero is no error on a GPU, as in PyTorch",
    "test_device_module.py::test_accelerator": "PyTorch's accelerator is the GPU",
    "test_device_module.py::test_stream": "PyTorch's accelerator is the GPU",
    **{
        f"test_adapters.py::{name}": "libraries take the GPU, which is PyTorch's accelerator"
        for name in ("test_data_parallel", "test_a_module_that_imports", "test_a_version_that_has", "test_programs_that_use_the_cpu")
    },
    "test_fuzz.py::test_a_program_gives_cpu_bits": "compares bits of sums",
    "test_device_module.py::test_events_measure": "looks at the simulated machine's clock",
    "test_device_module.py::test_work_of_streams": "looks at the simulated machine's clock",
    "test_config.py::test_verify_mode": "the straight interpreter runs on the CPU, which has other bits",
    "test_threads.py::test_threads_that_record": "a chain of sines, which makes any difference large",
    "test_custom_ops.py::test_gradcheck": "sums of backward passes are not made in the same order each time",
    "test_models.py::test_transformer_forward": "CUDA's attention in float32 has 10 bits, in eager too",
    "test_models.py::test_three_training_steps": "batch norm makes small differences large",
    "test_convolutions.py::test_unfused_a_small_net": "compares bits of losses",
    "test_rnn.py::test_autocast": "compares bits of bfloat16",
    "test_folded_norms.py::test_without_fusion_and": "compares bits of convolutions",
    "test_whole.py::test_svd_into": "singular vectors are not unique",
    "test_captures.py::test_default_settings_capture": "CUDA's attention in float32 has 10 bits, in eager too",
    "test_files.py::test_layers_are_loaded_though_their_meta_kernels_describe_others[group_norm, torch.bfloat16]": (
        "sums of bfloat16 are made in another order"
    ),
}


def runs_of(path: str, chosen: str) -> dict[str, int | None]:
    """Returns the machines that a file's tests run on with `--machines chosen`, and how many sets of parameters of each test."""
    if chosen == "all" and path.startswith(ONCE):
        return {}
    return {run.machine: run.parameters for run in RUNS if path.startswith(run.tests) and chosen in (run.machine, "all")}


def reasons_to_leave_out(test: str, machine: str) -> list[str]:
    """Returns why a test, by its name without the machine's, does not run on a machine; "" is what the environment says."""
    variables = os.environ | MACHINES.get(machine, {})
    if (variables.get("HETERO_ACCELERATOR") or "none") == "none":
        return []
    reasons = [f"without an accelerator: {reason}" for name, reason in CPU_ALONE.items() if f"/{name}" in test]
    if variables.get("HETERO_TEST_HOST_KERNELS", "1") == "0":
        reasons += [f"with the CPU's kernels: {reason}" for name, reason in BITS_OF_HOST_KERNELS.items() if f"/{name}" in test]
    if variables.get("HETERO_ACCELERATOR") == "cuda":
        reasons += [f"without a GPU: {reason}" for name, reason in GPU.items() if f"/{name}" in test]
    return reasons


def accelerator() -> str:
    """Returns the accelerator of the machine on which the test runs."""
    return os.environ.get("HETERO_ACCELERATOR") or "none"


def host_kernels() -> bool:
    """Returns whether the simulated accelerator runs the CPU's kernels; otherwise operators run there as on a GPU."""
    return os.environ.get("HETERO_TEST_HOST_KERNELS", "1") != "0"


def apply_host_kernels() -> None:
    """Lets the simulated accelerator run what the environment says."""
    torch.hetero._C.set_sim_options([("host_kernels", float(host_kernels()))])


@contextlib.contextmanager
def on_machine(name: str) -> Iterator[None]:
    """Puts this process, and those that it starts, on a machine of `MACHINES`; then gives back what was there."""
    variables = MACHINES[name]
    before = {variable: os.environ.get(variable) for variable in variables}
    options = {option["env"]: option["name"] for option in torch.hetero.config.options()}
    chosen = {options[variable]: value for variable, value in variables.items() if variable in options}
    kept = {option["name"]: option["value"] for option in torch.hetero.config.options() if option["name"] in chosen}
    os.environ.update(variables)
    try:
        apply_host_kernels()
        for option, value in chosen.items():
            torch.hetero._C.config_set(option, value)
        yield
    finally:
        for variable, value in before.items():
            if value is None:
                del os.environ[variable]
            else:
                os.environ[variable] = value
        for option, value in kept.items():
            torch.hetero._C.config_set(option, value)
        apply_host_kernels()
