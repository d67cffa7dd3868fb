// What the rows of op_table.def mean where recorders and kernels are made of them. Include it, then
// the table with one section:
//
//   void add_matrix_rows(torch::Library& library) {
//   #define HETERO_MATRIX_ROWS
//   #include "ops/table/op_table.def"
//   }

#pragma once

#include "ops/dispatch/registration.h"
#include "ops/dispatch/typed.h"

#define OUT(name, out, op_class, ...)           \
  add_typed_row<at::_ops::name, at::_ops::out>( \
      library, RowCode<> {} __VA_ARGS__);
#define NEW(name, op_class, ...) \
  add_typed_row<at::_ops::name>( \
      library, RowCode<> {} __VA_ARGS__);
#define INPLACE(name, op_class, ...) \
  add_typed_row<at::_ops::name>(     \
      library, RowCode<> {} __VA_ARGS__);
#define OWN(function) .with_own<&function>()
#define CALLED .called_by_code()
#define TAKES_MEMORY .with_memory()
#define PREPARE(function) .prepared_by(&function)
#define TOGETHER(function, operand) .together_by(&function, operand)
#define HIDDEN_WRITES(flag, ...) .with_hidden<HiddenWrites{flag, arguments_at(__VA_ARGS__)}>()
