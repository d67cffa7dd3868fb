// Server: requests of many threads on lanes of one model.

#include "graph/serve/server.h"

#include <array>
#include <cstring>
#include <latch>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>

#include "backend/sim/sim_device.h"
#include "tests/catch/catch.h"
#include "tests/graph/fixtures/patience.h"
#include "tests/graph/fixtures/static_program.h"

namespace hetero::graph::testing {
namespace {

using backend::kAccelerator;
using backend::kCpu;
using WhenFull = Server::WhenFull;
using WhenClosed = Server::WhenClosed;
constexpr int64_t kCount = 16;

// Called by the kernel of hooked() with the first element of its input.
std::function<void(float)> hook;

void run_hooked(const Invocation& call) {
  const auto* const in = static_cast<const float*>(call.data[0]);
  auto* const out = static_cast<float*>(call.data[1]);
  if (hook) hook(in[0]);
  for (int64_t i = 0; i < kCount; ++i) out[i] = 2.0f * in[i];
}

OpId hooked() {
  static const OpId op = op_table().add(
      {.name = "test::hooked", .op_class = OpClass::kMatmul, .on_accelerator = false, .kernel = run_hooked});
  return op;
}

struct Hook {
  explicit Hook(std::function<void(float)> function) { hook = std::move(function); }
  ~Hook() { hook = nullptr; }
};

// x doubled, then 1 + x + w / 4, w a weight.
struct Doubling {
  Doubling() {
    x = p.input(kCount);
    w = p.input(kCount);
    const BufferId y = p.define(hooked(), kCount, {p.read(x)});
    p.escape(p.define(test_ops().pointwise, kCount, {p.read(y), p.read(w)}));
    model = model_of(save(p, {w}));
  }
  bool is_result(float given, const std::vector<float>& found) const {
    const auto* const weight = static_cast<const float*>(model->host_bytes(w));
    for (size_t i = 0; i < kCount; ++i) {
      float expected = 1.0f;
      expected += 0.5f * (2.0f * given);
      expected += 0.25f * weight[i];
      if (found[i] != expected) return false;
    }
    return true;
  }
  Program p;
  BufferId x, w;
  std::shared_ptr<Model> model;
};

// Lanes that share all cores, so that there may be more of them than cores.
Server::Options lanes(size_t count, PlanOptions (*plan)() = cpu_options) {
  Server::Options options;
  for (size_t i = 0; i < count; ++i) options.lanes.push_back({.name = "lane" + std::to_string(i), .threads = 1});
  options.executor = [plan] { return executor_options(plan()); };
  return options;
}

std::unique_ptr<Server> serve(std::shared_ptr<Model> model, Server::Options options) {
  Result<std::unique_ptr<Server>> server = Server::create(std::move(model), std::move(options));
  require(server.status());
  return std::move(server.value());
}

// A request with its memory.
struct Call : Server::Request {
  explicit Call(float value) : x(kCount, value), z(kCount, -1.0f) {
    inputs.push_back(view_of(x));
    outputs.push_back(view_of(z));
  }
  std::vector<float> x, z;
};

// Every request has ended in one way, and nothing waits.
void check_nothing_left(const Server& server) {
  CHECK(server.counters().ended() == server.counters().submitted);
  CHECK(server.counters().waiting == 0);
}

}  // namespace

TEST_CASE("a server runs requests in memory that is lent or copied, and weights exist once", "[accelerator]") {
  if (is_accelerator_missing()) return;
  const bool away = GENERATE(false, true);
  const Doubling program;
  const auto server = serve(program.model, lanes(2, away ? remote_options : cpu_options));
  CHECK(server->lanes() == 2);
  std::vector<float> wide(2 * kCount, 3.0f);
  const TensorView strided{.data = wide.data(), .dtype = parse_dtype("f32"), .sizes = {kCount}, .strides = {2}};
  // Each lane has memory lent before it copies: what was lent is not written any more.
  for (int round = 0; round < 4; ++round) {
    auto lent = std::make_shared<Call>(static_cast<float>(round));
    REQUIRE(server->submit(lent).ok());
    REQUIRE(lent->wait().ok());
    CHECK(program.is_result(static_cast<float>(round), lent->z));
    lent->z.assign(kCount, -1.0f);
    wide.assign(2 * kCount, 3.0f);
    auto copied = server->submit({strided}, {strided});
    REQUIRE(copied.ok());
    REQUIRE(copied.value()->wait().ok());
    std::vector<float> found;
    for (size_t i = 0; i < kCount; ++i) {
      found.push_back(wide[2 * i]);
      CHECK(wide[2 * i + 1] == 3.0f);
    }
    CHECK(program.is_result(3.0f, found));
    CHECK(lent->z == std::vector<float>(kCount, -1.0f));
  }
  server->wait_idle();
  CHECK(server->executor(0).counts().runs + server->executor(1).counts().runs == 8);
  // Weights are no part of what a lane has for itself.
  for (size_t lane = 0; lane < 2; ++lane) CHECK(server->executor(lane).bytes(kCpu) < 8 * kCount * sizeof(float));
}

TEST_CASE("requests of eight threads with random cancellations have right results and leave nothing behind",
          "[accelerator]") {
  if (is_accelerator_missing()) return;
  const bool away = GENERATE(false, true);
  const Doubling program;
  const auto server = serve(program.model, lanes(3, away ? remote_options : cpu_options));
  constexpr int kThreads = 8;
  constexpr int kRequests = 1000;
  std::atomic<int> wrong = 0;
  std::atomic<int> unexpected = 0;
  std::vector<std::thread> threads;
  std::vector<std::weak_ptr<Call>> dropped[kThreads];
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      for (int i = 0; i < kRequests; ++i) {
        const auto value = static_cast<float>(t * kRequests + i);
        auto call = std::make_shared<Call>(value);
        dropped[t].push_back(call);
        const auto when = random() % 6;
        if (when == 0) call->cancel();
        const Status accepted = server->submit(call);
        if (when == 1) call->cancel();
        if (when == 2) {
          std::this_thread::yield();
          call->cancel();
        }
        if (when == 3) continue;  // nobody waits
        const Status status = call->wait();
        if (status.ok()) {
          wrong += !program.is_result(value, call->z);
        } else {
          unexpected += when > 2 || status.error_class() != ErrorClass::kCancelled;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  server->wait_idle();
  CHECK(wrong == 0);
  CHECK(unexpected == 0);
  const SchedulerCounters counters = server->counters();
  CHECK(counters.submitted + counters.refused == kThreads * kRequests);
  CHECK(counters.failed == 0);
  CHECK(counters.completed >= kThreads * kRequests / 3);
  check_nothing_left(*server);
  for (const auto& of_thread : dropped) {
    for (const auto& call : of_thread) CHECK(call.expired());
  }
}

TEST_CASE("as many requests run at once as there are lanes", "[accelerator]") {
  if (is_accelerator_missing()) return;
  const bool away = GENERATE(false, true);
  constexpr int kLanes = 3;
  const Doubling program;
  // Goes on when all lanes are in the kernel.
  Rendezvous meeting(kLanes);
  const Hook meet([&](float) { meeting.arrive(); });
  const auto server = serve(program.model, lanes(kLanes, away ? remote_options : cpu_options));
  std::vector<std::shared_ptr<Call>> calls;
  for (int i = 0; i < 10 * kLanes; ++i) {
    calls.push_back(std::make_shared<Call>(static_cast<float>(i)));
    REQUIRE(server->submit(calls.back()).ok());
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    REQUIRE(calls[i]->wait().ok());
    CHECK(program.is_result(static_cast<float>(i), calls[i]->z));
  }
  server->wait_idle();
  for (size_t lane = 0; lane < kLanes; ++lane) CHECK(server->executor(lane).counts().runs == 10);
}

TEST_CASE("a request with wrong tensors is refused when it is submitted, and may be corrected", "[accelerator]") {
  if (is_accelerator_missing()) return;
  const bool away = GENERATE(false, true);
  const Doubling program;
  const auto server = serve(program.model, lanes(1, away ? remote_options : cpu_options));
  auto call = std::make_shared<Call>(1.0f);
  const auto is_refused = [&](const std::string& words) {
    const Status status = server->submit(call);
    return contains(status, words) && status.error_class() == ErrorClass::kUsage && call->state() == RequestState::kNew;
  };
  call->inputs[0].sizes = {4, 4};
  CHECK(is_refused("input 'b0' is f32[16] in this program, not f32[4,4]"));
  call->inputs[0] = TensorView::row_major(call->x.data(), "i32", {kCount});
  CHECK(is_refused("not i32[16]"));
  call->inputs[0] = view_of(call->x);
  call->inputs[0].device = kAccelerator;
  CHECK(is_refused("input 'b0' of a request must be in the host's memory"));
  call->inputs.clear();
  CHECK(is_refused("the program has 1 inputs, and the request brings 0"));
  call->inputs.push_back(view_of(call->x));
  call->outputs[0].data = nullptr;
  CHECK(is_refused("output 'b3' has no memory"));
  call->outputs[0] = view_of(call->z);
  CHECK(server->counters().submitted == 0);
  CHECK(contains(server->submit(nullptr), "null"));
  REQUIRE(server->submit(call).ok());
  CHECK(call->wait().ok());
  CHECK(program.is_result(1.0f, call->z));
}

TEST_CASE("an exception of a kernel is its request's alone, with the operator's name", "[accelerator]") {
  if (is_accelerator_missing()) return;
  const bool away = GENERATE(false, true);
  const Doubling program;
  const Hook fail([](float first) {
    if (first < 0) throw std::runtime_error("negative");
  });
  const auto server = serve(program.model, lanes(2, away ? remote_options : cpu_options));
  std::vector<std::shared_ptr<Call>> calls;
  for (int i = 0; i < 100; ++i) {
    calls.push_back(std::make_shared<Call>(static_cast<float>(i % 3 == 0 ? -1 - i : i)));
    REQUIRE(server->submit(calls.back()).ok());
  }
  for (const auto& call : calls) {
    const Status status = call->wait();
    if (call->x[0] >= 0) {
      REQUIRE(status.ok());
      CHECK(program.is_result(call->x[0], call->z));
    } else {
      REQUIRE_FALSE(status.ok());
      CHECK(status.error_class() == ErrorClass::kKernel);
      CHECK(status.message() == "test::hooked: negative");
      CHECK_THROWS_AS(std::rethrow_exception(status.cause()), std::runtime_error);
    }
  }
  server->wait_idle();
  CHECK(server->counters().failed == 34);
  CHECK(server->counters().completed == 66);
}

TEST_CASE("a running request stops between two kernels", "[accelerator]") {
  if (is_accelerator_missing()) return;
  const bool away = GENERATE(false, true);
  const Doubling program;
  std::latch entered(1);
  std::latch cancelled(1);
  const Hook hold([&](float first) {
    if (first != 5.0f) return;
    entered.count_down();
    cancelled.wait();
  });
  const auto server = serve(program.model, lanes(1, away ? remote_options : cpu_options));
  const auto call = std::make_shared<Call>(5.0f);
  REQUIRE(server->submit(call).ok());
  entered.wait();
  call->cancel();
  cancelled.count_down();
  CHECK(contains(call->wait(), "the request was cancelled while it ran"));
  CHECK(call->state() == RequestState::kCancelled);
  CHECK(call->z == std::vector<float>(kCount, -1.0f));
  // And the lane goes on.
  const auto next = std::make_shared<Call>(6.0f);
  REQUIRE(server->submit(next).ok());
  CHECK(next->wait().ok());
  CHECK(program.is_result(6.0f, next->z));
}

TEST_CASE("a request that is late is not run, and one that becomes late while it runs is stopped, though nobody waits",
          "[accelerator]") {
  if (is_accelerator_missing()) return;
  const bool away = GENERATE(false, true);
  const Doubling program;
  std::atomic<int> runs = 0;
  std::atomic<bool> holds = true;
  const Hook hold([&](float) {
    ++runs;
    wait_until([&] { return !holds; });
  });
  const auto server = serve(program.model, lanes(1, away ? remote_options : cpu_options));
  const auto running = std::make_shared<Call>(1.0f);
  REQUIRE(server->submit(running, {.deadline = Request::Clock::now() + std::chrono::milliseconds(20)}).ok());
  const auto waiting = std::make_shared<Call>(2.0f);
  const auto soon = Request::Clock::now() + std::chrono::milliseconds(1);
  const Status accepted = server->submit(waiting, {.deadline = soon});
  CHECK((accepted.ok() || accepted.error_class() == ErrorClass::kCancelled));
  CHECK(contains(waiting->wait(), "the request's deadline passed before it ran"));
  CHECK(waiting->state() == RequestState::kLate);
  wait_until([&] { return running->stop() != 0; });
  holds = false;
  wait_until([&] { return running->has_ended(); });
  CHECK(running->status().error_class() == ErrorClass::kCancelled);
  CHECK(running->state() == RequestState::kLate);
  // The kernel behind the one that was held.
  CHECK(running->z == std::vector<float>(kCount, -1.0f));
  CHECK(runs <= 1);
}

TEST_CASE("the end of a server cancels what waits and lets what runs end", "[accelerator]") {
  if (is_accelerator_missing()) return;
  const bool away = GENERATE(false, true);
  const Doubling program;
  std::latch entered(1);
  std::atomic<bool> holds = true;
  const Hook hold([&](float first) {
    if (first == 1.0f) entered.count_down();
    wait_until([&] { return !holds; });
  });
  auto server = serve(program.model, lanes(1, away ? remote_options : cpu_options));
  const auto running = std::make_shared<Call>(1.0f);
  REQUIRE(server->submit(running).ok());
  entered.wait();
  std::vector<std::shared_ptr<Call>> waiting;
  for (int i = 0; i < 5; ++i) {
    waiting.push_back(std::make_shared<Call>(2.0f));
    REQUIRE(server->submit(waiting.back()).ok());
  }
  std::thread release([&] {
    static_cast<void>(waiting.front()->wait());
    holds = false;
  });
  server.reset();
  release.join();
  CHECK(running->status().ok());
  CHECK(program.is_result(1.0f, running->z));
  for (const auto& call : waiting) {
    CHECK(call->state() == RequestState::kCancelled);
    CHECK(contains(call->status(), "closed"));
    CHECK(call.use_count() == 1);
  }
}

TEST_CASE("a server that is closed runs what waits where it is told to, and refuses the rest", "[accelerator]") {
  if (is_accelerator_missing()) return;
  const bool away = GENERATE(false, true);
  const Doubling program;
  const auto server = serve(program.model, lanes(2, away ? remote_options : cpu_options));
  std::vector<std::shared_ptr<Call>> calls;
  for (int i = 0; i < 20; ++i) {
    calls.push_back(std::make_shared<Call>(static_cast<float>(i)));
    REQUIRE(server->submit(calls.back()).ok());
  }
  server->close(WhenClosed::kRun);
  CHECK(contains(server->submit(std::make_shared<Call>(0.0f)), "closed"));
  server->wait_idle();
  for (size_t i = 0; i < calls.size(); ++i) CHECK(program.is_result(static_cast<float>(i), calls[i]->z));
}

TEST_CASE("a full server refuses requests, and they are submitted again", "[accelerator]") {
  if (is_accelerator_missing()) return;
  const bool away = GENERATE(false, true);
  const Doubling program;
  std::atomic<bool> holds = true;
  const Hook hold([&](float) { wait_until([&] { return !holds; }); });
  Server::Options options = lanes(1, away ? remote_options : cpu_options);
  options.capacity = 2;
  options.when_full = WhenFull::kRefuse;
  const auto server = serve(program.model, std::move(options));
  std::vector<std::shared_ptr<Call>> calls;
  for (int i = 0; i < 4; ++i) calls.push_back(std::make_shared<Call>(static_cast<float>(i)));
  int accepted = 0;
  Status last;
  for (const auto& call : calls) {
    last = server->submit(call);
    accepted += last.ok();
  }
  CHECK(accepted == 3);
  CHECK(last.error_class() == ErrorClass::kResource);
  holds = false;
  server->wait_idle();
  REQUIRE(server->submit(calls.back()).ok());
  CHECK(calls.back()->wait().ok());
  CHECK(program.is_result(3.0f, calls.back()->z));
}

TEST_CASE("the cores of the process are split among the lanes, and more lanes than cores are refused") {
  const Doubling program;
  Server::Options options;
  options.executor = [] { return executor_options(cpu_options()); };
  const auto cores = static_cast<int>(backend::cores_of_process().size());
  options.groups = cores;
  const auto server = serve(program.model, options);
  std::set<int> used;
  for (size_t lane = 0; lane < server->lanes(); ++lane) {
    const backend::CoreGroup& group = server->group(lane);
    used.insert(group.cores().begin(), group.cores().end());
    CHECK(group.threads() == static_cast<int>(group.cores().size()));
  }
  CHECK(static_cast<int>(used.size()) == cores);
  options.groups = cores + 1;
  CHECK(Server::create(program.model, options).status().error_class() == ErrorClass::kUsage);
  options.groups = 1;
  options.capacity = 0;
  CHECK(contains(Server::create(program.model, options).status(), "capacity"));
  CHECK(contains(Server::create(nullptr, options).status(), "needs a model"));
}

TEST_CASE("an error in making a lane's executor is the server's") {
  const Doubling program;
  Server::Options options = lanes(2);
  options.executor = []() -> GraphExecutor::Options { throw std::runtime_error("no settings"); };
  CHECK(contains(Server::create(program.model, std::move(options)).status(), "no settings"));
}

TEST_CASE("executors are made on the threads of their lanes") {
  const Doubling program;
  Server::Options options = lanes(3);
  std::set<std::thread::id> threads;
  options.executor = [&] {
    threads.insert(std::this_thread::get_id());
    return executor_options(cpu_options());
  };
  const auto server = serve(program.model, std::move(options));
  CHECK(threads.size() == 3);
  CHECK(threads.count(std::this_thread::get_id()) == 0);
}

TEST_CASE("a program that changes a state of its own is served by one lane, on which it goes on", "[accelerator]") {
  if (is_accelerator_missing()) return;
  const bool away = GENERATE(false, true);
  Program p;
  const BufferId x = p.input(kCount);
  const BufferId state = p.input(kCount);
  p.add(test_ops().pointwise, {p.read(x), p.update(state)}, Preference::kAuto, 0.0f);
  p.escape(state);
  const auto model = model_of(save(p, {state}));
  const Status refused = Server::create(model, lanes(2, away ? remote_options : cpu_options)).status();
  CHECK(contains(refused, "the program changes its state 'b1', which every lane would have for itself"));
  const auto server = serve(model, lanes(1, away ? remote_options : cpu_options));
  std::vector<float> expected;
  for (int i = 0; i < 3; ++i) {
    const auto call = std::make_shared<Call>(1.0f);
    REQUIRE(server->submit(call).ok());
    REQUIRE(call->wait().ok());
    if (i > 0) {
      for (size_t k = 0; k < kCount; ++k) CHECK(call->z[k] == 0.5f + 0.25f * expected[k]);
    }
    expected = call->z;
  }
}

TEST_CASE("lanes share an accelerator", "[accelerator]") {
  if (is_accelerator_missing()) return;
  const Doubling program;
  const auto server = serve(program.model, lanes(2, remote_options));
  std::vector<std::shared_ptr<Call>> calls;
  for (int i = 0; i < 200; ++i) {
    calls.push_back(std::make_shared<Call>(static_cast<float>(i)));
    REQUIRE(server->submit(calls.back()).ok());
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    REQUIRE(calls[i]->wait().ok());
    CHECK(program.is_result(static_cast<float>(i), calls[i]->z));
  }
}

TEST_CASE("groups with compute queues of their own have their requests on the accelerator at the same time") {
  using enum backend::QueueKind;
  constexpr double kLaunch = 1e-3;
  constexpr int kTower = 10;
  auto made = backend::SimDevice::create({.flops = 1e18, .launch_latency = kLaunch});
  require(made.status());
  backend::SimDevice& sim = *made.value();
  const Devices devices{test_devices()[kCpu], &sim};
  // A tower on the accelerator, and a kernel of the host beside it, which is called when the tower
  // has been submitted.
  Program p;
  const BufferId x = p.input(kCount);
  BufferId value = x;
  for (int i = 0; i < kTower; ++i) value = p.define(test_ops().pointwise, kCount, {p.read(value)});
  p.escape(value);
  p.escape(p.define(hooked(), kCount, {p.read(x)}));
  const auto model = model_of(save(p));
  Server::Options options;
  options.lanes = {{.name = "left", .threads = 1, .compute_queues = {kCompute, kCompute2}},
                   {.name = "right", .threads = 1, .compute_queues = {kCompute3}}};
  options.executor = [&] {
    PlanOptions plan = options_for(devices);
    plan.policy = Policy::kAccelerator;
    GraphExecutor::Options chosen = executor_options(plan, devices);
    chosen.segments = false;  // each launch takes its time
    return chosen;
  };
  const auto server = serve(model, std::move(options));
  // Nobody waits for the accelerator before both have submitted what they have for it.
  Rendezvous meeting(2);
  const Hook meet([&](float) { meeting.arrive(); });
  sim.reset_clock();
  sim.record_spans(true);
  struct Both : Server::Request {
    explicit Both(float given) : in(kCount, given), tower(kCount), host(kCount) {
      inputs = {view_of(in)};
      outputs = {view_of(tower), view_of(host)};
    }
    std::vector<float> in, tower, host;
  };
  std::vector<std::shared_ptr<Both>> requests;
  for (int i = 0; i < 2; ++i) {
    requests.push_back(std::make_shared<Both>(static_cast<float>(i)));
    REQUIRE(server->submit(requests.back()).ok());
  }
  for (int i = 0; i < 2; ++i) {
    require(requests[static_cast<size_t>(i)]->wait());
    CHECK(requests[static_cast<size_t>(i)]->host[0] == 2.0f * static_cast<float>(i));
    float expected = static_cast<float>(i);
    for (int k = 0; k < kTower; ++k) expected = 1.0f + 0.5f * expected;
    CHECK(requests[static_cast<size_t>(i)]->tower == std::vector<float>(kCount, expected));
  }
  server->wait_idle();
  // In virtual time: both towers begin before either ends, and take as long as one.
  struct Use {
    int tasks = 0;
    double begin = 1e9;
    double end = 0;
  };
  std::array<Use, backend::kComputeQueues> uses;
  for (const backend::SimSpan& span : sim.spans()) {
    if (!backend::is_compute(span.queue)) continue;
    Use& use = uses[static_cast<size_t>(backend::compute_queue_number(span.queue))];
    ++use.tasks;
    use.begin = std::min(use.begin, span.begin);
    use.end = std::max(use.end, span.end);
  }
  for (size_t lane = 0; lane < 2; ++lane) {
    CHECK(server->executor(lane).counts().runs == 1);
    const Use& use = uses[2 * lane];
    CHECK(use.tasks == kTower);
    CHECK(use.begin < kLaunch);
    CHECK(use.end < (kTower + 1) * kLaunch);
    CHECK(uses[2 * lane + 1].tasks == 0);
  }
  CHECK(server->group(1).compute_queues() == std::vector{kCompute3});
}

TEST_CASE("the result of one group does not wait for the run of another") {
  auto made = backend::SimDevice::create();
  require(made.status());
  const Devices devices{test_devices()[kCpu], made.value().get()};
  // The first request is in its kernel on the accelerator until the second has ended.
  static std::atomic<bool> second_ended;
  static std::atomic<bool> first_runs;
  second_ended = first_runs = false;
  const OpId op =
      op_table().add({.name = "test::first_waits", .op_class = OpClass::kMatmul, .kernel = [](const Invocation& call) {
                        const float given = static_cast<const float*>(call.data[0])[0];
                        if (given == 1.0f) {
                          first_runs = true;
                          wait_until([] { return second_ended.load(); });
                        }
                        for (int64_t i = 0; i < kCount; ++i) static_cast<float*>(call.data[1])[i] = 2 * given;
                      }});
  Program p;
  const BufferId x = p.input(kCount);
  p.escape(p.define(op, kCount, {p.read(x)}, Preference::kAccelerator));
  Server::Options options;
  options.lanes = {{.name = "left", .threads = 1, .compute_queues = {backend::QueueKind::kCompute}},
                   {.name = "right", .threads = 1, .compute_queues = {backend::QueueKind::kCompute2}}};
  options.executor = [&] { return executor_options(options_for(devices), devices); };
  const auto server = serve(model_of(save(p)), std::move(options));
  CHECK_FALSE(uses_host_only(server->executor(0).plan().plan));
  const auto first = std::make_shared<Call>(1.0f);
  const auto second = std::make_shared<Call>(2.0f);
  REQUIRE(server->submit(first).ok());
  wait_until([] { return first_runs.load(); });
  REQUIRE(server->submit(second).ok());
  require(second->wait());
  CHECK_FALSE(first->has_ended());
  second_ended = true;
  require(first->wait());
  CHECK(first->z == std::vector<float>(kCount, 2.0f));
  CHECK(second->z == std::vector<float>(kCount, 4.0f));
}

TEST_CASE("groups of equal parts have equal parts of the accelerator's compute queues", "[accelerator]") {
  if (is_accelerator_missing()) return;
  const Doubling program;
  Server::Options options;
  options.executor = [] { return executor_options(remote_options()); };
  options.groups = static_cast<int>(std::min<size_t>(2, backend::cores_of_process().size()));
  const auto server = serve(program.model, options);
  const auto parts = backend::split_compute_queues(options.groups);
  for (size_t lane = 0; lane < server->lanes(); ++lane) CHECK(server->group(lane).compute_queues() == parts[lane]);
}

}  // namespace hetero::graph::testing
