// Turns a kernel's exception into a Status. Its message begins with the operator's name, and the
// exception is kept.
//
// Thread safety: any thread.

#pragma once

#include <exception>
#include <string>

#include "backend/base/status.h"

namespace hetero::graph {

// The text of an exception: its what(), or what set_exception_words() makes of it. Some libraries
// put the stack into what(), which belongs in no message.
std::string words_of(const std::exception& error);
// REQUIRES: no program runs.
void set_exception_words(std::string (*words)(const std::exception&));

// REQUIRES: an exception is being handled.
Status kernel_error(const std::string& where);

}  // namespace hetero::graph
