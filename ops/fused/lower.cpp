#include "ops/fused/lower.h"

#include <ATen/Parallel.h>

#include <c10/core/DefaultDtype.h>
#include <c10/util/TypeCast.h>

#include <cmath>
#include <span>
#include <string>

#include "backend/fused/formula.h"
#include "ops/table/operator_row.h"

namespace hetero::ops {
namespace {

template <typename F>
auto with_type(at::ScalarType dtype, const F& function) {
  switch (dtype) {
    case at::kByte:
      return function(uint8_t());
    case at::kChar:
      return function(int8_t());
    case at::kShort:
      return function(int16_t());
    case at::kInt:
      return function(int32_t());
    case at::kLong:
      return function(int64_t());
    case at::kBool:
      return function(bool());
    case at::kHalf:
      return function(c10::Half());
    case at::kBFloat16:
      return function(c10::BFloat16());
    case at::kDouble:
      return function(double());
    default:
      return function(float());
  }
}

// As a copy between tensors converts. Scalar::to would raise an error for what is out of range.
template <typename T>
T converted(const at::Scalar& number) {
  if (number.isFloatingPoint()) return c10::convert<T>(number.toDouble());
  if (number.isBoolean()) return c10::convert<T>(number.toBool());
  return c10::convert<T>(number.toLong());
}

// "aten::add_.Tensor" -> "aten::add.Tensor"
std::string out_of_place(std::string_view name) {
  std::string found(name);
  const size_t dot = found.find('.');
  const size_t end = dot == std::string::npos ? found.size() : dot;
  if (end > 0 && found[end - 1] == '_' && !(end > 1 && found[end - 2] == '_')) found.erase(end - 1, 1);
  return found;
}

}  // namespace

LowerFunction lowering_of(std::string_view name) {
  const auto find = [](size_t row) {
    if (row == OperatorRow::kNoRow) return LowerFunction(nullptr);
    return pointwise_lowerings()[row] != nullptr ? pointwise_lowerings()[row] : reduction_lowerings()[row];
  };
  if (const LowerFunction own = find(describe_operator(name).index)) return own;
  const OperatorRow functional = describe_operator(out_of_place(name));
  // Only the operator itself has a kernel that runs in parts.
  return functional.tail ? nullptr : find(functional.index);
}

at::ScalarType as_float(at::ScalarType dtype) {
  return c10::isIntegralType(dtype, true) ? c10::typeMetaToScalarType(c10::get_default_dtype()) : dtype;
}

Builder::Builder(const graph::LowerRequest& request, graph::Lowering& lowering)
    : request_(request), lowering_(lowering), decoder_(request.attributes, request.node->attribute_bytes) {
  for (int i = 0; i < request.node->operand_count; ++i) {
    const auto bits = request.operands[i].bits;
    if ((bits & (graph::kConjugate | graph::kNegative)) != 0) fail();
    if (!is_fusible(static_cast<at::ScalarType>(window(i).dtype))) fail("a dtype that is not fused");
  }
}

// ---- arguments ----------------------------------------------------------------------------------

Builder::Any Builder::read_any() {
  const Tag tag = decoder_.next();
  switch (tag) {
    case Tag::kNone:
    case Tag::kUndefined:
    case Tag::kDevice:
      return {tag};
    case Tag::kTensor:
      return {tag, decoder_.operand()};
    case Tag::kInteger:
    case Tag::kSize:
      return {tag, decoder_.integer(tag)};
    case Tag::kBoolean:
      return {tag, decoder_.get<uint8_t>()};
    case Tag::kReal:
    case Tag::kShapeReal:
      decoder_.real(tag);
      return {tag};
    case Tag::kScalar:
    case Tag::kShapeScalar:
      decoder_.scalar(tag);
      return {tag};
    case Tag::kIntegers: {
      const auto count = decoder_.get<uint32_t>();
      decoder_.skip(count * sizeof(int64_t));
      return {tag, count};
    }
    case Tag::kSizes: {
      const auto count = decoder_.get<uint32_t>();
      for (uint32_t i = 0; i < count; ++i) decoder_.get_size<int64_t>();
      return {tag, count};
    }
    default:
      fail();
      return {tag};
  }
}

Source Builder::read_tensor(Tag tag) {
  Source source;
  if (tag == Tag::kTensor) {
    source.operand = decoder_.operand();
    source.dtype = static_cast<at::ScalarType>(window(source.operand).dtype);
    source.rank = window(source.operand).rank;
    source.wrapped = (request_.operands[source.operand].bits & graph::kWrappedNumber) != 0;
    return source;
  }
  if (tag != Tag::kConstant) {
    fail();
    return source;
  }
  struct Bytes {
    alignas(16) std::byte bytes[16];
  };
  source.dtype = static_cast<at::ScalarType>(decoder_.get<int8_t>());
  source.wrapped = (decoder_.get<uint8_t>() & graph::kWrappedNumber) != 0;
  const auto value = decoder_.get_value<Bytes>();
  if (!is_fusible(source.dtype)) {
    fail();
    return source;
  }
  source.number = with_type(source.dtype, [&](auto type) {
    std::memcpy(&type, value.bytes, sizeof(type));
    return at::Scalar(type);
  });
  return source;
}

Source Builder::tensor() { return read_tensor(decoder_.next()); }

std::optional<Source> Builder::optional_tensor() {
  const Tag tag = decoder_.next();
  if (tag == Tag::kNone || tag == Tag::kUndefined) return std::nullopt;
  return read_tensor(tag);
}

int Builder::tensors(Source* list, int limit) {
  if (decoder_.next() != Tag::kList) fail();
  const auto count = failed_ ? 0 : static_cast<int>(decoder_.get<uint32_t>());
  if (count > limit) fail("too many parts");
  for (int i = 0; i < count && !failed_; ++i) list[i] = tensor();
  return count;
}

std::optional<at::Scalar> Builder::optional_scalar() {
  const Tag tag = decoder_.next();
  switch (tag) {
    case Tag::kNone:
      return std::nullopt;
    case Tag::kReal:
    case Tag::kShapeReal:
      return at::Scalar(decoder_.real(tag));
    case Tag::kScalar:
    case Tag::kShapeScalar: {
      const at::Scalar number = decoder_.scalar(tag);
      if (number.isComplex() || number.type() == at::kUInt64) fail();
      return failed_ ? at::Scalar(0) : number;
    }
    default:
      fail();
      return at::Scalar(0);
  }
}

at::Scalar Builder::scalar() {
  const std::optional<at::Scalar> number = optional_scalar();
  if (number.has_value()) return *number;
  fail();
  return {};
}

Source Builder::wrap(const at::Scalar& number) {
  Source source;
  source.dtype = number.isFloatingPoint() ? at::kDouble : number.isBoolean() ? at::kBool : at::kLong;
  source.wrapped = true;
  source.number = number;
  return source;
}

int64_t Builder::integer() {
  const Any any = read_any();
  if (any.tag != Tag::kInteger && any.tag != Tag::kSize) fail();
  return any.integer;
}

bool Builder::boolean() {
  const Any any = read_any();
  if (any.tag != Tag::kBoolean) fail();
  return any.integer != 0;
}

int Builder::list_length() {
  const Any any = read_any();
  if (any.tag != Tag::kIntegers && any.tag != Tag::kSizes) fail();
  return static_cast<int>(any.integer);
}

std::string_view Builder::text() {
  const Tag tag = decoder_.next();
  if (tag == Tag::kNone) return {};
  if (tag != Tag::kString) {
    fail();
    return {};
  }
  const auto length = decoder_.get<uint32_t>();
  return {reinterpret_cast<const char*>(decoder_.skip(length)), length};
}

uint64_t Builder::dimensions(int rank) {
  if (rank == 0 || rank > 63) {
    fail();
    return 0;
  }
  const uint64_t all = (uint64_t{1} << rank) - 1;
  const auto bit = [&](int64_t dimension) { return uint64_t{1} << (dimension < 0 ? dimension + rank : dimension); };
  const Tag tag = decoder_.next();
  if (tag == Tag::kNone) return all;
  if (tag == Tag::kInteger) return bit(decoder_.get<int64_t>());
  if (tag != Tag::kIntegers) {
    fail();
    return 0;
  }
  const auto count = decoder_.get<uint32_t>();
  uint64_t mask = 0;
  for (uint32_t i = 0; i < count; ++i) mask |= bit(decoder_.get<int64_t>());
  return count == 0 ? all : mask;
}

// ---- dtypes -------------------------------------------------------------------------------------

// Tensors with dimensions come first, then tensors without, then numbers; a later class counts only
// where it is of a higher kind (bool, integer, floating), as TensorIterator promotes.
at::ScalarType Builder::common(std::initializer_list<Source> sources) const {
  at::ScalarType classes[3] = {at::ScalarType::Undefined, at::ScalarType::Undefined, at::ScalarType::Undefined};
  for (const Source& source : sources) {
    at::ScalarType dtype = source.dtype;
    if (source.wrapped && c10::isFloatingType(dtype)) dtype = c10::typeMetaToScalarType(c10::get_default_dtype());
    at::ScalarType& kind = classes[source.wrapped ? 2 : source.rank == 0 ? 1 : 0];
    kind = kind == at::ScalarType::Undefined ? dtype : c10::promoteTypes(kind, dtype);
  }
  const auto combine = [](at::ScalarType higher, at::ScalarType lower) {
    if (c10::isFloatingType(higher)) return higher;
    if (higher == at::kBool || c10::isFloatingType(lower) || higher == at::ScalarType::Undefined) {
      return higher == at::ScalarType::Undefined  ? lower
             : lower == at::ScalarType::Undefined ? higher
                                                  : c10::promoteTypes(higher, lower);
    }
    return higher;
  };
  return combine(classes[0], combine(classes[1], classes[2]));
}

Source Builder::result(int output) const {
  const int operand = output_operand(output);
  return {
      .operand = operand, .dtype = static_cast<at::ScalarType>(window(operand).dtype), .rank = window(operand).rank};
}

int Builder::output_operand(int output) const {
  const graph::Node& node = *request_.node;
  return node.output_count == 0 ? 0 : node.operand_count - node.output_count + output;
}

at::ScalarType Builder::output_dtype(int output) const {
  return static_cast<at::ScalarType>(window(output_operand(output)).dtype);
}

// ---- values -------------------------------------------------------------------------------------

Builder::Ref Builder::cast(Ref value, at::ScalarType to) {
  if (failed_) return 0;
  const auto from = static_cast<at::ScalarType>(lowering_.values[value].dtype);
  if (from == to) return value;
  return lowering_.map(functions().cast(from, to), static_cast<graph::DType>(to), {value});
}

Builder::Ref Builder::raw(const Source& source, at::ScalarType dtype) {
  if (failed_) return 0;
  if (source.is_number()) return lowering_.number(static_cast<graph::DType>(dtype), bits(source.number, dtype));
  return cast(lowering_.operand(source.operand, static_cast<graph::DType>(source.dtype)), dtype);
}

Builder::Ref Builder::value(const Source& source, at::ScalarType common) {
  return cast(raw(source, common), compute_dtype(common));
}

backend::Number Builder::number(const at::Scalar& value, at::ScalarType common) const {
  backend::Number number{.bits = 0};
  if (compute_dtype(common) == at::kFloat) {
    number.f32 = with_type(common, [&](auto type) { return static_cast<float>(converted<decltype(type)>(value)); });
  } else if (common == at::kDouble) {
    number.f64 = converted<double>(value);
  } else {
    number.i64 = with_type(common, [&](auto type) { return static_cast<int64_t>(converted<decltype(type)>(value)); });
  }
  return number;
}

backend::Number Builder::checked_number(const at::Scalar& value, at::ScalarType common) {
  const bool fits = with_type(common, [&](auto type) {
    using T = decltype(type);
    if constexpr (std::is_same_v<T, bool>) return true;
    return value.isFloatingPoint() ? !c10::overflows<T, double>(value.toDouble())
           : value.isBoolean()     ? true
                                   : !c10::overflows<T, int64_t>(value.toLong());
  });
  if (!fits) fail();
  return number(value, common);
}

backend::Number Builder::bits(const at::Scalar& value, at::ScalarType dtype) {
  backend::Number number{.bits = 0};
  with_type(dtype, [&](auto type) {
    type = converted<decltype(type)>(value);
    std::memcpy(&number, &type, sizeof(type));
    return 0;
  });
  return number;
}

namespace {

// Whether the bits of an entry depend on its place: see OperationTraits::entries. For two functions
// it depends on the call, too.
bool depends_on_position(Function function, at::ScalarType common, std::span<const backend::Number> numbers) {
  if (!c10::isFloatingType(common)) return false;
  switch (function) {
    case Function::kAddScaled: {
      // A factor of one rounds nothing.
      const backend::Number& factor = numbers.back();
      return std::abs(common == at::kDouble ? factor.f64 : static_cast<double>(factor.f32)) != 1;
    }
    case Function::kRsqrt:
      return common != compute_dtype(common);
    default:
      return backend::traits(function).entries == backend::OperationTraits::Entries::kByPlace;
  }
}

// The entries that both have together, of tensors of the same sizes with their dimensions in the
// same order; 0 where they have not. `dense` has no gaps.
int64_t common_row(const graph::Window& dense, const graph::Window& other) {
  int64_t row = 1, furthest = 0;
  bool together = true;
  for (int64_t stride = 1; stride < dense.numel;) {
    int inner = -1;
    for (int d = 0; d < dense.rank; ++d) {
      if (dense.sizes()[d] != 1 && dense.strides()[d] == stride) inner = d;
    }
    if (inner < 0) return 0;
    const int64_t size = dense.sizes()[inner], step = other.strides()[inner];
    if (step <= furthest) return 0;
    together &= step == stride;
    if (together) row *= size;
    furthest = step * (size - 1);
    stride *= size;
  }
  return row;
}

// Whether Form::kNumberRight takes numbers of the entries' dtype, and gives what Form::kTensors
// gives.
bool takes_numbers_alike(Function function) {
  switch (function) {
    case Function::kAdd:
    case Function::kSub:
    case Function::kMul:
    case Function::kDiv:
    case Function::kMulAdd:
      return true;
    default:
      return false;
  }
}

}  // namespace

// Eager runs over rows as over vectors, and over what is left of a row one by one. Rows are as long
// as all tensors have their entries together. Threads have parts of the whole.
bool Builder::fills_vectors() const {
  const graph::Window& result = window(output_operand(0));
  constexpr int64_t kTwoVectors = 128;  // bytes, of the widest
  // at::internal::GRAIN_SIZE, entries that one thread takes at least.
  constexpr int64_t kGrain = 32768;
  if (!result.dense) return false;
  int64_t entries = kTwoVectors / graph::dtype_bytes(result.dtype);
  int64_t row = result.numel;
  for (int i = 0; i < request_.node->operand_count; ++i) {
    const graph::Window& other = window(i);
    if (other.numel == 1 && result.numel != 1) continue;
    if (!std::ranges::equal(other.sizes(), result.sizes())) return false;
    row = std::min(row, common_row(result, other));
    entries = std::max<int64_t>(entries, kTwoVectors / graph::dtype_bytes(other.dtype));
  }
  int64_t part = result.numel;
  if (part > kGrain) {
    const int64_t parts = std::min<int64_t>(at::get_num_threads(), at::divup(part, kGrain));
    part = at::divup(part, parts);
  }
  return row > 0 && row % entries == 0 && part % entries == 0;
}

backend::MapFunction Builder::find(Function function, Form form, at::ScalarType common,
                                   std::span<const backend::Number> numbers) {
  if (function == Function::kPow && form != Form::kNumberRight && window(output_operand(0)).numel == 1) {
    function = Function::kPowOfScalars;
  }
  const backend::MapFunction map = functions().map(function, form, common);
  if (map == nullptr ||
      (lowering_.reduced == 0 && depends_on_position(function, common, numbers) && !fills_vectors())) {
    fail();
  }
  return map;
}

Builder::Ref Builder::map_as(Function function, Form form, at::ScalarType common, at::ScalarType result,
                             std::initializer_list<Ref> inputs, std::initializer_list<backend::Number> numbers) {
  if (failed_) return 0;
  const backend::MapFunction map = find(function, form, common, {numbers.begin(), numbers.size()});
  if (failed_) return 0;
  const bool may_read_rows =
      form == Form::kTensors && numbers.size() == 0 && takes_numbers_alike(function) && c10::isFloatingType(common);
  return lowering_.map(map, static_cast<graph::DType>(result), inputs, numbers,
                       may_read_rows ? functions().map(function, Form::kNumberRight, common) : nullptr);
}

Builder::Ref Builder::pair(Function function, at::ScalarType common, at::ScalarType result, const Source& left,
                           const Source& right, bool exact_right, std::initializer_list<backend::Number> numbers) {
  if (failed_) return 0;
  const bool half = common != compute_dtype(common);
  backend::Number all[4];
  size_t count = 1;
  for (const backend::Number& more : numbers) all[count++] = more;
  const auto with_all = [&](Form form, Ref input) -> Ref {
    const backend::MapFunction map = find(function, form, common, {all, count});
    if (failed_) return 0;
    const auto dtype = static_cast<graph::DType>(result);
    return count == 1 ? lowering_.map(map, dtype, {input}, {all[0]})
                      : lowering_.map(map, dtype, {input}, {all[0], all[1]});
  };
  if (right.is_number() && !left.is_number()) {
    all[0] = exact_right ? exact_number(right.number, common) : number(right.number, common);
    return with_all(Form::kNumberRight, value(left, common));
  }
  if (left.is_number() && !right.is_number()) {
    all[0] = number(left.number, common);
    return with_all(Form::kNumberLeft, value(right, common));
  }
  const Ref a = value(left, common);
  Ref b;
  if (exact_right && half && right.dtype != common) {
    // PyTorch takes a second operand of one entry as it is, and rounds a larger one; they differ
    // for what the half dtype cannot hold.
    const bool holds = right.dtype == at::kBool || right.dtype == at::kByte || right.dtype == at::kChar;
    if (right.rank != 0 && !holds) fail();
    b = raw(right, compute_dtype(common));
  } else {
    b = value(right, common);
  }
  if (count == 1) return map_as(function, Form::kTensors, common, result, {a, b}, {});
  return map_as(function, Form::kTensors, common, result, {a, b}, {all[1]});
}

// ---- rows ---------------------------------------------------------------------------------------

void Builder::cut_into(int count, int64_t dimension) {
  const Source output = result();
  if (dimension < 0) dimension += output.rank;
  if (count < 2 || dimension < 0 || dimension >= output.rank ||
      size(output, static_cast<int>(dimension)) % count != 0) {
    return fail("parts of unequal sizes");
  }
  lowering_.cut_into(count, static_cast<int>(dimension));
}

Builder::Ref Builder::piece(const Source& source, at::ScalarType dtype) {
  if (source.is_number()) fail();
  if (failed_) return 0;
  return cast(lowering_.piece_operand(source.operand, static_cast<graph::DType>(source.dtype)), dtype);
}

void Builder::store_piece(Ref value, int piece) {
  if (!failed_) lowering_.output(output_operand(0), cast(value, output_dtype()), piece);
}

void Builder::reduce_over(uint64_t dimensions, const Source& space) {
  lowering_.reduced = dimensions;
  lowering_.space = space.operand;
  if (dimensions == 0) fail();
}

Builder::Ref Builder::reduce(Reduction reduction, at::ScalarType common, Ref value) {
  if (failed_) return 0;
  const backend::Reducer* reducer = functions().reducer(reduction, common);
  if (reducer == nullptr) {
    fail();
    return 0;
  }
  const bool gives_place = reduction == Reduction::kArgMaximum || reduction == Reduction::kArgMinimum;
  return lowering_.reduce(reducer, static_cast<graph::DType>(gives_place ? at::kLong : compute_dtype(common)), value);
}

Builder::Ref Builder::reduce(Reduction reduction, at::ScalarType common, Ref value, Ref parameter) {
  const backend::Reducer* reducer = functions().reducer(reduction, common);
  if (reducer == nullptr) fail();
  return failed_ ? Ref{0}
                 : lowering_.reduce(reducer, static_cast<graph::DType>(compute_dtype(common)), value, parameter);
}

Builder::Ref Builder::total(at::ScalarType common, Ref value) {
  if (failed_) return 0;
  const backend::Reducer* reducer = functions().reducer(Reduction::kSum, common);
  return lowering_.total(reducer, static_cast<graph::DType>(compute_dtype(common)), value);
}

Builder::Ref Builder::row_value(const Source& source, at::ScalarType dtype) {
  if (source.is_number()) fail();
  if (failed_) return 0;
  return cast(lowering_.row_operand(source.operand, static_cast<graph::DType>(source.dtype)), dtype);
}

Builder::Ref Builder::is_index(Ref index, int64_t size) {
  const auto compare = [&](Function function, int64_t bound) {
    return map_as(function, Form::kNumberRight, at::kLong, at::kBool, {index}, {number(bound, at::kLong)});
  };
  return map(Function::kBitwiseAnd, at::kBool, {compare(Function::kGreaterEqual, 0), compare(Function::kLess, size)});
}

bool Builder::is_contiguous(const Source& source) const {
  return source.is_number() || window(source.operand).contiguous;
}

bool Builder::is_of_pixels(const Source& source, uint64_t dimensions) const {
  if (failed_ || source.is_number()) return false;
  const graph::Window& image = window(source.operand);
  if (image.rank < 3 || image.rank > 5 || image.contiguous) return false;
  const uint64_t pixels = (uint64_t{1} << image.rank) - 4;
  return dimensions == pixels && image.sizes()[1] > 1 && image.strides()[1] == 1;
}

double Builder::row_length() const {
  const graph::Window& space = window(lowering_.space);
  double length = 1;
  for (int i = 0; i < space.rank; ++i) {
    if ((lowering_.reduced >> i & 1) != 0) length *= static_cast<double>(space.sizes()[i]);
  }
  return length;
}

void Builder::store(Ref value, at::ScalarType common, int output) {
  if (failed_) return;
  // A value of another dtype than the compute dtype (a bool, an index) is not rounded.
  const auto dtype = static_cast<at::ScalarType>(lowering_.values[value].dtype);
  if (dtype == compute_dtype(common)) value = cast(value, common);
  lowering_.output(output_operand(output), cast(value, output_dtype(output)));
}

}  // namespace hetero::ops
