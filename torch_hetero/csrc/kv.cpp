#include "torch_hetero/csrc/kv.h"

#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <future>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/tier/block_log.h"
#include "graph/transfer/block_store.h"
#include "graph/transfer/request_trace.h"
#include "graph/transfer/trace_simulator.h"
#include "ops/program/static_call.h"

namespace py = pybind11;

namespace hetero::python {
namespace {

using graph::BlockCounts;
using graph::BlockMatch;
using graph::BlockRequest;
using graph::BlockStore;
using graph::BlockStoreCounters;
using graph::BlockStoreOptions;
using graph::DeviceBlocks;
using graph::KvSpec;

std::vector<int32_t> tokens_of(const at::Tensor& tokens) {
  TORCH_CHECK_VALUE(tokens.dim() == 1, "tokens must have one dimension, not ", tokens.dim());
  const at::Tensor list = tokens.to(at::kCPU, at::kLong).contiguous();
  std::vector<int32_t> result;
  for (const int64_t token : c10::IntArrayRef(list.const_data_ptr<int64_t>(), static_cast<size_t>(list.numel()))) {
    TORCH_CHECK_VALUE(token >= 0 && token <= INT32_MAX, "token ", token, " is not in [0, 2^31)");
    result.push_back(static_cast<int32_t>(token));
  }
  return result;
}

// Keys and values of a layer: [blocks, heads, tokens, size] where `paged`, else [heads, tokens,
// size] of one sequence. Tensors of host memory, which outlive the request.
std::shared_ptr<DeviceBlocks> blocks_of(const BlockStore& store, const std::vector<at::Tensor>& keys,
                                        const std::vector<at::Tensor>& values, bool paged) {
  TORCH_CHECK_VALUE(!keys.empty() && keys.size() == values.size(), "keys and values must have a tensor for each layer");
  const int64_t tokens = store.geometry().tokens;
  const at::Tensor& first = keys.front();
  auto blocks = std::make_shared<DeviceBlocks>();
  const int64_t item = first.element_size();
  if (paged) {
    TORCH_CHECK_VALUE(first.dim() >= 2 && (first.numel() == 0 || first[0].is_contiguous()),
                      "a layer's blocks must be contiguous, of shape [blocks, ...]");
    blocks->blocks = first.size(0);
    blocks->row_bytes = first.numel() / std::max<int64_t>(1, first.size(0)) * item;
    blocks->block_stride = first.stride(0) * item;
  } else {
    TORCH_CHECK_VALUE(first.dim() == 3 && first.stride(2) == 1 && first.stride(1) == first.size(2),
                      "a layer of a sequence must be [heads, tokens, size], with a head's tokens contiguous");
    blocks->blocks = first.size(1) / tokens;
    blocks->rows = first.size(0);
    blocks->row_bytes = tokens * first.size(2) * item;
    blocks->row_stride = first.stride(0) * item;
    blocks->block_stride = blocks->row_bytes;
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    for (const at::Tensor* const tensor : {&keys[i], &values[i]}) {
      TORCH_CHECK_VALUE(tensor->device().is_cpu(), "a tensor is on ", tensor->device(), ", not in host memory");
      TORCH_CHECK_VALUE(
          tensor->sizes() == first.sizes() && tensor->strides() == first.strides() && tensor->element_size() == item,
          "keys and values of all layers must have the same sizes, strides and type");
    }
    blocks->layers.push_back(
        {static_cast<std::byte*>(keys[i].data_ptr()), static_cast<std::byte*>(values[i].data_ptr())});
  }
  return blocks;
}

// A store of a process that forked has no threads in the child: there it is neither used nor
// closed.
class Owner {
 public:
  bool is_here() const { return process_ == getpid(); }
  void check() const {
    TORCH_CHECK(is_here(), "kv: the store belongs to the parent of this process; open another one");
  }

 private:
  pid_t process_ = getpid();
};

// Closing waits for transfers, while other threads of Python go on.
struct CloseStore {
  Owner owner;
  void operator()(BlockStore* store) const {
    if (!owner.is_here()) return;
    std::optional<py::gil_scoped_release> released;
    if (PyGILState_Check() != 0) released.emplace();
    delete store;
  }
};

BlockStore& here(const std::shared_ptr<BlockStore>& store) {
  std::get_deleter<CloseStore>(store)->owner.check();
  return *store;
}

// Keeps the store and the tensors while the request runs.
class PythonRequest {
 public:
  PythonRequest(std::shared_ptr<BlockStore> store, Result<std::shared_ptr<BlockRequest>> request,
                std::vector<at::Tensor> tensors)
      : store_(std::move(store)), tensors_(std::move(tensors)) {
    ops::check(request.status());
    request_ = std::move(request.value());
  }
  // The tensors are not touched any more when their transfers have ended.
  ~PythonRequest() {
    if (!owner_.is_here()) {
      new std::shared_ptr<BlockRequest>(std::move(request_));
      return;
    }
    if (tensors_.empty()) return;
    const py::gil_scoped_release released;
    request_->wait();
  }
  BlockRequest& request() const {
    owner_.check();
    return *request_;
  }

 private:
  const Owner owner_;
  const std::shared_ptr<BlockStore> store_;
  const std::vector<at::Tensor> tensors_;
  std::shared_ptr<BlockRequest> request_;
};

struct PythonMatch {
  std::shared_ptr<BlockStore> store;
  BlockMatch match;
  Owner owner;
  PythonMatch(std::shared_ptr<BlockStore> from, BlockMatch found) : store(std::move(from)), match(std::move(found)) {}
  ~PythonMatch() {
    if (!owner.is_here()) new BlockMatch(std::move(match));  // the lock may be taken for ever
  }
  int64_t tokens() const { return match.tokens(); }
};

template <typename T>
T take(const py::dict& options, const char* name, T otherwise) {
  return options.contains(name) && !options[name].is_none() ? options[name].cast<T>() : otherwise;
}

KvSpec spec_of(const py::dict& spec) {
  KvSpec kv;
  kv.model = take<std::string>(spec, "model", "");
  kv.revision = take<std::string>(spec, "revision", "");
  kv.dtype = take<std::string>(spec, "dtype", "");
  kv.element_bytes = take<int64_t>(spec, "element_bytes", 0);
  kv.layers = take<int64_t>(spec, "layers", 0);
  kv.kv_heads = take<int64_t>(spec, "kv_heads", 0);
  kv.head_size = take<int64_t>(spec, "head_size", 0);
  kv.block_tokens = take<int64_t>(spec, "block_tokens", 0);
  kv.layout = take<std::string>(spec, "layout", kv.layout);
  kv.tensor_parallel_rank = take<int64_t>(spec, "tensor_parallel_rank", 0);
  kv.tensor_parallel_size = take<int64_t>(spec, "tensor_parallel_size", 1);
  kv.adapter = take<std::string>(spec, "adapter", "");
  kv.name_space = take<std::string>(spec, "namespace", "");
  return kv;
}

std::shared_ptr<BlockStore> open_store(const py::dict& spec, const py::dict& options) {
  BlockStoreOptions wanted;
  wanted.spec = spec_of(spec);
  wanted.host_bytes = take<int64_t>(options, "host_bytes", 0);
  wanted.disk_folder = take<std::string>(options, "disk_folder", "");
  wanted.disk_bytes = take<int64_t>(options, "disk_bytes", 0);
  const auto durability = take<std::string>(options, "durability", "none");
  wanted.durability = durability == "strict"  ? backend::Durability::kStrict
                      : durability == "group" ? backend::Durability::kGroup
                                              : backend::Durability::kNone;
  const auto engine = take<std::string>(options, "engine", "auto");
  wanted.engine = engine == "io_uring"  ? backend::FileEngine::kUring
                  : engine == "threads" ? backend::FileEngine::kThreads
                                        : backend::FileEngine::kAuto;
  wanted.remote = take<std::string>(options, "remote", "");
  wanted.remote_timeout_seconds = take<double>(options, "remote_timeout", wanted.remote_timeout_seconds);
  wanted.remote_codec = take<std::string>(options, "remote_codec", wanted.remote_codec);
  wanted.policy = take<std::string>(options, "policy", wanted.policy);
  wanted.disk_after_hits = take<int64_t>(options, "disk_after_hits", 0);
  wanted.prefill_rate = take<double>(options, "prefill_rate", 0);
  wanted.copy_threads = take<int>(options, "copy_threads", 1);
  const py::gil_scoped_release released;
  Result<std::unique_ptr<BlockStore>> store = BlockStore::open(wanted);
  ops::check(store.status());
  return std::shared_ptr<BlockStore>(store.value().release(), CloseStore{});
}

py::dict dict_of(const BlockStoreCounters& counters) {
  py::dict result;
#define STORE_COUNTER(field, name, text) result[#name] = counters.field;
#define STORE_RATE(field, name, text) result[#name] = counters.field;
#include "graph/transfer/store_counters.def"
#define FILE_COUNTER(field, name, text) result[#name] = counters.disk.field;
#define REMOTE_COUNTER(field, name, text) result[#name] = counters.remote.field;
#include "backend/tier/tier_counters.def"
  result["disk_quarantined"] = counters.disk.quarantined;
  result["disk_engine"] = counters.disk.engine;
  result["disk_unregistered"] = counters.disk.unregistered;
  return result;
}

// What each counter says.
py::dict texts_of_counters() {
  py::dict result;
#define STORE_COUNTER(field, name, text) result[#name] = text;
#define STORE_RATE(field, name, text) result[#name] = text;
#include "graph/transfer/store_counters.def"
#define FILE_COUNTER(field, name, text) result[#name] = text;
#define REMOTE_COUNTER(field, name, text) result[#name] = text;
#include "backend/tier/tier_counters.def"
  result["disk_quarantined"] = "whether the disk failed and is not used any more";
  return result;
}

py::list rows_of(const std::vector<graph::TransferRecord>& records) {
  py::list rows;
  for (const graph::TransferRecord& record : records) {
    py::dict row;
    row["graph"] = record.graph_id;
    row["op"] = record.op_id;
    row["type"] = to_string(record.type);
    row["position"] = record.position;
    row["blocks"] = record.blocks;
    row["first_layer"] = record.layer_id;
    row["layers"] = record.layer_granularity;
    row["bytes"] = record.bytes;
    row["started"] = record.started;
    row["ended"] = record.ended;
    rows.append(row);
  }
  return rows;
}

py::list timeline_of(const graph::TransferOpGraph& graph) {
  std::vector<graph::TransferRecord> records;
  append_records(records, graph.ops());
  return rows_of(records);
}

std::vector<at::Tensor> all_of(const std::vector<at::Tensor>& keys, const std::vector<at::Tensor>& values) {
  std::vector<at::Tensor> all = keys;
  all.insert(all.end(), values.begin(), values.end());
  return all;
}

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK(file.good(), "kv: cannot read ", path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// What a folder of blocks says that it has.
struct KnownFolder {
  backend::LogIdentity identity;
  std::map<int64_t, backend::LogRecord> live;  // by slot
  size_t bytes = 0;
  size_t good_bytes = 0;
};

KnownFolder read_folder(const std::string& folder) {
  const std::string text = text_of(folder + "/index");
  Result<backend::ParsedLog> parsed = backend::parse_log(text);
  ops::check(parsed.status());
  KnownFolder known{parsed.value().header.identity, {}, text.size(), parsed.value().good_bytes};
  for (backend::LogRecord& record : parsed.value().records) {
    known.live.erase(record.slot);
    if (record.kind == backend::LogRecord::kPublished) known.live.emplace(record.slot, std::move(record));
  }
  return known;
}

py::dict inspect_folder(const std::string& folder) {
  const KnownFolder known = read_folder(folder);
  const backend::BlockGeometry& geometry = known.identity.geometry;
  int64_t oldest = 0, newest = 0, first_blocks = 0;
  for (const auto& [slot, record] : known.live) {
    oldest = oldest == 0 ? record.seconds : std::min(oldest, record.seconds);
    newest = std::max(newest, record.seconds);
    first_blocks += record.parent == known.identity.fingerprint;
  }
  py::dict result;
  result["fingerprint"] = to_string(known.identity.fingerprint);
  result["description"] = known.identity.description;
  result["blocks"] = known.live.size();
  result["prompts"] = first_blocks;
  result["block_tokens"] = geometry.tokens;
  result["block_bytes"] = geometry.block_bytes();
  result["layers"] = geometry.pieces;
  result["index_bytes"] = known.bytes;
  result["damaged_bytes"] = known.bytes - known.good_bytes;
  result["oldest"] = oldest;
  result["newest"] = newest;
  return result;
}

// Reads every block. Calls progress(done, all) now and then; what it raises ends the check. The
// slots of blocks that are not what was written; with `repair` they are erased.
std::vector<int64_t> verify_folder(const std::string& folder, bool repair, const py::function& progress) {
  const KnownFolder known = read_folder(folder);
  backend::BlockFileOptions options;
  options.folder = folder;
  options.geometry = known.identity.geometry;
  options.fingerprint = known.identity.fingerprint;
  options.description = known.identity.description;
  const int64_t last = known.live.empty() ? 0 : known.live.rbegin()->first + 1;
  options.most_bytes = std::max<int64_t>(1, last) * options.geometry.block_bytes();
  std::vector<int64_t> slots;
  Result<std::unique_ptr<backend::BlockFile>> file =
      backend::BlockFile::open(options, [&](const backend::StoredBlock& block) { slots.push_back(block.slot); });
  ops::check(file.status());
  std::ranges::sort(slots);
  const auto bytes = static_cast<size_t>(options.geometry.block_bytes());
  const size_t batch = std::clamp<size_t>((size_t{64} << 20) / bytes, 1, 256);
  const std::unique_ptr<std::byte, void (*)(void*)> memory(
      static_cast<std::byte*>(std::aligned_alloc(4096, batch * bytes)), std::free);
  TORCH_CHECK(memory != nullptr, "kv: no memory to read blocks");
  std::vector<int64_t> bad;
  for (size_t first = 0; first < slots.size(); first += batch) {
    const size_t count = std::min(batch, slots.size() - first);
    std::vector<backend::BlockRead> reads;
    for (size_t i = 0; i < count; ++i) reads.push_back({.slot = slots[first + i], .data = memory.get() + i * bytes});
    std::promise<backend::BlockResult> promise;
    {
      const py::gil_scoped_release released;
      file.value()->read(std::move(reads), 0, options.geometry.pieces,
                         [&](const backend::BlockResult& result) { promise.set_value(result); });
      const backend::BlockResult result = promise.get_future().get();
      bad.insert(bad.end(), result.bad_slots.begin(), result.bad_slots.end());
    }
    progress(first + count, slots.size());
  }
  if (repair) {
    for (const int64_t slot : bad) file.value()->erase(slot);
    ops::check(file.value()->sync());
  }
  return bad;
}

py::list simulate(const std::string& path, const std::vector<int64_t>& capacities,
                  const std::vector<std::string>& policies) {
  std::vector<graph::TraceRequest> requests;
  if (path.empty()) {
    requests = graph::generate_trace({});
  } else {
    Result<std::vector<graph::TraceRequest>> trace = graph::read_mooncake_trace(path);
    ops::check(trace.status());
    requests = std::move(trace.value());
  }
  py::list rows;
  for (const int64_t capacity : capacities) {
    for (const std::string& policy : policies) {
      graph::SimulatedTrace result;
      {
        const py::gil_scoped_release released;
        result = policy == "optimum" ? graph::simulate_optimum(requests, capacity)
                                     : graph::simulate_trace(requests, {.capacity = capacity, .policy = policy});
      }
      py::dict row;
      row["capacity"] = capacity;
      row["policy"] = policy;
      row["requests"] = result.requests;
      row["blocks"] = result.blocks;
      row["hits"] = result.hits;
      row["hit_rate"] = result.hit_rate();
      row["evictions"] = result.evictions;
      row["seconds"] = result.seconds;
      rows.append(row);
    }
  }
  return rows;
}

}  // namespace

void add_kv(py::module_& m) {
  using released = py::call_guard<py::gil_scoped_release>;
  py::class_<PythonMatch, std::shared_ptr<PythonMatch>>(m, "KvMatch")
      .def_property_readonly("tokens", &PythonMatch::tokens)
      .def_property_readonly("blocks", [](const PythonMatch& self) {
        const BlockCounts& counts = self.match.counts();
        return py::make_tuple(counts.host, counts.disk, counts.remote);
      });
  py::class_<PythonRequest, std::shared_ptr<PythonRequest>>(m, "KvRequest")
      .def(
          "wait", [](PythonRequest& self) { return self.request().wait(); }, released())
      .def(
          "check", [](PythonRequest& self) { ops::check(self.request().status()); }, released())
      .def(
          "wait_layer", [](PythonRequest& self, int32_t layer) { ops::check(self.request().wait_for_layer(layer)); },
          released())
      .def(
          "wait_completely", [](PythonRequest& self) { ops::check(self.request().wait_completely()); }, released())
      .def_property_readonly("done", [](const PythonRequest& self) { return self.request().is_done(); })
      .def(
          "cancel", [](PythonRequest& self) { self.request().cancel(); }, released())
      .def("dump", [](const PythonRequest& self) { return self.request().dump(); })
      .def("timeline", [](const PythonRequest& self) { return timeline_of(self.request().graph()); });
  py::class_<BlockStore, std::shared_ptr<BlockStore>>(m, "KvStore")
      .def(py::init(&open_store), py::arg("spec"), py::arg("options"))
      .def_property_readonly("block_bytes", [](const BlockStore& self) { return self.geometry().block_bytes(); })
      .def(
          "match",
          [](const std::shared_ptr<BlockStore>& self, const at::Tensor& tokens, bool global) {
            const std::vector<int32_t> list = tokens_of(tokens);
            return std::make_shared<PythonMatch>(self, here(self).match(list, global));
          },
          released())
      .def(
          "get",
          [](const std::shared_ptr<BlockStore>& self, const PythonMatch& match, const std::vector<at::Tensor>& keys,
             const std::vector<at::Tensor>& values, bool paged, const std::vector<int64_t>& blocks, int64_t first_block,
             int32_t layer_granularity, bool past_host) {
            auto request = here(self).get(
                match.match, blocks_of(*self, keys, values, paged), blocks,
                {.first_block = first_block, .layer_granularity = layer_granularity, .past_host = past_host});
            return std::make_shared<PythonRequest>(self, std::move(request), all_of(keys, values));
          },
          released())
      .def(
          "put",
          [](const std::shared_ptr<BlockStore>& self, const at::Tensor& tokens, const std::vector<at::Tensor>& keys,
             const std::vector<at::Tensor>& values, bool paged, const std::vector<int64_t>& blocks) {
            auto request = here(self).put(tokens_of(tokens), blocks_of(*self, keys, values, paged), blocks);
            return std::make_shared<PythonRequest>(self, std::move(request), all_of(keys, values));
          },
          released())
      .def(
          "prefetch",
          [](const std::shared_ptr<BlockStore>& self, const PythonMatch& match) {
            return std::make_shared<PythonRequest>(self, here(self).prefetch(match.match), std::vector<at::Tensor>());
          },
          released())
      .def(
          "reset", [](const std::shared_ptr<BlockStore>& self) { ops::check(here(self).reset()); }, released())
      .def(
          "sync", [](const std::shared_ptr<BlockStore>& self) { ops::check(here(self).sync()); }, released())
      .def(
          "wait_idle", [](const std::shared_ptr<BlockStore>& self) { here(self).wait_idle(); }, released())
      .def("timeline", [](const std::shared_ptr<BlockStore>& self) { return rows_of(here(self).timeline()); })
      .def("counters", [](const std::shared_ptr<BlockStore>& self) { return dict_of(here(self).counters()); });
  m.def("kv_fingerprint", [](const py::dict& spec) { return to_string(spec_of(spec).fingerprint()); });
  m.def("kv_counter_texts", &texts_of_counters);
  m.def("kv_inspect", &inspect_folder, py::arg("folder"));
  m.def("kv_verify", &verify_folder, py::arg("folder"), py::arg("repair"), py::arg("progress"));
  m.def("kv_simulate", &simulate, py::arg("path"), py::arg("capacities"), py::arg("policies"));
}

}  // namespace hetero::python
