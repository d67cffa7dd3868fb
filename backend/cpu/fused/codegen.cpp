// One pass over the instructions. Values take the lowest free register and give it back after their last use. Numbers and constants are
// kept in registers from the highest downwards, filled before the loop, as long as no value has used that register; the others are filled where
// they are used.
//
//   entry:  load the arrays' addresses; jump to `fill`
//   loop:   the instructions; next vector
//           return
//   fill:   numbers and constants; jump to `loop`

#include "backend/cpu/fused/codegen.h"

#include <algorithm>

#include "backend/fused/gelu.h"

#if defined(HETERO_WITH_XBYAK)
#define XBYAK_NO_EXCEPTION
#include <xbyak/xbyak.h>

#include <bit>
#include <iterator>
#include <vector>
#endif

namespace hetero::backend {
namespace {

// Comparisons as vcmpps names them: the quiet ones, ordered save for "not equal".
enum Predicate : uint8_t {
  kEqualTo = 0x00,
  kUnordered = 0x03,
  kNotEqualTo = 0x04,
  kLessThan = 0x11,
  kLessOrEqual = 0x12,
  kGreaterOrEqual = 0x1D,
  kGreaterThan = 0x1E,
};

}  // namespace

#if defined(HETERO_WITH_XBYAK)

namespace {

using Xbyak::Operand;
using Xbyak::Reg64;
using Xbyak::Xmm;

constexpr int kNoRegister = -1;

class LoopGenerator : private Xbyak::CodeGenerator {
 public:
  LoopGenerator(std::span<const VectorInstruction> run, int array_count, InstructionSet set, std::span<uint8_t> code)
      : CodeGenerator(code.size(), code.data()),
        run_(run),
        array_count_(array_count),
        wide_(set == InstructionSet::kAvx512),
        lanes_(vector_lanes(run, set)),
        free_(wide_ ? ~uint32_t{0} : 0xFFFF),
        next_constant_(wide_ ? 31 : 15),
        constants_left_(wide_ ? 16 : 6) {}

  size_t generate() {
    find_last_uses();
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
    for (const Constant& it : constants_) fill_constant(it, it.index);
    jmp(loop, T_NEAR);
    const bool failed = failed_ || Xbyak::GetError() != Xbyak::ERR_NONE;
    Xbyak::ClearError();
    return failed ? 0 : getSize();
  }

 private:
  // -- Addresses ---------------------------------------------------------------------------------------------------------------------------

  const Reg64 kArrays = rdi, kNumbers = rsi, kCount = rdx, kIndex = rcx, kAddress = rax;
  static constexpr int kSavedFrom = 4;
  const Reg64 kPointers[10] = {r8, r9, r10, r11, rbx, rbp, r12, r13, r14, r15};

  int kept_pointers() const { return std::min(array_count_, static_cast<int>(std::size(kPointers))); }

  void enter() {
    endbr64();
    for (int i = kSavedFrom; i < kept_pointers(); ++i) push(kPointers[i]);
    for (int i = 0; i < kept_pointers(); ++i) mov(kPointers[i], ptr[kArrays + 8 * i]);
    xor_(kIndex, kIndex);
  }
  void leave() {
    vzeroupper();
    for (int i = kept_pointers() - 1; i >= kSavedFrom; --i) pop(kPointers[i]);
    ret();
  }
  Xbyak::Address at(uint16_t array, int bytes) {
    if (array < kept_pointers()) return ptr[kPointers[array] + kIndex * bytes];
    mov(kAddress, ptr[kArrays + 8 * array]);
    return ptr[kAddress + kIndex * bytes];
  }

  // -- Registers ---------------------------------------------------------------------------------------------------------------------------

  struct Value {
    int index = kNoRegister;
    size_t last_use = 0;
    uint8_t bytes = 0;
  };

  struct Constant {
    bool is_number;
    int bytes;  // of an entry
    uint64_t bits;
    int index;
    bool is(bool number, int size, uint64_t value) const {
      return is_number == number && bytes == size && bits == value;
    }
  };

  void find_last_uses() {
    for (size_t i = 0; i < run_.size(); ++i) {
      const VectorInstruction& it = run_[i];
      if (it.value >= values_.size()) values_.resize(it.value + 1);
      values_[it.value].last_use = i;
      values_[it.value].bytes = it.bytes;
      if (it.kind != VectorInstruction::Kind::kMap) continue;
      for (int j = 0; j < input_count(it.formula); ++j) values_[it.inputs[j]].last_use = i;
    }
  }

  // A register seen as a vector of entries of this size.
  Xmm as(int index, int bytes) const {
    const int vector = bytes * lanes_;
    return vector >= 64 ? Xmm(Operand::ZMM, index) : vector >= 32 ? Xmm(Operand::YMM, index) : Xmm(index);
  }
  int take_index() {
    if (free_ == 0) {
      failed_ = true;
      return 0;
    }
    const int index = std::countr_zero(free_);
    free_ &= free_ - 1;
    highest_used_ = std::max(highest_used_, index);
    return index;
  }
  void give_index(int index) { free_ |= uint32_t{1} << index; }
  // Until the end of the instruction.
  Xmm temporary(int bytes) {
    temporaries_.push_back(take_index());
    return as(temporaries_.back(), bytes);
  }

  Xmm input(int j) const {
    const Value& it = values_[run_[at_].inputs[j]];
    return as(it.index, it.bytes);
  }
  bool dies(uint16_t value) const { return values_[value].last_use == at_; }
  void give_inputs() {
    if (run_[at_].kind != VectorInstruction::Kind::kMap) return;
    for (int j = 0; j < input_count(run_[at_].formula); ++j) {
      Value& it = values_[run_[at_].inputs[j]];
      if (!dies(run_[at_].inputs[j]) || it.index == kNoRegister) continue;
      give_index(it.index);
      it.index = kNoRegister;
    }
  }
  // The result's register: one apart from those of the inputs, or perhaps one of an input that is not needed any more. Then inputs must be read
  // by the instruction that writes the result, and not later.
  Xmm result_apart() {
    values_[run_[at_].value].index = take_index();
    return as(values_[run_[at_].value].index, run_[at_].bytes);
  }
  Xmm result_over() {
    give_inputs();
    return result_apart();
  }
  // The register of an input that ends here, with its value.
  Xmm result_in(int j) {
    Value& it = values_[run_[at_].inputs[j]];
    values_[run_[at_].value].index = it.index;
    it.index = kNoRegister;
    return as(values_[run_[at_].value].index, run_[at_].bytes);
  }

  // The register in which a constant is kept, or none.
  int kept_register(bool is_number, int bytes, uint64_t bits) {
    for (const Constant& it : constants_) {
      if (it.is(is_number, bytes, bits)) return it.index;
    }
    if (constants_left_ == 0 || next_constant_ <= highest_used_ || (free_ >> next_constant_ & 1) == 0) {
      return kNoRegister;
    }
    free_ &= ~(uint32_t{1} << next_constant_);
    --constants_left_;
    constants_.push_back({is_number, bytes, bits, next_constant_});
    return next_constant_--;
  }
  // Where it is not kept, it is filled into a temporary, or into `spare`.
  Xmm constant(bool is_number, int bytes, uint64_t bits, int spare = kNoRegister) {
    if (const int kept = kept_register(is_number, bytes, bits); kept != kNoRegister) return as(kept, bytes);
    if (spare == kNoRegister) spare = temporary(bytes).getIdx();
    fill_constant({is_number, bytes, bits, spare}, spare);
    return as(spare, bytes);
  }
  Xmm number(int which, int bytes) { return constant(true, bytes, static_cast<uint64_t>(run_[at_].source + which)); }
  Xmm literal(int bytes, uint64_t bits) { return constant(false, bytes, bits); }
  Xmm real(int bytes, double value) {
    return literal(bytes,
                   bytes == 8 ? std::bit_cast<uint64_t>(value) : std::bit_cast<uint32_t>(static_cast<float>(value)));
  }

  void fill_constant(const Constant& it, int index) {
    const Xmm to = as(index, it.bytes);
    if (it.is_number) {
      const Xbyak::Address from = ptr[kNumbers + static_cast<int>(it.bits * sizeof(Number))];
      switch (it.bytes) {
        case 1:
          return vpbroadcastb(to, from);
        case 2:
          return vpbroadcastw(to, from);
        case 4:
          return vpbroadcastd(to, from);
        default:
          return vpbroadcastq(to, from);
      }
    }
    if (it.bits == 0) return exclusive_or(to, to, to);
    uint64_t bits = it.bits;
    if (it.bytes == 1) bits *= 0x01010101;
    if (it.bytes == 2) bits *= 0x00010001;
    const Xmm low(index);
    if (it.bytes == 8) {
      mov(kAddress, bits);
      vmovq(low, kAddress);
      vpbroadcastq(to, low);
    } else {
      mov(kAddress.cvt32(), static_cast<uint32_t>(bits));
      vmovd(low, kAddress.cvt32());
      vpbroadcastd(to, low);
    }
  }

  // -- Instructions that the sets name differently -------------------------------------------------------------------------------------------

  // Bits. The AVX-512 forms reach all registers.
  void exclusive_or(const Xmm& to, const Xmm& a, const Xmm& b) { wide_ ? vpxord(to, a, b) : vpxor(to, a, b); }
  void bit_and(const Xmm& to, const Xmm& a, const Xmm& b) { wide_ ? vpandd(to, a, b) : vpand(to, a, b); }
  void bit_or(const Xmm& to, const Xmm& a, const Xmm& b) { wide_ ? vpord(to, a, b) : vpor(to, a, b); }

  void round_to(const Xmm& to, const Xmm& a, uint8_t mode) {
    constexpr uint8_t kNoException = 8;
    mode |= kNoException;
    if (wide_) {
      is_double_ ? vrndscalepd(to, a, mode) : vrndscaleps(to, a, mode);
    } else {
      is_double_ ? vroundpd(to, a, mode) : vroundps(to, a, mode);
    }
  }
  void move(const Xmm& to, const Xmm& from) { vmovaps(to, from); }

  // A vector's worth of yes and no: a mask register, or a vector of entries that are all ones or zero.
  struct Mask {
    Xmm vector;
  };
  Mask compare(const Xmm& a, const Xmm& b, Predicate predicate) {
    if (wide_) {
      is_double_ ? vcmppd(k1, a, b, predicate) : vcmpps(k1, a, b, predicate);
      return {xmm0};
    }
    const Xmm vector = temporary(bytes_);
    is_double_ ? vcmppd(vector, a, b, predicate) : vcmpps(vector, a, b, predicate);
    return {vector};
  }
  // Where bytes are zero.
  Mask zeros(const Xmm& condition, int bytes) {
    if (wide_) {
      vptestnmb(k1, condition, condition);
      return {xmm0};
    }
    const Xmm vector = temporary(bytes);
    const Xmm low(vector.getIdx());
    vpxor(low, low, low);
    vpcmpeqb(low, low, condition);
    if (bytes == 2) vpmovsxbw(vector, low);
    if (bytes == 4) vpmovsxbd(vector, low);
    if (bytes == 8) vpmovsxbq(vector, low);
    return {vector};
  }
  // to <- mask ? yes : no
  void select(const Xmm& to, const Mask& mask, const Xmm& yes, const Xmm& no, int bytes) {
    if (!wide_) return vpblendvb(to, no, yes, mask.vector);
    if (bytes == 1) return vpblendmb(to | k1, no, yes);
    if (bytes == 2) return vpblendmw(to | k1, no, yes);
    bytes == 4 ? vpblendmd(to | k1, no, yes) : vpblendmq(to | k1, no, yes);
  }
  // Bytes that are 1 where the mask, over entries of `bytes` each, is set.
  void to_bytes(const Xmm& to, const Mask& mask, int bytes) {
    const Xmm one = literal(1, 1);
    if (wide_) return vmovdqu8(to | k1 | T_z, one);
    const int index = mask.vector.getIdx();
    const Xmm low(index);
    if (bytes * lanes_ == 32) {
      const Xmm high = temporary(1);
      vextracti128(high, Xbyak::Ymm(index), 1);
      bytes == 8 ? vshufps(low, low, high, 0x88) : vpackssdw(low, low, high);
    }
    if (!(bytes == 4 && lanes_ == 8)) vpackssdw(low, low, low);
    vpacksswb(low, low, low);
    vpand(to, low, one);
  }

  // -- Instructions of the run ---------------------------------------------------------------------------------------------------------------

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
        give_inputs();
        break;
      case VectorInstruction::Kind::kStore:
        store(at(it.source, it.bytes), as(values_[it.value].index, it.bytes), it.bytes);
        break;
    }
    for (const int index : temporaries_) give_index(index);
    temporaries_.clear();
    Value& value = values_[it.value];
    if (dies(it.value) && value.index != kNoRegister) {
      give_index(value.index);
      value.index = kNoRegister;
    }
  }

  void load(const Xmm& to, const Xbyak::Address& from, int bytes) {
    const int vector = bytes * lanes_;
    if (vector >= 16) return vmovups(to, from);
    vector == 8 ? vmovq(to, from) : vmovd(to, from);
  }
  void store(const Xbyak::Address& to, const Xmm& from, int bytes) {
    const int vector = bytes * lanes_;
    if (vector >= 16) return vmovups(to, from);
    vector == 8 ? vmovq(to, from) : vmovd(to, from);
  }

  void map(const VectorInstruction& it) {
    const MapFormula& formula = it.formula;
    is_double_ = formula.type == EntryType::kFloat64;
    bytes_ = entry_bytes(formula.type);
    const bool right = formula.form == NumberForm::kRight, left = formula.form == NumberForm::kLeft;
    // The operands, and the numbers behind the one that is in their place.
    const auto a = [&] { return left ? number(0, bytes_) : input(0); };
    const auto b = [&] { return right ? number(0, bytes_) : input(left ? 0 : 1); };
    const auto x = [&] { return number(right || left ? 1 : 0, bytes_); };
    const auto y = [&] { return number(1, bytes_); };
    const uint64_t sign = is_double_ ? uint64_t{1} << 63 : uint64_t{1} << 31;
    using O = MapOperation;
    switch (formula.operation) {
      case O::kNegate: {
        const Xmm of = input(0), flip = literal(bytes_, sign);
        exclusive_or(result_over(), of, flip);
        break;
      }
      case O::kAbs: {
        const Xmm of = input(0), keep = literal(bytes_, sign - 1);
        bit_and(result_over(), of, keep);
        break;
      }
      case O::kRound:
      case O::kFloor:
      case O::kCeil:
      case O::kTrunc: {
        const Xmm of = input(0);
        round_to(result_over(), of,
                 static_cast<uint8_t>(formula.operation == O::kRound   ? 0
                                      : formula.operation == O::kFloor ? 1
                                      : formula.operation == O::kCeil  ? 2
                                                                       : 3));
        break;
      }
      case O::kReciprocal: {
        const Xmm of = input(0), one = real(bytes_, 1);
        divide(result_over(), one, of);
        break;
      }
      case O::kRsqrt: {
        const Xmm one = real(bytes_, 1), root = temporary(bytes_);
        is_double_ ? vsqrtpd(root, input(0)) : vsqrtps(root, input(0));
        divide(result_over(), one, root);
        break;
      }
      case O::kRelu: {
        const Xmm of = input(0), zero = literal(bytes_, 0);
        maximum(result_over(), zero, of);
        break;
      }
      case O::kAdd: {
        const Xmm first = a(), second = b();
        add_to(result_over(), first, second);
        break;
      }
      case O::kSub: {
        const Xmm first = a(), second = b();
        subtract(result_over(), first, second);
        break;
      }
      case O::kMul: {
        if (formula.type == EntryType::kBool) {
          bit_and_of_inputs();
          break;
        }
        const Xmm first = a(), second = b();
        multiply(result_over(), first, second);
        break;
      }
      case O::kDiv: {
        const Xmm first = a(), second = b();
        divide(result_over(), first, second);
        break;
      }
      case O::kMaximum:
      case O::kMinimum: {
        const Xmm first = a(), second = b(), to = result_apart();
        const Mask nan = compare(first, second, kUnordered);
        formula.operation == O::kMaximum ? maximum(to, first, second) : minimum(to, first, second);
        if (wide_) {
          vpternlogd_all_ones(to);
        } else {
          vorps(to, to, nan.vector);
        }
        break;
      }
      case O::kAddScaled:
        if (!left && dies(it.inputs[0])) {
          const Xmm by = x(), second = b(), to = result_in(0);
          is_double_ ? vfmadd231pd(to, second, by) : vfmadd231ps(to, second, by);
        } else if (!right && dies(it.inputs[left ? 0 : 1])) {
          const Xmm by = x(), first = a(), to = result_in(left ? 0 : 1);
          is_double_ ? vfmadd213pd(to, by, first) : vfmadd213ps(to, by, first);
        } else {
          const Xmm by = x(), first = a(), second = b(), to = result_apart();
          move(to, first);
          is_double_ ? vfmadd231pd(to, second, by) : vfmadd231ps(to, second, by);
        }
        break;
      case O::kEqual:
      case O::kNotEqual:
      case O::kLess:
      case O::kLessEqual:
      case O::kGreater:
      case O::kGreaterEqual: {
        constexpr Predicate kPredicates[] = {kEqualTo,     kNotEqualTo,  kLessThan,
                                             kLessOrEqual, kGreaterThan, kGreaterOrEqual};
        const Predicate predicate = kPredicates[static_cast<int>(formula.operation) - static_cast<int>(O::kEqual)];
        const Xmm first = a(), second = b();
        const Mask mask = compare(first, second, predicate);
        to_bytes(result_apart(), mask, bytes_);
        break;
      }
      case O::kClamp:
      case O::kClampMin:
      case O::kClampMax: {
        const bool has_low = formula.operation != O::kClampMax, has_high = formula.operation != O::kClampMin;
        const Xmm first = x(), second = has_low && has_high ? y() : first, to = result_apart();
        if (has_low) maximum(to, first, input(0));
        if (has_high) minimum(to, second, has_low ? to : input(0));
        const Mask nan = compare(first, second, kUnordered);
        select(to, nan, literal(bytes_, is_double_ ? 0x7FF8000000000000 : 0x7FC00000), to, bytes_);
        break;
      }
      case O::kThreshold: {
        const Mask mask = compare(input(0), x(), kLessOrEqual);
        const Xmm value = y();
        select(result_apart(), mask, value, input(1), bytes_);
        break;
      }
      case O::kLeakyRelu: {
        const Mask mask = compare(input(0), literal(bytes_, 0), kGreaterThan);
        const Xmm slope = x(), one = real(bytes_, 1), to = result_apart();
        select(to, mask, one, slope, bytes_);
        multiply(to, input(0), to);
        break;
      }
      case O::kSigmoidBackward: {
        const Xmm one = real(bytes_, 1), to = result_apart();
        subtract(to, one, input(1));
        multiply(to, input(0), to);
        multiply(to, to, input(1));
        break;
      }
      case O::kTanhBackward: {
        const Xmm one = real(bytes_, 1), to = result_apart();
        move(to, one);
        is_double_ ? vfnmadd231pd(to, input(1), input(1)) : vfnmadd231ps(to, input(1), input(1));
        multiply(to, input(0), to);
        break;
      }
      case O::kAddcmul: {
        const Xmm by = x(), to = result_apart();
        multiply(to, by, input(1));
        is_double_ ? vfmadd213pd(to, input(2), input(0)) : vfmadd213ps(to, input(2), input(0));
        break;
      }
      case O::kAddcdiv: {
        const Xmm by = x(), to = result_apart();
        multiply(to, by, input(1));
        divide(to, to, input(2));
        add_to(to, input(0), to);
        break;
      }
      case O::kWhere: {
        const Mask no = zeros(input(0), bytes_);
        select(result_apart(), no, input(2), input(1), bytes_);
        break;
      }
      case O::kMaskedFill: {
        const Mask no = zeros(input(1), bytes_);
        const Xmm value = x();
        select(result_apart(), no, input(0), value, bytes_);
        break;
      }
      case O::kBitwiseAnd:
      case O::kLogicalAnd:
        bit_and_of_inputs();
        break;
      case O::kBitwiseOr:
      case O::kLogicalOr: {
        const Xmm first = input(0), second = input(1);
        bit_or(result_over(), first, second);
        break;
      }
      case O::kBitwiseXor: {
        const Xmm first = input(0), second = input(1);
        exclusive_or(result_over(), first, second);
        break;
      }
      case O::kConvert:
        convert(formula);
        break;
      case O::kGelu:
        gelu();
        break;
      default:
        failed_ = true;
    }
  }

  void bit_and_of_inputs() {
    const Xmm first = input(0), second = input(1);
    bit_and(result_over(), first, second);
  }

  // See gelu.h.
  void gelu() {
    // Its coefficients are worth registers that other values seldom need.
    if (wide_ && !has_gelu_) constants_left_ += 8;
    has_gelu_ = true;
    const Xmm x = input(0), place = temporary(4), spare = temporary(4), to = result_apart();
    const auto coefficient = [&](float value) {
      return constant(false, 4, std::bit_cast<uint32_t>(value), spare.getIdx());
    };
    multiply(place, x, x);
    multiply(place, place, coefficient(kGeluScale));
    minimum(place, coefficient(2), place);
    add_to(place, place, coefficient(-1));
    move(to, coefficient(kGeluCoefficients[0]));
    for (size_t i = 1; i < std::size(kGeluCoefficients); ++i) {
      vfmadd213ps(to, place, coefficient(kGeluCoefficients[i]));
    }
    multiply(to, x, to);
    maximum(to, coefficient(-1), to);
    minimum(to, coefficient(1), to);
    multiply(place, x, coefficient(0.5f));
    vfmadd213ps(to, place, place);
  }

  void convert(const MapFormula& formula) {
    const Xmm from = input(0);
    if (formula.type == EntryType::kBool) {
      is_double_ = formula.from == EntryType::kFloat64;
      bytes_ = entry_bytes(formula.from);
      const Mask mask = compare(from, literal(bytes_, 0), kNotEqualTo);
      return to_bytes(result_apart(), mask, bytes_);
    }
    if (formula.type == EntryType::kBFloat16) return round_to_bfloat16(from);
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

  // To nearest, half to even; NaN becomes 0xFFFF.
  void round_to_bfloat16(const Xmm& from) {
    bytes_ = 4;
    const Xmm one = literal(4, 1), bias = literal(4, 0x7FFF), nan = literal(4, 0xFFFF), bits = temporary(4);
    vpsrld(bits, from, 16);
    bit_and(bits, bits, one);
    vpaddd(bits, bits, bias);
    vpaddd(bits, bits, from);
    vpsrld(bits, bits, 16);
    const Mask unordered = compare(from, from, kUnordered);
    select(bits, unordered, nan, bits, 4);
    const Xmm to = result_apart();
    if (wide_) return vpmovdw(to, bits);
    vpackusdw(bits, bits, bits);
    if (lanes_ == 8) {
      const Xbyak::Ymm whole(bits.getIdx());
      vpermq(whole, whole, 0xD8);
    }
    move(to, Xmm(bits.getIdx()));
  }

  void add_to(const Xmm& to, const Xmm& a, const Xmm& b) { is_double_ ? vaddpd(to, a, b) : vaddps(to, a, b); }
  void subtract(const Xmm& to, const Xmm& a, const Xmm& b) { is_double_ ? vsubpd(to, a, b) : vsubps(to, a, b); }
  void multiply(const Xmm& to, const Xmm& a, const Xmm& b) { is_double_ ? vmulpd(to, a, b) : vmulps(to, a, b); }
  void divide(const Xmm& to, const Xmm& a, const Xmm& b) { is_double_ ? vdivpd(to, a, b) : vdivps(to, a, b); }
  // The second operand where one is NaN, or both are zero.
  void maximum(const Xmm& to, const Xmm& a, const Xmm& b) { is_double_ ? vmaxpd(to, a, b) : vmaxps(to, a, b); }
  void minimum(const Xmm& to, const Xmm& a, const Xmm& b) { is_double_ ? vminpd(to, a, b) : vminps(to, a, b); }
  void vpternlogd_all_ones(const Xmm& to) {
    is_double_ ? vpternlogq(to | k1, to, to, 0xFF) : vpternlogd(to | k1, to, to, 0xFF);
  }

 private:
  const std::span<const VectorInstruction> run_;
  const int array_count_;
  const bool wide_;
  const int lanes_;
  std::vector<Value> values_;
  std::vector<Constant> constants_;
  std::vector<int> temporaries_;
  uint32_t free_;
  int next_constant_;
  int constants_left_;
  int highest_used_ = -1;
  size_t at_ = 0;  // the instruction at hand
  bool failed_ = false;
  bool has_gelu_ = false;
  // Of the map at hand.
  bool is_double_ = false;
  int bytes_ = 4;
};

}  // namespace

bool has_code_generator() { return true; }

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
      return type == EntryType::kFloat32 && formula.from == EntryType{};
    case MapOperation::kMul:
      if (type == EntryType::kBool) return formula.form == NumberForm::kNone;
      [[fallthrough]];
    default:
      return formula.operation < kLastCompilable && formula.from == EntryType{} &&
             (type == EntryType::kFloat32 || type == EntryType::kFloat64);
  }
}

size_t generate_vector_loop(std::span<const VectorInstruction> run, int array_count, InstructionSet set,
                            std::span<uint8_t> code) {
  return LoopGenerator(run, array_count, set, code).generate();
}

#else

bool has_code_generator() { return false; }
bool can_generate(const MapFormula&) { return false; }
size_t generate_vector_loop(std::span<const VectorInstruction>, int, InstructionSet, std::span<uint8_t>) { return 0; }

#endif

int vector_lanes(std::span<const VectorInstruction> run, InstructionSet set) {
  int widest = 4;
  for (const VectorInstruction& it : run) widest = std::max<int>(widest, it.bytes);
  return (set == InstructionSet::kAvx512 ? 64 : 32) / widest;
}

}  // namespace hetero::backend
