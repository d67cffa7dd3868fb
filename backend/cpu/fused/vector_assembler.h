// VectorAssembler: registers, constants and vector instructions for a loop over arrays, on top of
// the assembler xbyak. codegen.cpp alone includes it.
//
// Values take the lowest free register and give it back after their last use. Numbers and constants
// are kept in registers from the highest downwards, filled before the loop, as long as no value has
// used that register; the others are filled where they are used.
//
// Thread safety: belongs to one thread.

#pragma once

#define XBYAK_NO_EXCEPTION
#include <xbyak/xbyak.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <iterator>
#include <list>
#include <span>
#include <vector>

#include "backend/cpu/fused/vector_instruction.h"

namespace hetero::backend {

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

class VectorAssembler : protected Xbyak::CodeGenerator {
 public:
  VectorAssembler(std::span<const VectorInstruction> run, int array_count, InstructionSet set, std::span<uint8_t> code,
                  bool keeps_constants = true)
      : CodeGenerator(code.size(), code.data()),
        run_(run),
        wide_(set == InstructionSet::kAvx512),
        lanes_(vector_lanes(run, set)),
        array_count_(array_count),
        free_(wide_ ? ~uint32_t{0} : 0xFFFF),
        next_constant_(wide_ ? 31 : 15),
        keeps_constants_(keeps_constants),
        constants_left_(!keeps_constants ? 0
                        : wide_          ? 16
                                         : 6) {}

 protected:
  using Operand = Xbyak::Operand;
  using Reg64 = Xbyak::Reg64;
  using Xmm = Xbyak::Xmm;
  static constexpr int kNoRegister = -1;

  // -- Addresses ----------------------------------------------------------------------------------

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

  // -- Registers ----------------------------------------------------------------------------------

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
  // The result's register: one apart from those of the inputs, or perhaps one of an input that is
  // not needed any more. Then inputs must be read by the instruction that writes the result, and
  // not later.
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

  // So many more constants are worth registers.
  void keep_more_constants(int count) { constants_left_ += keeps_constants_ ? count : 0; }
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
  // A float32, in `spare` where it is not kept.
  Xmm real_in(const Xmm& spare, float value) {
    return constant(false, 4, std::bit_cast<uint32_t>(value), spare.getIdx());
  }
  // 32 bits for each lane as the last operand of an instruction, until the next one: in a register,
  // or where they are not kept, behind the code.
  const Operand& bits_operand(uint32_t bits) {
    if (const int kept = kept_register(false, 4, bits); kept != kNoRegister) return kept_operand_ = as(kept, 4);
    for (const Behind& it : behind_) {
      if (it.bits == bits) return it.address;
    }
    return behind_.emplace_back(*this, bits).address;
  }
  const Operand& real_operand(float value) { return bits_operand(std::bit_cast<uint32_t>(value)); }
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

  // -- Instructions that the sets name differently ------------------------------------------------

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
  void move(const Xmm& to, const Operand& from) { from.isMEM() ? vmovups(to, from) : vmovaps(to, from); }

  // A vector's worth of yes and no: a mask register, or a vector of entries that are all ones or
  // zero.
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

  void add_to(const Xmm& to, const Xmm& a, const Operand& b) { is_double_ ? vaddpd(to, a, b) : vaddps(to, a, b); }
  void subtract(const Xmm& to, const Xmm& a, const Operand& b) { is_double_ ? vsubpd(to, a, b) : vsubps(to, a, b); }
  void multiply(const Xmm& to, const Xmm& a, const Operand& b) { is_double_ ? vmulpd(to, a, b) : vmulps(to, a, b); }
  void square_root(const Xmm& to, const Xmm& of) { is_double_ ? vsqrtpd(to, of) : vsqrtps(to, of); }
  void divide(const Xmm& to, const Xmm& a, const Xmm& b) { is_double_ ? vdivpd(to, a, b) : vdivps(to, a, b); }
  // The second operand where one is NaN, or both are zero.
  void maximum(const Xmm& to, const Xmm& a, const Operand& b) { is_double_ ? vmaxpd(to, a, b) : vmaxps(to, a, b); }
  void minimum(const Xmm& to, const Xmm& a, const Operand& b) { is_double_ ? vminpd(to, a, b) : vminps(to, a, b); }
  // All ones where the last comparison holds.
  void set_where_compared(const Xmm& to) {
    is_double_ ? vpternlogq(to | k1, to, to, 0xFF) : vpternlogd(to | k1, to, to, 0xFF);
  }

  void fill_constants() {
    for (const Constant& it : constants_) fill_constant(it, it.index);
  }
  // Constants behind the code, one for each lane.
  void append_constants() {
    if (behind_.empty()) return;
    const size_t vector = 4 * static_cast<size_t>(lanes_);
    for (size_t padding = (vector - getSize() % vector) % vector; padding > 0; --padding) db(0);
    for (Behind& it : behind_) {
      L(it.label);
      for (int lane = 0; lane < lanes_; ++lane) dd(it.bits);
    }
  }
  // At the end of an instruction.
  void give_temporaries() {
    for (const int index : temporaries_) give_index(index);
    temporaries_.clear();
  }

  const std::span<const VectorInstruction> run_;
  const bool wide_;
  const int lanes_;
  std::vector<Value> values_;
  size_t at_ = 0;  // the instruction at hand
  bool failed_ = false;
  // Of the map at hand.
  bool is_double_ = false;
  int bytes_ = 4;

 private:
  const int array_count_;
  std::vector<Constant> constants_;
  std::vector<int> temporaries_;
  uint32_t free_;
  int next_constant_;
  const bool keeps_constants_;
  int constants_left_;
  int highest_used_ = -1;
  struct Behind {
    Behind(VectorAssembler& code, uint32_t value) : bits(value), address(code.ptr[code.rip + label]) {}
    uint32_t bits;
    Xbyak::Label label;
    Xbyak::Address address;
  };
  std::list<Behind> behind_;  // labels stay where they are
  Xmm kept_operand_;
};

}  // namespace hetero::backend
