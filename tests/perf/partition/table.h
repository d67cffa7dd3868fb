// Table: the rows of the bench, printed as they come, as a markdown table; whether every bar was
// reached.
//
// Thread safety: one thread.

#pragma once

#include <cstdio>
#include <string>

namespace hetero::graph::testing {

// printf into a string.
template <typename... Values>
std::string text(const char* format, Values... values) {
  char line[512];
  std::snprintf(line, sizeof(line), format, values...);
  return line;
}

class Table {
 public:
  Table() { std::printf("| what | figures | bar | |\n|---|---|---|---|\n"); }

  // A row without a bar: what the others are to be compared with.
  void note(const std::string& what, const std::string& figures) { print(what, figures, "", ""); }
  // `figure` is what the bar is about.
  void at_most(const std::string& what, const std::string& figures, double figure, double bar) {
    judge(what, figures, text("<= %g", bar), figure <= bar);
  }
  void at_least(const std::string& what, const std::string& figures, double figure, double bar) {
    judge(what, figures, text(">= %g", bar), figure >= bar);
  }

  int missed() const { return missed_; }

 private:
  void judge(const std::string& what, const std::string& figures, const std::string& bar, bool reached) {
    missed_ += reached ? 0 : 1;
    print(what, figures, bar, reached ? "reached" : "MISSED");
  }
  void print(const std::string& what, const std::string& figures, const std::string& bar, const char* verdict) {
    std::printf("| %s | %s | %s | %s |\n", what.c_str(), figures.c_str(), bar.c_str(), verdict);
    std::fflush(stdout);
  }

  int missed_ = 0;
};

// The mean and the worst, that is the largest, of some ratios.
struct Ratios {
  double sum = 0;
  double worst = 0;
  int count = 0;

  void add(double ratio) {
    sum += ratio;
    worst = ratio > worst ? ratio : worst;
    ++count;
  }
  double mean() const { return sum / count; }
};

}  // namespace hetero::graph::testing
