// What importing torch_hetero does to a process, for C++ programs: the device gets its name, and
// torch its hooks.
//
// Operators register themselves when the library is loaded. Some of aten's Meta kernels are written
// in Python, so a C++ program lacks them, and their operators would all run straight;
// start_device.cpp has those that the tests and benchmarks use.

#pragma once

namespace hetero::ops::testing {

// Call once, before any other use of the device.
void start_device();

}  // namespace hetero::ops::testing
