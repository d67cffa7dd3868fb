// Sync points: every place where a value must exist. They plan and run (slice_run.h), and so does
// overlap.h.
//
// Each function names its SyncReason, which explain() counts if something had to run. A sync point
// cuts the nodes that it needs out of the trace (recorder.h), plans them, and runs them on the
// calling thread and its devices. The storages then have their bytes.
//
// Errors of kernels are raised here: the very exception of the kernel, by the first sync point that
// needs its result. What existed before, and was not changed yet, is whole afterwards.
//
// Thread safety: any thread; never call while holding the recorder's lock.

#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <string>
#include <vector>

#include "ops/run/placement_rules.h"
#include "ops/run/program_log.h"
#include "ops/settings/counters.h"
#include "ops/settings/errors.h"
#include "ops/tensor/alias.h"
#include "ops/tensor/storage.h"

namespace hetero::ops {

// Runs everything pending. Raises the first error of this run, or one that an earlier run could not
// raise.
void flush_all(SyncReason reason);

// Runs what is needed so that these storages have their final bytes, and raises the error of one
// whose bytes are lost. In a capture nothing runs, and what is not constant is refused.
void settle(std::span<HeteroStorage* const> storages, SyncReason reason);
// The same, and also runs what still reads them: afterwards the bytes may be replaced.
void settle_users(HeteroStorage* storage, SyncReason reason);

// To be called before the error of a run is raised. What the run was to change, and did not, is
// restored, as if the operator had raised when it was called. What was recorded since and depends
// on it runs first, so it fails too. REQUIRES: the executor lock.
void give_back(const Status& error);

// Flushes if the recorder says so: a limit of config() is reached, or a node wrote an exported
// storage.
void after_record();

// A CPU storage over the same bytes, which stay where they are while the result lives. `writes`:
// the caller will write through it, so other copies become stale.
c10::Storage host_storage(const c10::Storage& storage, SyncReason reason, bool writes);
// A CPU tensor over the bytes of one tensor. Tensors of one call that share a storage should share
// its host storage too.
at::Tensor host_alias(const at::Tensor& tensor, SyncReason reason, bool writes);

// In a capture: notes which part of its storage the tensor shows, because the program will depend
// on the bytes. host_alias() does.
void note_look(const at::Tensor& tensor);
// In a capture: whether host_storage() gives the bytes, to read them, and does not refuse.
bool is_constant(HeteroStorage* storage);

// True for a storage that has neither bytes nor pending nodes.
bool is_fresh(HeteroStorage* storage);

// Gives a storage that has neither bytes nor pending nodes the bytes of `block`, which is a
// device's.
void install_bytes(HeteroStorage* storage, backend::Block block, backend::DeviceIndex device = backend::kCpu);

// resize_ of a storage: settles it, keeps the bytes that fit.
void resize_storage(HeteroStorage* storage, size_t bytes);

// Moves every storage's bytes back to the host; before the accelerator changes.
void settle_everything_on_cpu();

// What explain() reads of the latest runs, once what is under way has run.
std::string last_plan_text();
std::vector<std::string> logged_programs();
void clear_logged_programs();
// Puts another log in place of the present one, and returns that.
ProgramLog exchange_program_log(ProgramLog log);

// Rules for what is recorded from now on; what is pending runs under the old ones.
void set_placement_rules(std::vector<PlacementRules::Rule> rules);

// Around a fork of a process that used the device. Before it, pending work runs, and the forking
// thread takes all locks. The child has none of the parent's threads. It may not use the device,
// but it may release tensors.
void prepare_fork();
void finish_fork_in_parent();
void finish_fork_in_child();
bool in_bad_fork();
// Raises the sentence of a forked child. Every entry point that records or reads calls it.
void check_fork();

}  // namespace hetero::ops
