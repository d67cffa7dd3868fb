// The rows of the device in torch.profiler: a plugin of Kineto, the library behind it.
//
// Kineto starts and stops a session with each trace that asks for ProfilerActivity.PrivateUse1. The
// session turns on the profile (ops/run/profile.h), and at the end hands on what ran: a row for
// each queue, kernels and copies linked with the operators that recorded them, and a row of runs.
// Source: libkineto's IActivityProfiler.h, and its plugin for XPU.
//
// Thread safety: registration runs once, at import.
// Ownership: Kineto owns the plugin.

#pragma once

namespace hetero::ops {

// Does nothing where torch was built without Kineto.
void register_kineto();

}  // namespace hetero::ops
