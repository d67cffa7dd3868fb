#include "graph/ir/kernel_error.h"

namespace hetero::graph {
namespace {

std::string what_of(const std::exception& error) { return error.what(); }

std::string (*exception_words)(const std::exception&) = &what_of;

}  // namespace

std::string words_of(const std::exception& error) { return exception_words(error); }

void set_exception_words(std::string (*words)(const std::exception&)) { exception_words = words; }

Status kernel_error(const std::string& where) {
  const std::exception_ptr error = std::current_exception();
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return {ErrorClass::kKernel, where + ": " + words_of(known), error};
  } catch (...) {
    return {ErrorClass::kKernel, where + ": it threw an unknown exception", error};
  }
}

}  // namespace hetero::graph
