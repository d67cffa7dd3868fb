// One pass over the instructions; VectorAssembler has their registers. Each operation of a map has
// a function that emits it.
//
//   entry:  load the arrays' addresses; jump to `fill`
//   loop:   the instructions; next vector
//           return
//   fill:   numbers and constants; jump to `loop`
//           constants that are not worth a register

#include "backend/cpu/fused/codegen.h"

#include "backend/cpu/fused/exponential.h"
#include "backend/fused/gelu.h"

#if defined(HETERO_WITH_XBYAK)
#include <array>
#include <bit>
#include <iterator>
#include <vector>

#include "backend/cpu/fused/vector_assembler.h"
#endif

namespace hetero::backend {

#if defined(HETERO_WITH_XBYAK)

namespace {

class LoopGenerator final : VectorAssembler {
 public:
  using VectorAssembler::VectorAssembler;

  size_t generate() {
    find_last_uses();
    is_short_.resize(values_.size());
    Xbyak::Label loop, fill;
    enter();
    jmp(fill, T_NEAR);
    L(loop);
    for (at_ = 0; at_ < run_.size() && !failed_; ++at_) emit(run_[at_]);
    add(kIndex, lanes_);
    cmp(kIndex, kCount);
    jb(loop, T_NEAR);
    leave();
    L(fill);
    fill_constants();
    jmp(loop, T_NEAR);
    append_constants();
    const bool failed = failed_ || Xbyak::GetError() != Xbyak::ERR_NONE;
    Xbyak::ClearError();
    return failed ? 0 : getSize();
  }

 private:
  void emit(const VectorInstruction& it) {
    switch (it.kind) {
      case VectorInstruction::Kind::kLoad:
        load(result_apart(), at(it.source, it.bytes), it.bytes);
        break;
      case VectorInstruction::Kind::kFill:
        move(result_apart(), number(0, it.bytes));
        break;
      case VectorInstruction::Kind::kMap:
        map(it);
        is_short_[it.value] = makes_short(it);
        give_inputs();
        break;
      case VectorInstruction::Kind::kStore:
        store(at(it.source, it.bytes), as(values_[it.value].index, it.bytes), it.bytes);
        break;
    }
    give_temporaries();
    Value& value = values_[it.value];
    if (dies(it.value) && value.index != kNoRegister) {
      give_index(value.index);
      value.index = kNoRegister;
    }
  }

  void map(const VectorInstruction& it) {
    formula_ = it.formula;
    is_double_ = it.formula.type == EntryType::kFloat64;
    bytes_ = entry_bytes(it.formula.type);
    right_ = it.formula.form == NumberForm::kRight;
    left_ = it.formula.form == NumberForm::kLeft;
    if (const Emit emit = emitter_of(it.formula.operation); emit != nullptr) {
      (this->*emit)();
    } else {
      failed_ = true;
    }
  }

  using Emit = void (LoopGenerator::*)();
  static Emit emitter_of(MapOperation operation) {
    using L = LoopGenerator;
    static constexpr auto kEmitters = [] {
      std::array<Emit, static_cast<size_t>(MapOperation::kCount)> table{};
      const auto set = [&](MapOperation of, Emit emit) { table[static_cast<size_t>(of)] = emit; };
      using O = MapOperation;
      set(O::kNegate, &L::negate);
      set(O::kAbs, &L::absolute);
      set(O::kRound, &L::round<0>);
      set(O::kFloor, &L::round<1>);
      set(O::kCeil, &L::round<2>);
      set(O::kTrunc, &L::round<3>);
      set(O::kReciprocal, &L::reciprocal);
      set(O::kRsqrt, &L::reciprocal_root);
      set(O::kSqrt, &L::root);
      set(O::kRelu, &L::relu);
      set(O::kAdd, &L::binary<&L::add_to>);
      set(O::kSub, &L::binary<&L::subtract>);
      set(O::kMul, &L::product);
      set(O::kDiv, &L::binary<&L::divide>);
      set(O::kMaximum, &L::extreme<&L::maximum>);
      set(O::kMinimum, &L::extreme<&L::minimum>);
      set(O::kAddScaled, &L::add_scaled);
      set(O::kEqual, &L::compared<kEqualTo>);
      set(O::kNotEqual, &L::compared<kNotEqualTo>);
      set(O::kLess, &L::compared<kLessThan>);
      set(O::kLessEqual, &L::compared<kLessOrEqual>);
      set(O::kGreater, &L::compared<kGreaterThan>);
      set(O::kGreaterEqual, &L::compared<kGreaterOrEqual>);
      set(O::kClamp, &L::clamp<true, true>);
      set(O::kClampMin, &L::clamp<true, false>);
      set(O::kClampMax, &L::clamp<false, true>);
      set(O::kThreshold, &L::threshold);
      set(O::kLeakyRelu, &L::leaky_relu);
      set(O::kSigmoidBackward, &L::sigmoid_backward);
      set(O::kTanhBackward, &L::tanh_backward);
      set(O::kAddcmul, &L::addcmul);
      set(O::kAddcdiv, &L::addcdiv);
      set(O::kWhere, &L::where);
      set(O::kMaskedFill, &L::masked_fill);
      set(O::kBitwiseAnd, &L::binary<&L::bit_and>);
      set(O::kLogicalAnd, &L::binary<&L::bit_and>);
      set(O::kBitwiseOr, &L::binary<&L::bit_or>);
      set(O::kLogicalOr, &L::binary<&L::bit_or>);
      set(O::kBitwiseXor, &L::binary<&L::exclusive_or>);
      set(O::kConvert, &L::convert);
      set(O::kGelu, &L::gelu);
      set(O::kSigmoid, &L::sigmoid);
      set(O::kSilu, &L::silu);
      set(O::kMulAdd, &L::mul_add);
      return table;
    }();
    return kEmitters[static_cast<size_t>(operation)];
  }

  // The operands, and the numbers behind the one that is in their place.
  Xmm a() { return left_ ? number(0, bytes_) : input(0); }
  Xmm b() { return right_ ? number(0, bytes_) : input(left_ ? 0 : 1); }
  Xmm x() { return number(right_ || left_ ? 1 : 0, bytes_); }
  Xmm y() { return number(1, bytes_); }
  uint64_t sign_bit() const { return is_double_ ? uint64_t{1} << 63 : uint64_t{1} << 31; }

  template <auto kInstruction>
  void binary() {
    const Xmm first = a(), second = b();
    (this->*kInstruction)(result_over(), first, second);
  }

  void negate() {
    const Xmm of = input(0), flip = literal(bytes_, sign_bit());
    exclusive_or(result_over(), of, flip);
  }

  void absolute() {
    const Xmm of = input(0), keep = literal(bytes_, sign_bit() - 1);
    bit_and(result_over(), of, keep);
  }

  template <uint8_t kMode>
  void round() {
    const Xmm of = input(0);
    round_to(result_over(), of, kMode);
  }

  void reciprocal() {
    const Xmm of = input(0), one = real(bytes_, 1);
    divide(result_over(), one, of);
  }

  void reciprocal_root() {
    const Xmm one = real(bytes_, 1), root = temporary(bytes_);
    square_root(root, input(0));
    divide(result_over(), one, root);
  }

  void root() {
    const Xmm of = input(0);
    square_root(result_over(), of);
  }

  void relu() {
    const Xmm of = input(0), zero = literal(bytes_, 0);
    maximum(result_over(), zero, of);
  }

  void product() {
    if (formula_.type == EntryType::kBool) return binary<&LoopGenerator::bit_and>();
    binary<&LoopGenerator::multiply>();
  }

  // NaN wins.
  template <auto kInstruction>
  void extreme() {
    const Xmm first = a(), second = b(), to = result_apart();
    const Mask nan = compare(first, second, kUnordered);
    (this->*kInstruction)(to, first, second);
    if (wide_) {
      set_where_compared(to);
    } else {
      vorps(to, to, nan.vector);
    }
  }

  void add_scaled() {
    const VectorInstruction& it = run_[at_];
    if (!left_ && dies(it.inputs[0])) {
      const Xmm by = x(), second = b(), to = result_in(0);
      is_double_ ? vfmadd231pd(to, second, by) : vfmadd231ps(to, second, by);
    } else if (!right_ && dies(it.inputs[left_ ? 0 : 1])) {
      const Xmm by = x(), first = a(), to = result_in(left_ ? 0 : 1);
      is_double_ ? vfmadd213pd(to, by, first) : vfmadd213ps(to, by, first);
    } else {
      const Xmm by = x(), first = a(), second = b(), to = result_apart();
      move(to, first);
      is_double_ ? vfmadd231pd(to, second, by) : vfmadd231ps(to, second, by);
    }
  }

  void mul_add() {
    const bool over = dies(run_[at_].inputs[0]);
    const Xmm factor = b(), summand = right_ ? y() : input(2), to = over ? result_in(0) : result_apart();
    if (!over) move(to, input(0));
    is_double_ ? vfmadd213pd(to, factor, summand) : vfmadd213ps(to, factor, summand);
  }

  template <Predicate kPredicate>
  void compared() {
    const Xmm first = a(), second = b();
    const Mask mask = compare(first, second, kPredicate);
    to_bytes(result_apart(), mask, bytes_);
  }

  template <bool kHasLow, bool kHasHigh>
  void clamp() {
    const Xmm first = x(), second = kHasLow && kHasHigh ? y() : first, to = result_apart();
    if (kHasLow) maximum(to, first, input(0));
    if (kHasHigh) minimum(to, second, kHasLow ? to : input(0));
    const Mask nan = compare(first, second, kUnordered);
    select(to, nan, literal(bytes_, is_double_ ? 0x7FF8000000000000 : 0x7FC00000), to, bytes_);
  }

  void threshold() {
    const Mask mask = compare(input(0), x(), kLessOrEqual);
    const Xmm value = y();
    select(result_apart(), mask, value, input(1), bytes_);
  }

  void leaky_relu() {
    const Mask mask = compare(input(0), literal(bytes_, 0), kGreaterThan);
    const Xmm slope = x(), one = real(bytes_, 1), to = result_apart();
    select(to, mask, one, slope, bytes_);
    multiply(to, input(0), to);
  }

  void sigmoid_backward() {
    const Xmm one = real(bytes_, 1), to = result_apart();
    subtract(to, one, input(1));
    multiply(to, input(0), to);
    multiply(to, to, input(1));
  }

  void tanh_backward() {
    const Xmm one = real(bytes_, 1), to = result_apart();
    move(to, one);
    is_double_ ? vfnmadd231pd(to, input(1), input(1)) : vfnmadd231ps(to, input(1), input(1));
    multiply(to, input(0), to);
  }

  void addcmul() {
    const Xmm by = x(), to = result_apart();
    multiply(to, by, input(1));
    is_double_ ? vfmadd213pd(to, input(2), input(0)) : vfmadd213ps(to, input(2), input(0));
  }

  void addcdiv() {
    const Xmm by = x(), to = result_apart();
    multiply(to, by, input(1));
    divide(to, to, input(2));
    add_to(to, input(0), to);
  }

  void where() {
    const Mask no = zeros(input(0), bytes_);
    select(result_apart(), no, input(2), input(1), bytes_);
  }

  void masked_fill() {
    const Mask no = zeros(input(1), bytes_);
    const Xmm value = x();
    select(result_apart(), no, input(0), value, bytes_);
  }

  // Coefficients of a map are worth registers that other values seldom need.
  void keep_coefficients() {
    if (wide_ && !has_coefficients_) keep_more_constants(8);
    has_coefficients_ = true;
  }

  // See gelu.h.
  void gelu() {
    keep_coefficients();
    const Xmm x = input(0), place = temporary(4), spare = temporary(4), to = result_apart();
    multiply(place, x, x);
    multiply(place, place, real_operand(kGeluScale));
    minimum(place, real_in(spare, 2), place);
    add_to(place, place, real_operand(-1));
    move(to, real_operand(kGeluCoefficients[0]));
    for (size_t i = 1; i < std::size(kGeluCoefficients); ++i) {
      vfmadd213ps(to, place, real_operand(kGeluCoefficients[i]));
    }
    multiply(to, x, to);
    maximum(to, real_in(spare, -1), to);
    minimum(to, real_in(spare, 1), to);
    multiply(place, x, real_operand(0.5f));
    vfmadd213ps(to, place, place);
  }

  // 1 + exp(-x), see exponential.h.
  Xmm one_more_than_exponential(const Xmm& x, const Xmm& to) {
    keep_coefficients();
    const Xmm power = temporary(4), whole = temporary(4), half = temporary(4);
    // The limits keep NaN.
    exclusive_or(power, power, power);
    subtract(power, power, x);
    minimum(power, real_in(half, kExpHighest), power);
    maximum(power, real_in(half, kExpLowest), power);
    multiply(to, power, real_operand(kExpScale));
    if (wide_) {                  // `whole` stays a float
      vrndscaleps(whole, to, 0);  // to nearest, even
      move(to, whole);
    } else {
      vcvtps2dq(whole, to);
      vcvtdq2ps(to, whole);
    }
    vfmadd231ps(power, to, real_operand(-kExpStep));
    vfmadd231ps(power, to, real_operand(-kExpStepRest));
    move(to, real_operand(kExpCoefficients[0]));
    for (size_t i = 1; i < std::size(kExpCoefficients); ++i) {
      vfmadd213ps(to, power, real_operand(kExpCoefficients[i]));
    }
    multiply(half, power, power);
    vfmadd213ps(to, half, power);
    add_to(to, to, real_operand(1));
    if (wide_) {
      vscalefps(to, to, whole);
    } else {
      // By a power of two that may be too small or too large for one float.
      vpsrad(half, whole, 1);
      vpsubd(whole, whole, half);
      vpaddd(half, half, bits_operand(127));
      vpaddd(whole, whole, bits_operand(127));
      vpslld(half, half, 23);
      vpslld(whole, whole, 23);
      multiply(to, to, half);
      multiply(to, to, whole);
    }
    add_to(to, to, real_operand(1));
    return to;
  }

  void sigmoid() {
    const Xmm x = input(0), to = result_apart(), below = one_more_than_exponential(x, to), one = real(4, 1);
    divide(to, one, below);
  }

  void silu() {
    const Xmm x = input(0), to = result_apart();
    divide(to, x, one_more_than_exponential(x, to));
  }

  void convert() {
    const MapFormula& formula = formula_;
    const Xmm from = input(0);
    if (formula.type == EntryType::kBool) {
      is_double_ = formula.from == EntryType::kFloat64;
      bytes_ = entry_bytes(formula.from);
      const Mask mask = compare(from, literal(bytes_, 0), kNotEqualTo);
      return to_bytes(result_apart(), mask, bytes_);
    }
    if (formula.type == EntryType::kBFloat16) return to_bfloat16(from);
    const Xmm to = result_over();
    switch (formula.from) {
      case EntryType::kByte:
      case EntryType::kBool:
        if (is_double_) {
          const Xmm integers = as(to.getIdx(), 4);
          vpmovzxbd(integers, from);
          vcvtdq2pd(to, integers);
        } else {
          vpmovzxbd(to, from);
          vcvtdq2ps(to, to);
        }
        break;
      case EntryType::kFloat16:
        vcvtph2ps(to, from);
        break;
      case EntryType::kBFloat16:
        vpmovzxwd(to, from);
        vpslld(to, to, 16);
        break;
      case EntryType::kFloat32:
        formula.type == EntryType::kFloat64 ? vcvtps2pd(to, from) : vcvtps2ph(to, from, 0);
        break;
      case EntryType::kFloat64:
        vcvtpd2ps(to, from);
        break;
      default:
        failed_ = true;
    }
  }

  // Whether the map gives a value of bfloat16.
  bool makes_short(const VectorInstruction& it) const {
    if (it.formula.form != NumberForm::kNone) return false;
    switch (it.formula.operation) {
      case MapOperation::kConvert:
        return it.formula.from == EntryType::kBFloat16;
      case MapOperation::kRelu:
      case MapOperation::kNegate:
      case MapOperation::kAbs:
        return is_short_[it.inputs[0]];
      case MapOperation::kMaximum:
      case MapOperation::kMinimum:
        return is_short_[it.inputs[0]] && is_short_[it.inputs[1]];
      default:
        return false;
    }
  }

  // To nearest, half to even.
  void to_bfloat16(const Xmm& from) {
    bytes_ = 4;
    const bool is_short = is_short_[run_[at_].inputs[0]];
    if (wide_ && !is_short && has_bfloat16_instructions()) return round_by_instruction(from);
    const Xmm bits = temporary(4);
    if (is_short) {
      vpsrld(bits, from, 16);
    } else {
      round_upper(bits, from);
      const Xmm nan = literal(4, 0xFFFF);
      select(bits, compare(from, from, kUnordered), nan, bits, 4);
    }
    const Xmm to = result_apart();
    if (wide_) return vpmovdw(to, bits);
    vpackusdw(bits, bits, bits);
    if (lanes_ == 8) {
      const Xbyak::Ymm whole(bits.getIdx());
      vpermq(whole, whole, 0xD8);
    }
    move(to, Xmm(bits.getIdx()));
  }

  // The processor takes the least numbers, those without a leading bit, for 0.
  void round_by_instruction(const Xmm& from) {
    constexpr uint8_t kLeast = 0x20;
    const Xmm to = result_apart(), bits = temporary(4);
    Xbyak::Label rounded;
    vcvtneps2bf16(to, from, Xbyak::EvexEncoding);
    vfpclassps(k1, from, kLeast);
    kortestw(k1, k1);
    jz(rounded);
    round_upper(bits, from);
    vpmovdw(to | k1, bits);
    L(rounded);
  }

  // bits <- the upper halves of `from`, rounded; a NaN may become anything.
  void round_upper(const Xmm& bits, const Xmm& from) {
    const Xmm one = literal(4, 1), bias = literal(4, 0x7FFF);
    vpsrld(bits, from, 16);
    bit_and(bits, bits, one);
    vpaddd(bits, bits, bias);
    vpaddd(bits, bits, from);
    vpsrld(bits, bits, 16);
  }

  // The map at hand.
  MapFormula formula_{};
  bool left_ = false, right_ = false;  // a number is in the place of an operand
  bool has_coefficients_ = false;
  std::vector<bool> is_short_;  // of each value: whether rounding to bfloat16 changes nothing
};

}  // namespace

bool has_code_generator() { return true; }

bool is_worth_generating_alone(const MapFormula& formula) {
  return formula.operation == MapOperation::kSigmoid || formula.operation == MapOperation::kSilu;
}

namespace {

bool can_convert(EntryType from, EntryType to) {
  const bool is_byte = from == EntryType::kByte || from == EntryType::kBool;
  switch (to) {
    case EntryType::kBool:
      return from == EntryType::kFloat32 || from == EntryType::kFloat64;
    case EntryType::kFloat16:
    case EntryType::kBFloat16:
      return from == EntryType::kFloat32;
    case EntryType::kFloat32:
      return is_byte || (is_floating(from) && from != EntryType::kFloat32);
    case EntryType::kFloat64:
      return is_byte || from == EntryType::kFloat32;
    default:
      return false;
  }
}

}  // namespace

bool can_generate(const MapFormula& formula) {
  const EntryType type = formula.type;
  const bool computes_in_vectors =
      formula.from == EntryType{} && (type == EntryType::kFloat32 || type == EntryType::kFloat64);
  switch (formula.operation) {
    case MapOperation::kOpaque:
      return false;
    case MapOperation::kBitwiseAnd:
    case MapOperation::kBitwiseOr:
    case MapOperation::kBitwiseXor:
    case MapOperation::kLogicalAnd:
    case MapOperation::kLogicalOr:
      return type == EntryType::kBool && formula.form == NumberForm::kNone;
    case MapOperation::kWhere:
    case MapOperation::kMaskedFill:
      return true;
    case MapOperation::kConvert:
      return can_convert(formula.from, type);
    case MapOperation::kGelu:
    case MapOperation::kSigmoid:
    case MapOperation::kSilu:
      return type == EntryType::kFloat32 && formula.from == EntryType{};
    case MapOperation::kMulAdd:  // of the second part, and exact
      return formula.form != NumberForm::kLeft && computes_in_vectors;
    case MapOperation::kMul:
      if (type == EntryType::kBool) return formula.form == NumberForm::kNone;
      [[fallthrough]];
    default:
      return formula.operation < kLastCompilable && computes_in_vectors;
  }
}

size_t generate_vector_loop(std::span<const VectorInstruction> run, int array_count, InstructionSet set,
                            std::span<uint8_t> code) {
  const size_t bytes = LoopGenerator(run, array_count, set, code).generate();
  // The registers may suffice where none keeps a constant.
  return bytes != 0 ? bytes : LoopGenerator(run, array_count, set, code, false).generate();
}

#else

bool has_code_generator() { return false; }
bool is_worth_generating_alone(const MapFormula&) { return false; }
bool can_generate(const MapFormula&) { return false; }
size_t generate_vector_loop(std::span<const VectorInstruction>, int, InstructionSet, std::span<uint8_t>) { return 0; }

#endif

}  // namespace hetero::backend
