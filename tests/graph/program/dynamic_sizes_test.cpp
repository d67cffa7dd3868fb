// Programs with dimensions: what is fitted, what is refused, and executors that change sizes.

#include <atomic>
#include <cstring>
#include <limits>
#include <map>
#include <thread>

#include "graph/program/archive.h"
#include "graph/program/program_sizes.h"
#include "graph/program/verify_program.h"
#include "graph/serve/graph_executor.h"
#include "graph/serve/server.h"
#include "tests/catch/catch.h"
#include "tests/graph/fixtures/dynamic_program.h"
#include "tests/graph/fixtures/static_program.h"

namespace hetero::graph::testing {
namespace {

using backend::kCpu;
using Sizes = std::vector<int64_t>;

// A model that is made once: fitting takes a while.
std::shared_ptr<Model> dynamic_model() { return model_of(make_dynamic()); }

Results expected_at(int64_t a, int64_t b, bool partly = true) {
  DynamicRecording recording(a, b, partly);
  for (Buffer& buffer : recording.program.graph.buffers) buffer.escapes |= buffer.valid_on != 0;
  return recording.program.interpret();
}

// Sets the sizes, runs and compares everything but the state, which goes on from run to run.
void check_at(GraphExecutor& executor, int64_t a, int64_t b, size_t slot = 0, bool partly = true) {
  INFO("a " << a << ", b " << b);
  require(executor.SetSizes(Sizes{a, b}));
  DynamicRecording recording(a, b, partly);
  set_inputs(executor, recording.program, slot);
  require(executor.Run(slot));
  Results expected = expected_at(a, b, partly);
  expected.values[recording.state].reset();
  for (const ProgramValue& output : executor.outputs()) {
    // `kept` is made of the state.
    if (executor.program().windows[output.window].numel == 4) expected.values[output.buffer].reset();
  }
  CHECK(has_values(executor, expected, slot));
}

}  // namespace

TEST_CASE("what is fitted gives each recording, to the last integer") {
  const std::unique_ptr<SavedProgram> program = make_dynamic();
  for (const auto& [a, b] : {std::pair{2, 2}, {3, 8}, {4, 9}, {100, 1000}, {7, 2}}) {
    const auto recorded = DynamicRecording(a, b).saved();
    const auto made = program_at(*program, Sizes{a, b});
    require(made.status());
    CHECK(describe(*made.value()) == describe(*recorded));
    require(verify_program(*made.value()));
    require(compare_at(*program, {{a, b}, recorded.get()}));
  }
  // Of size 1 strides are others, which nothing follows.
  const auto narrow = DynamicRecording(1, 5).saved();
  require(compare_at(*program, {{1, 5}, narrow.get()}));
}

TEST_CASE("sizes print and parse back, and go through the file") {
  const TemporaryFolder folder;
  const std::unique_ptr<SavedProgram> program = make_dynamic();
  const std::string text = to_string(program->dynamic);
  const Result<DynamicSizes> parsed = parse_sizes(text);
  require(parsed.status());
  CHECK(parsed.value() == program->dynamic);
  require(save_program(*program, folder.path("m.hetero")));
  const auto loaded = load_program(folder.path("m.hetero"));
  require(loaded.status());
  CHECK(describe(*loaded.value()) == describe(*program));
  CHECK(to_string(loaded.value()->dynamic) == text);
}

TEST_CASE("an executor computes what the interpreter does for any sizes, on whatever devices", "[accelerator]") {
  if (is_accelerator_missing()) return;
  const auto model = dynamic_model();
  for (const PlanOptions& plan : {cpu_options(), fused_options(), both_options(), mixed_options(), remote_options()}) {
    auto executor = executor_of(model, executor_options(plan));
    CHECK(executor->sizes() == Sizes{3, 8});
    for (const auto& [a, b] :
         {std::pair{3, 8}, {5, 9}, {1, 8}, {40, 64}, {2, 2}, {1, 2}, {3, 8}, {99, 31}, {5, 9}, {40, 64}}) {
      check_at(*executor, a, b, 0);
      check_at(*executor, a, b, 1);
    }
    CHECK(executor->counts().allocations == 0);
    CHECK(executor->counts().runs == 20);
  }
}

TEST_CASE("the plan is resized for other sizes, kept for sizes that come back, and made anew where a size becomes 1",
          "[accelerator]") {
  if (is_accelerator_missing()) return;
  for (const PlanOptions& options : {fused_options(), remote_options()}) {
    auto executor = executor_of(model_of(make_dynamic(3, 8, false)), executor_options(options));
    check_at(*executor, 4, 16, 0, false);
    CHECK(executor->plan().origin == "resized");
    const StaticPlan* const plan = &executor->plan();
    check_at(*executor, 6, 20, 0, false);
    CHECK(&executor->plan() != plan);
    CHECK(executor->plan().origin == "resized");
    require(executor->SetSizes(Sizes{4, 16}));
    CHECK(&executor->plan() == plan);
    CHECK_FALSE(executor->GetOutputView(0).ok());
    check_at(*executor, 1, 16, 0, false);
    CHECK(executor->plan().origin == "made anew for these sizes");
  }
  // What is written in part may overlap otherwise.
  auto partly = executor_of(dynamic_model(), executor_options(fused_options()));
  require(partly->SetSizes(Sizes{4, 16}));
  CHECK(partly->plan().origin == "made anew for these sizes");
}

TEST_CASE("memory is taken where sizes need more than any before, and not otherwise", "[accelerator]") {
  if (is_accelerator_missing()) return;
  for (const PlanOptions& plan : {fused_options(), remote_options()}) {
    auto executor = executor_of(dynamic_model(), executor_options(plan));
    require(executor->SetSizes(Sizes{50, 64}));
    const uint64_t most = executor->bytes(kCpu);
    for (int64_t a = 1; a < 50; a += 7) {
      check_at(*executor, a, 64);
      CHECK(executor->bytes(kCpu) == most);
    }
    require(executor->SetSizes(Sizes{100, 64}));
    CHECK(executor->bytes(kCpu) > most);
  }
}

TEST_CASE("so many sizes that old ones are forgotten are computed right") {
  auto executor = executor_of(dynamic_model(), executor_options(fused_options()));
  for (int round = 0; round < 2; ++round) {
    for (int64_t a = 2; a < 42; ++a) check_at(*executor, a, 2 * a);
  }
  CHECK(executor->counts().runs == 80);
}

TEST_CASE("a state goes on when sizes change", "[accelerator]") {
  if (is_accelerator_missing()) return;
  for (const PlanOptions& plan : {cpu_options(), both_options(), mixed_options(), remote_options()}) {
    const auto model = dynamic_model();
    auto changing = executor_of(model, executor_options(plan));
    auto other = executor_of(model, executor_options(cpu_options()));
    const auto run_and_read = [](GraphExecutor& executor, int64_t a, int64_t b) {
      check_at(executor, a, b);
      std::vector<float> kept(4);
      for (const ProgramValue& output : executor.outputs()) {
        if (executor.program().windows[output.window].numel == 4)
          require(executor.GetOutput(output.name, view_of(kept)));
      }
      return kept;
    };
    std::vector<float> before;
    for (const auto& [a, b] : {std::pair{3, 8}, {20, 9}, {1, 4}, {20, 9}}) {
      const std::vector<float> kept = run_and_read(*changing, a, b);
      CHECK(kept == run_and_read(*other, a, b));
      CHECK(kept != before);
      before = kept;
    }
  }
}

TEST_CASE("memory that the caller lent is not used after the sizes have changed") {
  auto executor = executor_of(dynamic_model(), executor_options(fused_options()));
  auto lent = std::make_shared<std::vector<float>>(3);
  DynamicRecording recording(3, 8);
  set_inputs(*executor, recording.program);
  require(executor->SetInputZeroCopy(0, view_of(*lent), 0, lent));
  CHECK(lent.use_count() == 2);
  require(executor->SetSizes(Sizes{4, 8}));
  CHECK(lent.use_count() == 1);
  lent.reset();
  require(executor->SetSizes(Sizes{3, 8}));
  CHECK(contains(executor->Run(), "was not set"));
  check_at(*executor, 3, 8);
}

TEST_CASE("sizes that the program cannot have are refused, and it goes on as before") {
  auto executor = executor_of(dynamic_model(), executor_options(fused_options()));
  const auto set = [&](Sizes sizes) { return executor->SetSizes(sizes); };
  CHECK(contains(set({0, 8}), "a is 0, and the program was made for 1 to 100"));
  CHECK(contains(set({101, 8}), "a is 101"));
  CHECK(contains(set({3, 1}), "b is 1, and the program was made for 2 and more"));
  CHECK(contains(set({3}), "more dimensions than the 1 sizes given"));
  CHECK(contains(set({3, 8, 1}), "2 dimensions, and 3 sizes"));
  CHECK(contains(set({3, std::numeric_limits<int64_t>::max()}), "too large"));
  CHECK(contains(set({3, int64_t{1} << 58}), "cannot have"));
  CHECK(executor->sizes() == Sizes{3, 8});
  check_at(*executor, 3, 8);

  std::vector<float> x(1000);
  const auto view = [&](int64_t count) { return TensorView::row_major(x.data(), "f32", {count}); };
  const auto set_of = [&](std::vector<int64_t> counts) {
    std::vector<TensorView> views;
    for (const int64_t count : counts) views.push_back(view(count));
    return executor->SetSizesOf(views);
  };
  require(set_of({4, 9, 36}));
  CHECK(executor->sizes() == Sizes{4, 9});
  CHECK(contains(set_of({4, 9, 35}), "dimension 0 is to be 36: the inputs have a 4, b 9"));
  CHECK(contains(set_of({4, 9}), "3 inputs, and 2 were given"));
  std::vector<TensorView> views = {view(4), view(9), TensorView::row_major(x.data(), "f32", {4, 9})};
  CHECK(contains(executor->SetSizesOf(views), "has 2 dimensions, and is to have 1"));
  CHECK(contains(executor->SetInput(0, view(5)), "is f32[4] in this program, not f32[5]"));
}

TEST_CASE("sizes that do not meet what the program requires are refused in terms of its dimensions") {
  const TemporaryFolder folder;
  {
    auto program = make_dynamic();
    Result<DynamicSizes> parsed =
        parse_sizes(to_string(program->dynamic) + "require 2*half = b\nrequire a != 5\nrequire a+1 <= b\n");
    require(parsed.status());
    program->dynamic = std::move(parsed.value());
    CHECK(program->dynamic.requirements.size() == 3);
    require(save_program(*program, folder.path("m.hetero")));
  }
  const auto loaded = Model::load(folder.path("m.hetero"));
  require(loaded.status());
  auto executor = executor_of(loaded.value(), executor_options(fused_options()));
  check_at(*executor, 4, 10);
  CHECK(contains(executor->SetSizes(Sizes{4, 9}),
                 "cannot have these sizes: a 4, b 9. The model needs 2*floor(b,2) (8) to be b (9)"));
  CHECK(contains(executor->SetSizes(Sizes{5, 10}), "needs a (5) not to be 5"));
  CHECK(contains(executor->SetSizes(Sizes{10, 10}), "needs a+1 (11) to be at most b (10)"));
  check_at(*executor, 4, 10);
  check_at(*executor, 6, 12);
}

TEST_CASE("where memory does not suffice for other sizes, the executor goes on with those that it has") {
  backend::Device& cpu = *test_devices()[kCpu];
  auto executor = executor_of(dynamic_model(), executor_options(fused_options(), {&cpu, nullptr}));
  check_at(*executor, 5, 9);
  CHECK(executor->SetSizes(Sizes{100, int64_t{1} << 40}).error_class() == ErrorClass::kResource);
  CHECK(executor->sizes() == Sizes{5, 9});
  check_at(*executor, 5, 9);
  check_at(*executor, 6, 9);
}

TEST_CASE("recordings that are not one program are told apart") {
  const auto fit = [](const std::function<void(SavedProgram&)>& change, std::vector<SizeVariable> variables) {
    const auto program = DynamicRecording(3, 8).saved();
    std::vector<std::unique_ptr<SavedProgram>> others;
    std::vector<SizeSample> samples;
    for (const auto& [a, b] : {std::pair{5, 7}, {11, 13}, {17, 19}, {23, 29}, {31, 37}}) {
      others.push_back(DynamicRecording(a, b).saved());
      samples.push_back({{a, b}, others.back().get()});
    }
    change(*others.back());
    const std::vector<SizeSum> factors = {{{1, {1}}, {-1, {}}}};
    const Status status = fit_sizes(*program, std::move(variables), Sizes{3, 8}, samples, factors, find_test_numbers);
    CHECK((status.ok() || program->dynamic == DynamicSizes()));
    return status;
  };
  const auto nothing = [](SavedProgram&) {};
  require(fit(nothing, dynamic_variables()));
  std::vector<SizeVariable> without_half = dynamic_variables();
  without_half.pop_back();
  CHECK(contains(fit(nothing, without_half), "in another way than by sums and products"));
  CHECK(contains(fit([](SavedProgram& p) { p.graph.nodes[2].op = test_ops().matmul; }, dynamic_variables()),
                 "is another call for other sizes"));
  CHECK(contains(fit([](SavedProgram& p) { p.graph.nodes.pop_back(); }, dynamic_variables()), "more calls"));
  CHECK(contains(
      fit([](SavedProgram& p) { static_cast<char*>(p.constants[0].bytes.data())[3] ^= 1; }, dynamic_variables()),
      "a constant that is another one"));
  CHECK(contains(fit([](SavedProgram& p) { p.graph.buffers[5].bytes += 4; }, dynamic_variables()), "the bytes of b5"));
}

TEST_CASE("sizes of a file that say nonsense are refused") {
  const auto with = [](const std::string& from, const std::string& to) {
    const std::unique_ptr<SavedProgram> program = make_dynamic();
    std::string text = to_string(program->dynamic);
    const size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    text.replace(at, from.size(), to);
    Result<DynamicSizes> parsed = parse_sizes(text);
    if (!parsed.ok()) return parsed.status();
    program->dynamic = std::move(parsed.value());
    return verify_program(*program);
  };
  CHECK(contains(with("dimension a 1..100", "dimension a 100..1"), "can have no size"));
  CHECK(contains(with("dimension a 1..100", "dimension b 1..100"), "a sum"));
  CHECK(contains(with("let half", "let a"), "a sum"));
  CHECK(contains(with("dimension a", "dimension 7"), "a name and its bounds"));
  CHECK(contains(with("let half = floor(b,2)", "let half = floor(half,2)"), "two sums"));
  CHECK(contains(with("let half = floor(b,2)", "let half = floor(b,0)"), "divided by 0"));
  CHECK(contains(with("let half = floor(b,2)", "let half = ceil(b,2)"), "floor("));
  CHECK(contains(with("let half = floor(b,2)", "let half = floor(b,3)"), "do not give its own graph"));
  CHECK(contains(with("b0: 4*a bytes", "b99: 4*a bytes"), "something that it does not have"));
  CHECK(contains(with("b0: 4*a bytes", "b0: 8*a bytes"), "do not give its own graph"));
  CHECK(contains(with("b0: 4*a bytes", "b0: 4*a*unknown bytes"), "a sum"));
  CHECK(contains(with("b0: 4*a bytes", "b0: 4*a"), "'bytes'"));
  CHECK(contains(with("b0: 4*a bytes", "b0: 9223372036854775807*a bytes"), "too large"));
  CHECK(contains(with("b0: 4*a bytes", "b0: 4*a-1000 bytes"), "below 0"));
  CHECK(contains(with("input 0: f32[a]{1}", "input 0: f32[a,a]{1,1}"), "something that it does not have"));
  CHECK(contains(with("let half", "require a < b\nlet half"), "=, != or <="));
  CHECK(contains(with("let half", "require half = b\nlet half"), "a sum"));
  CHECK(contains(with("b0: 4*a bytes", "require b <= a\nb0: 4*a bytes"), "The model needs b (8) to be at most a (3)"));
  CHECK(contains(with("input 0: f32[a]{1}\n", ""), "no input tells the size of the dimension a"));
}

TEST_CASE("a program that is hostile for other sizes than its own is refused for these") {
  // Its own sizes are right, and for others a window reaches outside its buffer.
  const std::unique_ptr<SavedProgram> program = make_dynamic(3, 8);
  for (auto& [buffer, bytes] : program->dynamic.buffers) {
    if (buffer == 0) bytes = {{12, {}}};
  }
  auto executor = executor_of(model_of([&] {
                                auto copy = make_dynamic(3, 8);
                                copy->dynamic = program->dynamic;
                                return copy;
                              }()),
                              executor_options(cpu_options()));
  CHECK(contains(executor->SetSizes(Sizes{9, 8}), "the program cannot have the sizes a 9, b 8"));
  check_at(*executor, 2, 8);
}

TEST_CASE("a server runs requests of different sizes") {
  const auto model = dynamic_model();
  auto server = Server::create(model, {.groups = 1, .executor = [] { return executor_options(fused_options()); }});
  require(server.status());
  // What is expected is computed here: Catch's assertions, which the interpreter uses, belong to one thread.
  std::map<std::pair<int64_t, int64_t>, Results> expectations;
  for (int64_t a = 1; a <= 9; ++a) {
    for (int64_t b = 2; b <= 12; ++b) expectations.emplace(std::pair{a, b}, expected_at(a, b));
  }
  std::vector<std::thread> clients;
  std::atomic<int> wrong{0};
  for (int client = 0; client < 4; ++client) {
    clients.emplace_back([&, client] {
      for (int i = 0; i < 25; ++i) {
        const int64_t a = 1 + (client * 7 + i) % 9;
        const int64_t b = 2 + (client + i * 3) % 11;
        const Results& expected = expectations.at({a, b});
        std::vector<std::vector<float>> inputs, outputs;
        std::vector<TensorView> given, made;
        for (const ProgramValue& input : model->program().inputs) inputs.push_back(*expected.values[input.buffer]);
        for (std::vector<float>& input : inputs) given.push_back(view_of(input));
        const auto shapes = output_shapes(model->program(), Sizes{a, b});
        for (const TensorShape& shape : shapes.value()) outputs.emplace_back(shape.sizes[0]);
        for (std::vector<float>& output : outputs) made.push_back(view_of(output));
        const auto request = server.value()->submit(given, made);
        if (!request.ok() || !request.value()->wait().ok()) {
          ++wrong;
          continue;
        }
        for (size_t o = 0; o < outputs.size(); ++o) {
          // The state goes on from request to request.
          const bool kept =
              outputs[o].size() == 4 && model->program().windows[model->program().outputs[o].window].numel == 4;
          wrong += !kept && outputs[o] != *expected.values[model->program().outputs[o].buffer];
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  CHECK(wrong == 0);
  std::vector<float> few(3);
  CHECK(contains(server.value()->submit({view_of(few), view_of(few), view_of(few)}, {}).status(), "is to be 9"));
}

}  // namespace hetero::graph::testing
