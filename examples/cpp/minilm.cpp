// Semantic search without Python: all-MiniLM-L6-v2, saved by examples/python/save_minilm.py, run by
// GraphExecutor.
//
//   minilm MODEL VOCABULARY              reads a question a line from standard input, prints the passages nearest to it
//   minilm MODEL VOCABULARY --embedding  prints the embedding of each line instead
//   minilm MODEL VOCABULARY --tokens     prints the tokens of each line instead
//
// The program in the file is for one text of so many tokens; shorter ones are filled up, and the
// mask says so.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "graph/serve/graph_executor.h"
#include "ops/process/start.h"
#include "wordpiece.h"

using hetero::GraphExecutor;
using hetero::TensorView;

namespace {

constexpr const char* kPassages[] = {
    "A heap is a tree whose parents are never larger than their children.",
    "Sourdough bread rises by wild yeast and takes a day.",
    "The subprocess module runs a program and reads what it prints.",
    "Mount Etna is the highest active volcano in Europe.",
    "zlib and gzip make data smaller without losing any of it.",
    "The heart of a blue whale is as large as a small car.",
};

// A Status as an exception, which is what this program is written with; hetero throws none.
void check(const hetero::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

class Embedder {
 public:
  Embedder(const std::string& model, const std::string& vocabulary) : tokenizer_(vocabulary) {
    check(hetero::start());
    // Everything that can be done beforehand: the file is mapped, planned, given its memory.
    auto executor = GraphExecutor::Init(model, {});
    check(executor.status());
    executor_ = std::move(executor.value());
    const hetero::graph::SavedProgram& program = executor_->program();
    const auto sizes_of = [&](const hetero::graph::ProgramValue& value) {
      const auto sizes = program.windows[value.window].sizes();
      return std::vector<int64_t>(sizes.begin(), sizes.end());
    };
    input_sizes_ = sizes_of(executor_->inputs().at(0));
    output_sizes_ = sizes_of(executor_->outputs().at(0));
  }

  size_t length() const { return static_cast<size_t>(input_sizes_.at(1)); }
  std::vector<int64_t> tokens(std::string_view text) const { return tokenizer_.encode(text, length()); }

  // A unit vector.
  std::vector<float> embed(std::string_view text) {
    std::vector<int64_t> numbers = tokens(text);
    std::vector<int64_t> mask(numbers.size(), 1);
    numbers.resize(length(), 0);
    mask.resize(length(), 0);
    check(executor_->SetInput("input_ids", TensorView::row_major(numbers.data(), "i64", input_sizes_)));
    check(executor_->SetInput("attention_mask", TensorView::row_major(mask.data(), "i64", input_sizes_)));
    check(executor_->Run());
    std::vector<float> embedding(static_cast<size_t>(output_sizes_.at(1)));
    check(executor_->GetOutput(0, TensorView::row_major(embedding.data(), "f32", output_sizes_)));
    return embedding;
  }

 private:
  WordPiece tokenizer_;
  std::unique_ptr<GraphExecutor> executor_;
  std::vector<int64_t> input_sizes_, output_sizes_;
};

float similarity(const std::vector<float>& a, const std::vector<float>& b) {
  float sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

void search(Embedder& embedder) {
  std::vector<std::vector<float>> passages;
  for (const char* passage : kPassages) passages.push_back(embedder.embed(passage));
  std::string line;
  while (std::getline(std::cin, line)) {
    const std::vector<float> question = embedder.embed(line);
    std::vector<std::pair<float, const char*>> found;
    for (size_t i = 0; i < passages.size(); ++i) found.emplace_back(similarity(question, passages[i]), kPassages[i]);
    std::sort(found.rbegin(), found.rend());
    for (size_t i = 0; i < 2; ++i) std::printf("%.3f  %s\n", found[i].first, found[i].second);
  }
}

template <typename Numbers>
void print(const Numbers& numbers, const char* format) {
  for (const auto number : numbers) std::printf(format, number);
  std::printf("\n");
}

void run(const std::string& model, const std::string& vocabulary, std::string_view mode) {
  Embedder embedder(model, vocabulary);
  if (mode.empty()) return search(embedder);
  std::string line;
  while (std::getline(std::cin, line)) {
    if (mode == "--tokens") {
      print(embedder.tokens(line), "%ld ");
    } else {
      print(embedder.embed(line), "%.9g ");
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view mode = argc == 4 ? argv[3] : "";
  if (argc < 3 || argc > 4 || (argc == 4 && mode != "--tokens" && mode != "--embedding")) {
    std::fprintf(stderr, "usage: minilm MODEL VOCABULARY [--embedding|--tokens]\n");
    return 2;
  }
  try {
    run(argv[1], argv[2], mode);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "minilm: %s\n", error.what());
    return 1;
  }
  return 0;
}
